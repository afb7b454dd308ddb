"""Inference of what a kernel file is: language, entry point and calling style. Nothing of the file is run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import attrs
from fib_schema import BuildSpec, Definition, SourceFile, SupportedBindings, SupportedLanguages
from fib_schema.display import counted

from .errors import KernelFileError
from .native_code import Export, exports_of, uses_cutlass
from .python_code import Function, functions_of, has_setup, language_of, parse
from .sources import CPP_SUFFIXES, CUDA_SUFFIXES, PYTHON_SUFFIXES, read_sources, with_suffix

DESTINATION, RETURN = "destination", "return"
STYLES = (DESTINATION, RETURN)
"""Calling styles: outputs are arguments that the kernel fills, or are returned."""
_PREFERRED = "run"
_GPU_ONLY = frozenset({"cuda", "cutlass", "tilelang", "cute_dsl", "cutile"})


@attrs.frozen(kw_only=True)
class Choices:
    """Decisions of the user; None is inferred."""

    language: str | None = None
    entry_point: str | None = None
    """A function, or ``file::function``."""
    style: str | None = None
    """One of `STYLES`."""
    hardware: tuple[str, ...] | None = None


@attrs.frozen
class InferredKernel:
    """The sources of a kernel and how to build and call them."""

    sources: tuple[SourceFile, ...]
    spec: BuildSpec
    reasons: dict[str, str]
    """Reasons in words for users, by ``language``, ``entry point``, ``style`` and ``hardware``."""

    @property
    def style(self) -> str:
        """The calling style, one of `STYLES`."""
        return DESTINATION if self.spec.destination_passing_style else RETURN


@attrs.frozen
class _Entry:
    """A function that may be the entry point; Python's and C++'s alike."""

    name: str
    path: str
    line: int
    least: int | None
    """The number of arguments that it needs; None if unknown."""
    most: float | None
    names: tuple[str, ...]
    returns_value: bool | None
    binding: SupportedBindings | None = None


def infer_kernel(path: Path, definition: Definition, choices: Choices | None = None) -> InferredKernel:
    """Read a kernel and infer its language, entry point and calling style.

    The rules:

    - *Language.* ``.cu`` is ``cuda``, or ``cutlass`` where headers of CUTLASS are included; ``.cpp``, ``.cc`` and
      ``.cxx`` are ``cpp``; ``.py`` is the kernel language that it imports (``tilelang``, ``helion``, ``cute_dsl``,
      ``cutile``, ``triton``), else ``python``. In a folder ``.cu`` decides before ``.cpp``. A folder with both Python
      and native files needs a choice.
    - *Entry point.* The function ``run``; otherwise the only function that can be called with as many arguments as the
      definition has inputs, or inputs and outputs. In Python these are public top-level functions that are not kernels,
      in C++ and CUDA those exported with ``TVM_FFI_DLL_EXPORT_TYPED_FUNC`` or ``PYBIND11_MODULE``.
    - *Style.* ``destination`` if it takes the inputs and the outputs, ``return`` if it takes the inputs only. Names of
      outputs among the parameters decide first, then the number of parameters; where both numbers are possible, whether
      it returns a value.
    - *Hardware.* ``cuda`` for languages that need a GPU, ``cpu`` for C++, both for others.

    Args:
        path: A file or a folder; see `read_sources`.
        definition: What the kernel implements.
        choices: What the user has decided; it goes before every rule.

    Raises:
        KernelFileError: The files cannot be read or parsed, or a rule has no answer or several.
    """
    return infer_sources(str(path), read_sources(path), definition, choices)


def infer_sources(
    place: str, sources: tuple[SourceFile, ...], definition: Definition, choices: Choices | None = None
) -> InferredKernel:
    """As `infer_kernel`, of sources that were read already.

    Args:
        place: The name of the file or folder, for messages.
        sources: The sources.
        definition: What the kernel implements.
        choices: What the user has decided; it goes before every rule.

    Raises:
        KernelFileError: The sources cannot be parsed, or a rule has no answer or several.
    """
    choices = choices or Choices()
    language, why_language = _language(place, sources, choices.language)
    if language.is_compiled:
        entries: list[_Entry] = [_of_export(export) for export in exports_of(sources)]
    else:
        entries = [
            entry for source in with_suffix(sources, PYTHON_SUFFIXES) for entry in _python_entries(source, definition)
        ]
    entry, why_entry = _entry(place, entries, definition, language, choices.entry_point)
    is_dps, why_style = _style(place, entry, definition, choices.style)
    hardware, why_hardware = choices.hardware, "as you said"
    if hardware is None:
        hardware, why_hardware = _hardware(language)
    spec = BuildSpec(
        language=language,
        target_hardware=hardware,
        entry_point=f"{entry.path}::{entry.name}",
        destination_passing_style=is_dps,
        binding=entry.binding,
    )
    reasons = {"language": why_language, "entry point": why_entry, "style": why_style, "hardware": why_hardware}
    return InferredKernel(sources, spec, reasons)


def _hardware(language: SupportedLanguages) -> tuple[tuple[str, ...], str]:
    if language in _GPU_ONLY:
        return ("cuda",), f"{language} needs a GPU"
    if language is SupportedLanguages.CPP:
        return ("cpu",), "C++ runs on the CPU"
    return ("cpu", "cuda"), f"{language} runs on both"


def _language(place: str, sources: Sequence[SourceFile], chosen: str | None) -> tuple[SupportedLanguages, str]:
    if chosen is not None:
        return SupportedLanguages(chosen), "as you said"
    python, cuda, cpp = (with_suffix(sources, kind) for kind in (PYTHON_SUFFIXES, CUDA_SUFFIXES, CPP_SUFFIXES))
    if python and (cuda or cpp):
        native = (cuda or cpp)[0].path
        problem = f"the folder has Python ({python[0].path}) and native files ({native}); decide with --language"
        raise KernelFileError(place, problem)
    if cuda:
        if uses_cutlass(sources):
            return SupportedLanguages.CUTLASS, "a .cu file that includes CUTLASS"
        return SupportedLanguages.CUDA, "a .cu file"
    if cpp:
        return SupportedLanguages.CPP, f"a {Path(cpp[0].path).suffix} file"
    if not python:
        raise KernelFileError(place, "has headers only; add a file that ends in .py, .cu or .cpp")
    found = [language_of(parse(source)) for source in python]
    return next((one for one in found if one[0] is not SupportedLanguages.PYTHON), found[0])


def _python_entries(source: SourceFile, definition: Definition) -> Iterable[_Entry]:
    module = parse(source)
    known = {*definition.inputs, *definition.outputs}
    for function in functions_of(module, source.path):
        if has_setup(module):
            function = attrs.evolve(
                function,
                required=tuple(name for name in function.required if name in known),
                optional=tuple(name for name in function.optional if name in known),
            )
        yield _of_function(function)


def _of_function(function: Function) -> _Entry:
    most = float("inf") if function.is_variadic else len(function.parameters)
    place = (function.name, function.path, function.line)
    return _Entry(*place, len(function.required), most, function.parameters, function.returns_value)


def _of_export(export: Export) -> _Entry:
    place = (export.name, export.path, export.line)
    return _Entry(*place, export.parameters, export.parameters, (), export.returns_value, export.binding)


def _entry(
    place: str, entries: Sequence[_Entry], definition: Definition, language: SupportedLanguages, chosen: str | None
) -> tuple[_Entry, str]:
    if chosen is not None:
        return _chosen_entry(place, entries, chosen)
    if not entries:
        raise KernelFileError(place, _no_entry(language))
    preferred = [entry for entry in entries if entry.name == _PREFERRED]
    fitting = [entry for entry in entries if _fits(entry, definition)]
    found = preferred or fitting or list(entries)
    if len(found) > 1:
        shown = ", ".join(f"{entry.path}::{entry.name} (line {entry.line})" for entry in found[:8])
        problem = f"{len(found)} functions may be the entry point: {shown}; choose one with --entry, or name it run"
        raise KernelFileError(place, problem)
    if preferred:
        return found[0], "the function named run"
    return found[0], "the only function" if len(entries) == 1 else "the only function that fits the definition"


def _chosen_entry(place: str, entries: Sequence[_Entry], chosen: str) -> tuple[_Entry, str]:
    file, _, name = chosen.rpartition("::")
    found = [entry for entry in entries if entry.name == name and file in ("", entry.path)]
    if len(found) == 1:
        return found[0], "as you said"
    if found:
        shown = ", ".join(f"{entry.path}::{entry.name}" for entry in found)
        raise KernelFileError(place, f"--entry {name}: it is in several files; write one of {shown}")
    have = ", ".join(dict.fromkeys(entry.name for entry in entries)) or "none"
    raise KernelFileError(place, f"--entry {chosen}: there is no such function; the functions are: {have}")


def _no_entry(language: SupportedLanguages) -> str:
    if language.is_compiled:
        return (
            "exports no function; end the file with TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, YourFunction); "
            "(and #include <tvm/ffi/function.h>)"
        )
    return "has no function that can be called; add a top-level function named run"


def _counts(definition: Definition) -> dict[bool, int]:
    """The number of arguments by style; True is destination."""
    inputs = len(definition.inputs)
    return {False: inputs, True: inputs + len(definition.outputs)}


def _fits(entry: _Entry, definition: Definition) -> bool:
    if entry.least is None or entry.most is None:
        return True
    return any(entry.least <= count <= entry.most for count in _counts(definition).values())


def _style(place: str, entry: _Entry, definition: Definition, chosen: str | None) -> tuple[bool, str]:
    """Whether the entry function is destination-passing, and why."""
    if chosen is not None:
        return chosen == DESTINATION, "as you said"
    if entry.least is None or entry.most is None:
        return True, "assumed, because the exported function was not found; --style return if it returns its outputs"
    counts = _counts(definition)
    possible = [is_dps for is_dps, count in counts.items() if entry.least <= count <= entry.most]
    named = [name for name in definition.outputs if name in entry.names]
    if named and True in possible:
        return True, f"it takes the output {named[0]}"
    sizes = f"{_listed('input', definition.inputs)} and {_listed('output', definition.outputs)}"
    inputs, everything = ", ".join(definition.inputs), ", ".join((*definition.inputs, *definition.outputs))
    if not possible:
        is_fixed = entry.least == entry.most
        takes = counted(entry.least, "argument") if is_fixed else f"{entry.least} to {entry.most} arguments"
        problem = (
            f"{entry.name} takes {takes}, and the definition has {sizes}; "
            f"write {entry.name}({inputs}) that returns the outputs, or {entry.name}({everything}) that fills them"
        )
        raise KernelFileError(f"{Path(place).name}:{entry.line}", problem)
    if len(possible) == 2:
        does = "returns a value" if entry.returns_value else "returns nothing"
        return not entry.returns_value, f"it {does}"
    if possible[0]:
        return True, f"{counts[True]} parameters for {sizes}"
    if entry.returns_value is False:
        remedy = f"return the outputs, or write {entry.name}({everything})"
        problem = f"{entry.name} takes the inputs only and returns nothing; {remedy}"
        raise KernelFileError(f"{Path(place).name}:{entry.line}", problem)
    return False, f"it takes the inputs ({inputs}) and returns a value"


def _listed(kind: str, names: Collection[str]) -> str:
    """The number and the names of inputs or outputs."""
    return f"{len(names)} {kind}{'' if len(names) == 1 else 's'} ({', '.join(names)})"
