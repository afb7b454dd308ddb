"""Upgrade of records of the first release's schema to the current one, without losing a field.

Those have ``type``, ``shape: []``, ``log_file``, ``error`` and ``environment.device``. Current records are never
changed: each change needs a marker that the current schema does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .definition import Definition
from .errors import Problem, Severity
from .trace import Trace

LEGACY_CODE = "legacy-schema"
"""The code of problems that `legacy_warnings` makes."""

LogReader = Callable[[str], "str | None"]
"""The text of a log file, by its path below the data set's root; None if there is none."""

Plain = dict[str, Any]


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
