"""Upgrade of records of legacy schemas and of a variant to the current schema, without losing a field.

Source: the first release's data (``type``, ``shape: []``, ``log_file``, ``error``,
``environment.device``) and the solution schema of NVIDIA's SOL-ExecBench (``languages``, short
hardware names, ``compile_options`` with ``ld_flags``). Current records are never changed: each change
needs a marker that the current schema does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any

from .definition import Definition
from .errors import Problem, Severity
from .solution import Solution, SupportedLanguages
from .trace import Trace

LEGACY_CODE = "legacy-schema"
"""The code of problems that `legacy_warnings` makes."""

LogReader = Callable[[str], "str | None"]
"""The text of a log file, by its path below the data set's root; None if there is none."""

Plain = dict[str, Any]

_LANGUAGES: Mapping[str, str] = MappingProxyType({
    "pytorch": "python", "cudnn_frontend": "python", "cuda_cpp": "cuda", "cudnn": "cuda", "cublas": "cuda",
})  # fmt: skip
_COMPILED = frozenset(language for language in SupportedLanguages if language.is_compiled)
_EMBEDDED = frozenset(language for language in SupportedLanguages if language.is_embedded)
_NATIVE_SUFFIXES = frozenset({".c", ".cc", ".cpp", ".cxx", ".cu"})
_ANY_DEVICE = "LOCAL"


def upgrade(plain: Any, cls: type, read_log: LogReader | None = None) -> tuple[Any, list[str]]:
    """Turn the plain objects of a legacy record into those of a current one.

    Args:
        plain: What was decoded; it is not changed.
        cls: The record class that it is meant for.
        read_log: Reads a trace's log file; without it the text of logs stays in their files.

    Returns:
        The current plain objects (`plain` itself if it is current) and the changes, each in a few words.
    """
    if type(plain) is not dict:
        return plain, []
    if cls is Definition:
        return _definition(plain)
    if cls is Solution:
        return _solution(plain)
    if cls is Trace:
        return _trace(plain, read_log)
    return plain, []


def legacy_warnings(source: str, changes: Mapping[str, int]) -> list[Problem]:
    """A warning for each change that made legacy records of a file current, with its count of records."""
    return [
        Problem(
            source,
            "$",
            f"has a legacy schema: {change}{f' ({count} lines)' if count > 1 else ''}; "
            f"rewrite the set with 'fib-bench migrate'",
            Severity.WARNING,
            LEGACY_CODE,
        )
        for change, count in changes.items()
    ]


def _definition(plain: Plain) -> tuple[Plain, list[str]]:
    if "op_type" in plain or not isinstance(plain.get("type"), str):
        return plain, []
    new = {("op_type" if key == "type" else key): value for key, value in plain.items()}
    changes = ["'type' is 'op_type' now"]
    for field in ("inputs", "outputs"):
        if (tensors := _without_empty_shapes(plain.get(field))) != plain.get(field):
            new[field] = tensors
            changes.append(f"the shape of scalar {field} is null now, and was []")
    for field in ("tags", "constraints"):
        if field in new and new[field] is None:
            new[field] = []
            changes.append(f"{field!r} is an empty list now, and was null")
    return new, changes


def _without_empty_shapes(tensors: Any) -> Any:
    if type(tensors) is not dict:
        return tensors
    return {
        name: {**t, "shape": None} if type(t) is dict and t.get("shape") == [] else t for name, t in tensors.items()
    }


def _solution(plain: Plain) -> tuple[Plain, list[str]]:
    spec, extra = plain.get("spec"), plain.get("extra")
    if type(spec) is not dict or not (extra is None or type(extra) is dict):
        return plain, []
    kept: Plain = {}
    new, changes = _with_language(spec, kept)
    new, more = _with_hardware(new, kept, is_variant=bool(changes))
    changes += more
    options = new.get("compile_options")
    if type(options) is dict and "ld_flags" in options and "ldflags" not in options:
        renamed = {("ldflags" if key == "ld_flags" else key): value for key, value in options.items()}
        new = {**new, "compile_options": renamed}
        changes.append("compile_options.ld_flags is 'ldflags' now")
    if not changes:
        return plain, []
    upgraded = {**plain, "spec": new}
    return (_with_extra(upgraded, {_free_key("sol_execbench", extra or {}): kept}) if kept else upgraded), changes


def _with_language(spec: Plain, kept: Plain) -> tuple[Plain, list[str]]:
    """Replace the variant's list of languages, or a name that only the variant has, by one language."""
    stated = spec["languages"] if "languages" in spec and "language" not in spec else [spec.get("language")]
    names = [name for name in stated if isinstance(name, str)] if isinstance(stated, list) else []
    if not names or ("language" in spec and names[0] not in _LANGUAGES):
        return spec, []
    key = "languages" if "language" not in spec else "language"
    kept[key] = spec[key]
    language = _language(names, spec.get("entry_point"))
    new = {("language" if k == key else k): (language if k == key else v) for k, v in spec.items()}
    changes = [f"{key} {', '.join(names)} is language {language!r} now (kept in 'extra')"]
    if language in _COMPILED and new.get("binding") is None:
        new["binding"] = "torch"
        changes.append("'binding' is 'torch', the only one that the variant has")
    return new, changes


def _language(names: list[str], entry_point: Any) -> str:
    """The language; the suffix of the entry point decides where the names are ambiguous."""
    known = [_LANGUAGES.get(name, name) for name in names]
    entry = entry_point.partition("::")[0] if isinstance(entry_point, str) else ""
    suffix = PurePosixPath(entry).suffix
    if suffix in _NATIVE_SUFFIXES:
        return "cpp" if set(known) == {"cpp"} else "cutlass" if "cutlass" in known else "cuda"
    if suffix == ".py":
        return next((name for name in known if name in _EMBEDDED), "python")
    return known[0]


def _with_hardware(spec: Plain, kept: Plain, *, is_variant: bool) -> tuple[Plain, list[str]]:
    """Replace the variant's short hardware names by the driver's."""
    names = spec.get("target_hardware")
    if not isinstance(names, list) or not (is_variant or _ANY_DEVICE in names):
        return spec, []
    new = list(dict.fromkeys(_hardware(name) if isinstance(name, str) else name for name in names if _hashable(name)))
    if new == names or not all(map(_hashable, names)):
        return spec, []
    kept["target_hardware"] = names
    change = f"target_hardware {', '.join(map(str, names))} is {', '.join(map(str, new))} now (kept in 'extra')"
    return {**spec, "target_hardware": new}, [change]


def _hardware(name: str) -> str:
    if name == _ANY_DEVICE:
        return "cuda"
    if name.casefold() in {"cpu", "cuda", "gpu"}:
        return name.casefold()
    model = name.replace("_", " ")
    return model if model.casefold().startswith("nvidia ") else f"NVIDIA {model}"


def _hashable(name: Any) -> bool:
    return not isinstance(name, dict | list)


def _trace(plain: Plain, read_log: LogReader | None) -> tuple[Plain, list[str]]:
    evaluation = plain.get("evaluation")
    if type(evaluation) is not dict:
        return plain, []
    new, changes = _with_log(evaluation, read_log)
    environment = new.get("environment")
    if type(environment) is dict and "device" in environment and "hardware" not in environment:
        renamed = {("hardware" if key == "device" else key): value for key, value in environment.items()}
        new = {**new, "environment": renamed}
        changes.append("environment.device is 'hardware' now")
    return ({**plain, "evaluation": new}, changes) if changes else (plain, [])


def _with_log(evaluation: Plain, read_log: LogReader | None) -> tuple[Plain, list[str]]:
    """Replace the name of the log file by its text; the legacy fields move to `extra`."""
    legacy = {key: evaluation[key] for key in ("log_file", "error") if key in evaluation}
    extra = evaluation.get("extra")
    if not legacy or not (extra is None or type(extra) is dict):
        return evaluation, []
    moved = {_free_key(key, extra or {}): value for key, value in legacy.items()}
    new = {key: value for key, value in evaluation.items() if key not in legacy}
    if "log" not in new:
        name = legacy.get("log_file")
        text = read_log(name) if read_log and isinstance(name, str) else None
        error = legacy.get("error")
        new["log"] = text if text is not None else error if isinstance(error, str) else ""
    changes = [f"evaluation.{key} is in 'extra' now" for key in legacy]
    return _with_extra(new, moved), changes


def _with_extra(record: Plain, fields: Plain) -> Plain:
    """A record with more fields in its `extra`."""
    return {**record, "extra": {**(record.get("extra") or {}), **fields}}


def _free_key(key: str, taken: Plain) -> str:
    """The key, with underscores appended until it is free."""
    while key in taken:
        key += "_"
    return key
