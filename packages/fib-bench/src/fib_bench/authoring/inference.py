"""Inference of what a kernel file is: language, entry point and calling style. Nothing of the file is run.

Python is read from its syntax tree, C++ and CUDA by patterns in the text without comments.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import attrs
from fib_schema import BuildSpec, Definition, SourceFile, SupportedBindings, SupportedLanguages
from fib_schema.display import counted

from .sources import CPP_SUFFIXES, CUDA_SUFFIXES, PYTHON_SUFFIXES, KernelFileError, parse, read_sources, with_suffix

DESTINATION, RETURN = "destination", "return"
STYLES = (DESTINATION, RETURN)
"""Calling styles: outputs are arguments that the kernel fills, or are returned."""
_PREFERRED = "run"
_GPU_ONLY = frozenset({"cuda", "cutlass", "tilelang", "cute_dsl", "cutile"})
_LANGUAGES = {
    "tilelang": SupportedLanguages.TILELANG,
    "helion": SupportedLanguages.HELION,
    "cutlass.cute": SupportedLanguages.CUTE_DSL,
    "cutlass": SupportedLanguages.CUTE_DSL,
    "cuda.tile": SupportedLanguages.CUTILE,
    "triton": SupportedLanguages.TRITON,
}
"""The languages by the module that a source imports; the first one found decides, because others build on Triton."""
_KERNEL_DECORATORS = frozenset({"jit", "kernel", "prim_func", "autotune", "heuristics"})
_COMMENT = re.compile(r"//[^\n]*|/\*.*?(?:\*/|\Z)|(\"(?:\\.|[^\"\\\n])*\"?)", re.S)
"""A missing end does not justify another try from the next letter: that takes the square of the length."""
_EXPORT = re.compile(r"^[ \t]*TVM_FFI_DLL_EXPORT_TYPED_FUNC\(\s*(\w+)\s*,\s*([\w:]+)?", re.M)
_PYBIND = re.compile(r"\bPYBIND11_MODULE\s*\(")
_PYBIND_FUNCTION = re.compile(r"\.def\(\s*\"(\w+)\"\s*,\s*&?\s*([\w:]+)?")
_CUTLASS = re.compile(r"^[ \t]*#[ \t]*include[ \t]*[<\"](?:cutlass|cute)/", re.M)
_MAX_TYPE = 400
_MAX_MATCHES = 1000
_MAX_EXPORTS = 32
"""Limit of each file; 32 candidates are ambiguous anyway, unless one is named `run`."""


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
    """A function that may be the entry point: a top-level one of Python, or one that C++ or CUDA exports."""

    name: str
    path: str
    line: int
    least: int | None
    """The number of arguments that it needs; None if the function is not found in the sources."""
    most: float | None
    names: tuple[str, ...]
    """Names of parameters, where they are known."""
    returns_value: bool | None
    binding: SupportedBindings | None = None
    """None is TVM-FFI, the default."""


def infer_kernel(path: Path, definition: Definition, choices: Choices | None = None) -> InferredKernel:
    """Read a kernel (see `read_sources`), and infer what `choices` leaves open.

    Raises:
        KernelFileError: The files cannot be read or parsed, or a rule has no answer or several.
    """
    return infer_sources(str(path), read_sources(path), definition, choices)


def infer_sources(
    place: str, sources: tuple[SourceFile, ...], definition: Definition, choices: Choices | None = None
) -> InferredKernel:
    """As `infer_kernel`, of sources that were read already; `place` names the file or folder in messages."""
    choices = choices or Choices()
    language, why_language = _language(place, sources, choices.language)
    if language.is_compiled:
        entries = _exports_of(sources)
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
        if any(_CUTLASS.search(without_comments(source.content)) for source in sources):
            return SupportedLanguages.CUTLASS, "a .cu file that includes CUTLASS"
        return SupportedLanguages.CUDA, "a .cu file"
    if cpp:
        return SupportedLanguages.CPP, f"a {Path(cpp[0].path).suffix} file"
    if not python:
        raise KernelFileError(place, "has headers only; add a file that ends in .py, .cu or .cpp")
    found = [_language_of(parse(source)) for source in python]
    return next((one for one in found if one[0] is not SupportedLanguages.PYTHON), found[0])


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


# -- Python ------------------------------------------------------------------------------------


def _language_of(module: ast.Module) -> tuple[SupportedLanguages, str]:
    """The language of a module, and the reason in words."""
    imported = set(_imports(module))
    for name, language in _LANGUAGES.items():
        if any(other == name or other.startswith(f"{name}.") for other in imported):
            return language, f"imports {name}"
    return SupportedLanguages.PYTHON, "a .py file that imports no kernel language"


def _python_entries(source: SourceFile, definition: Definition) -> Iterator[_Entry]:
    """The public top-level functions that are not kernels, which are decorated with `jit`, `kernel` and so on.

    A function `setup` gives the entry function further arguments, which do not count.
    """
    module = parse(source)
    functions = [node for node in module.body if isinstance(node, ast.FunctionDef)]
    has_setup = any(node.name == "setup" for node in functions)
    known = {*definition.inputs, *definition.outputs} if has_setup else None
    for node in functions:
        is_kernel = any(_decorator_name(decorator) in _KERNEL_DECORATORS for decorator in node.decorator_list)
        if not node.name.startswith("_") and not is_kernel:
            yield _python_entry(node, source.path, known)


def _python_entry(node: ast.FunctionDef, path: str, known: Collection[str] | None) -> _Entry:
    given = node.args
    positional = [argument.arg for argument in (*given.posonlyargs, *given.args)]
    optional = set(positional[len(positional) - len(given.defaults) :])
    optional |= {arg.arg for arg, default in zip(given.kwonlyargs, given.kw_defaults, strict=True) if default}
    names = [*positional, *(argument.arg for argument in given.kwonlyargs)]
    names = [name for name in names if known is None or name in known]
    least = sum(name not in optional for name in names)
    most = float("inf") if given.vararg or given.kwarg else len(names)
    return _Entry(node.name, path, node.lineno, least, most, tuple(names), any(_returned_values(node)))


def _imports(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _decorator_name(node: ast.expr) -> str:
    target = node.func if isinstance(node, ast.Call) else node
    return target.attr if isinstance(target, ast.Attribute) else target.id if isinstance(target, ast.Name) else ""


def _returned_values(node: ast.AST) -> Iterator[bool]:
    """True for each ``return`` of the function itself that has a value other than None."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Return):
            value = child.value
            yield value is not None and not (isinstance(value, ast.Constant) and value.value is None)
        elif not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.expr):
            yield from _returned_values(child)


# -- C++ and CUDA ------------------------------------------------------------------------------


def _exports_of(sources: Iterable[SourceFile]) -> list[_Entry]:
    """The functions that sources export through TVM-FFI or as an extension of PyTorch."""
    texts = {source.path: without_comments(source.content) for source in sources}
    found = []
    for path, text in texts.items():
        patterns: list[tuple[re.Pattern[str], SupportedBindings | None]] = [(_EXPORT, None)]
        if _PYBIND.search(text):
            patterns.append((_PYBIND_FUNCTION, SupportedBindings.TORCH))
        for pattern, binding in patterns:
            matches = list(islice(pattern.finditer(text), _MAX_MATCHES))
            for match in [m for m in matches if m[1] == "run"][:1] + matches[:_MAX_EXPORTS]:
                line = text.count("\n", 0, match.start()) + 1
                count, returns_value = _signature(match[2], [text[: match.start()], *texts.values()])
                found.append(_Entry(match[1], path, line, count, count, (), returns_value, binding))
    return list(dict.fromkeys(found))


def without_comments(text: str) -> str:
    """The text with comments as blanks; the lines stay where they are."""
    return _COMMENT.sub(lambda match: match[1] or re.sub(r"[^\n]", " ", match[0]), text)


def _signature(name: str | None, texts: Iterable[str]) -> tuple[int | None, bool | None]:
    """The number of parameters of a function and whether it returns a value; None and None if it is not found.

    Of several functions of the name the last one counts, so that a method of a class above is not taken for it.
    """
    if name is None:
        return None, None
    head = re.compile(rf"\b{re.escape(name.rpartition('::')[2])}\s{{0,40}}\(([^(){{}};]{{0,4000}})\)\s{{0,40}}\{{")
    for text in texts:
        for match in reversed(list(islice(head.finditer(text), _MAX_MATCHES))):
            before = text[max(match.start() - _MAX_TYPE, 0) : match.start()].split()
            return len(_parameters(match[1])), not before or before[-1] != "void"
    return None, None


def _parameters(text: str) -> list[str]:
    """The parameters between the commas that stand outside the arguments of templates."""
    while text != (text := re.sub(r"<[^<>]*>", "", text)):
        pass
    parameters = (part.strip() for part in text.split(","))
    return [part for part in parameters if part not in ("", "void")]
