"""Inference of what a kernel file is: language, entry point and calling style. Nothing of the file is run.

Python is read from its syntax tree; C++ and CUDA exports by patterns in the text without comments, not their types.
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
_PREFERRED = ("run", "kernel_function")
"""Names of entry points by rank; the second is that of KernelAgent."""
MODEL_ENTRY = """import problem
from {module} import {model}

problem.Model = {model}
run = problem.run
"""
"""An entry file for a module in place of that of a reference in KernelBench's form, which is `problem`."""
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
_EXPORT = re.compile(r"^[ \t]*TVM_FFI_DLL_EXPORT_TYPED_FUNC\(\s*(\w+)\s*,", re.M)
_PYBIND = re.compile(r"\bPYBIND11_MODULE\s*\(")
_PYBIND_FUNCTION = re.compile(r"\.def\(\s*\"(\w+)\"\s*,")
_CUTLASS = re.compile(r"^[ \t]*#[ \t]*include[ \t]*[<\"](?:cutlass|cute)/", re.M)
_NO_EXPORT = (
    "exports no function; end the file with TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, YourFunction); "
    "(and #include <tvm/ffi/function.h>)"
)
_NO_FUNCTION = "has no function that can be called; add a top-level function named run (def, not async def)"
_MAX_EXPORTS = 100
"""Limit of each file; as many candidates are ambiguous anyway, unless one is named `run`."""


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
    styles: tuple[bool, ...]
    """Whether it may fill outputs that are arguments, the likelier answer first; empty if no style suits it."""
    takes: str = ""
    """The number of arguments of a Python function."""
    binding: SupportedBindings | None = None
    """None is TVM-FFI, the default."""


def infer_kernel(path: Path, definition: Definition, choices: Choices | None = None) -> InferredKernel:
    """Read a kernel (see `read_sources`), and infer what `choices` leaves open; `KernelFileError` if that fails."""
    return infer_sources(str(path), read_sources(path), definition, choices)


def infer_sources(
    place: str, sources: tuple[SourceFile, ...], definition: Definition, choices: Choices | None = None
) -> InferredKernel:
    """As `infer_kernel`, of sources that were read already; `place` names the file or folder in messages."""
    choices = choices or Choices()
    language = SupportedLanguages(choices.language) if choices.language is not None else _language(place, sources)
    if language.is_compiled:
        entries = _exports_of(sources)
    else:
        entries = [
            entry for source in with_suffix(sources, PYTHON_SUFFIXES) for entry in _python_entries(source, definition)
        ]
    is_open = choices.entry_point is None and not any(entry.name in _PREFERRED for entry in entries)
    if is_open and not language.is_compiled and (added := _model_entry(sources, definition)):
        sources, entries = (*sources, *added), list(_python_entries(added[0], definition))
    entry = _entry(place, entries, language, choices.entry_point)
    spec = BuildSpec(
        language=language,
        target_hardware=_hardware(language) if choices.hardware is None else choices.hardware,
        entry_point=f"{entry.path}::{entry.name}",
        destination_passing_style=_is_destination(place, entry, definition, choices.style),
        binding=entry.binding,
    )
    return InferredKernel(sources, spec)


def _hardware(language: SupportedLanguages) -> tuple[str, ...]:
    if language in _GPU_ONLY:
        return ("cuda",)
    return ("cpu",) if language is SupportedLanguages.CPP else ("cpu", "cuda")


def _language(place: str, sources: Sequence[SourceFile]) -> SupportedLanguages:
    python, cuda, cpp = (with_suffix(sources, kind) for kind in (PYTHON_SUFFIXES, CUDA_SUFFIXES, CPP_SUFFIXES))
    if python and (cuda or cpp):
        native = (cuda or cpp)[0].path
        problem = f"the folder has Python ({python[0].path}) and native files ({native}); decide with --language"
        raise KernelFileError(place, problem)
    if cuda:
        is_cutlass = any(_CUTLASS.search(without_comments(source.content)) for source in sources)
        return SupportedLanguages.CUTLASS if is_cutlass else SupportedLanguages.CUDA
    if cpp:
        return SupportedLanguages.CPP
    if not python:
        raise KernelFileError(place, "no file ends in .py, .cu or .cpp; add one, such as kernel.py")
    found = (_language_of(parse(source)) for source in python)
    return next((one for one in found if one is not SupportedLanguages.PYTHON), SupportedLanguages.PYTHON)


def _entry(place: str, entries: Sequence[_Entry], language: SupportedLanguages, chosen: str | None) -> _Entry:
    if chosen is not None:
        return _chosen_entry(place, entries, chosen)
    if not entries:
        raise KernelFileError(place, _NO_EXPORT if language.is_compiled else _NO_FUNCTION)
    named = ([entry for entry in entries if entry.name == name] for name in _PREFERRED)
    preferred = next(filter(None, named), [])
    fitting = [entry for entry in entries if entry.styles]
    found = preferred or fitting or list(entries)
    if len(found) > 1:
        shown = ", ".join(f"{entry.path}::{entry.name} (line {entry.line})" for entry in found[:8])
        problem = f"{len(found)} functions may be the entry point: {shown}; choose one with --entry, or name it run"
        raise KernelFileError(place, problem)
    return found[0]


def _chosen_entry(place: str, entries: Sequence[_Entry], chosen: str) -> _Entry:
    file, _, name = chosen.rpartition("::")
    found = [entry for entry in entries if entry.name == name and file in ("", entry.path)]
    if len(found) == 1:
        return found[0]
    problem = "it is in several files" if found else "there is no such function"
    have = ", ".join(f"{entry.path}::{entry.name}" for entry in entries) or "none"
    raise KernelFileError(place, f"--entry {chosen}: {problem}; the functions are: {have}")


def _is_destination(place: str, entry: _Entry, definition: Definition, chosen: str | None) -> bool:
    if chosen is not None:
        return chosen == DESTINATION
    if entry.styles:
        return entry.styles[0]
    inputs, everything = ", ".join(definition.inputs), ", ".join((*definition.inputs, *definition.outputs))
    problem = (
        f"{entry.name} takes {entry.takes}, and the definition has {_listed('input', definition.inputs)} and "
        f"{_listed('output', definition.outputs)}; "
        f"write {entry.name}({inputs}) that returns the outputs, or {entry.name}({everything}) that fills them"
    )
    raise KernelFileError(f"{Path(place).name}:{entry.line}", problem)


def _listed(kind: str, names: Collection[str]) -> str:
    return f"{len(names)} {kind}{'' if len(names) == 1 else 's'} ({', '.join(names)})"


# -- Python ------------------------------------------------------------------------------------


def _language_of(module: ast.Module) -> SupportedLanguages:
    imported = set(_imports(module))
    for name, language in _LANGUAGES.items():
        if any(other == name or other.startswith(f"{name}.") for other in imported):
            return language
    return SupportedLanguages.PYTHON


def _python_entries(source: SourceFile, definition: Definition) -> Iterator[_Entry]:
    """The public top-level functions that are not kernels, which are decorated with `jit`, `kernel` and so on.

    A function `setup` gives the entry function further arguments, which do not count. What is assigned to `run`, such
    as a module or a compiled function, takes the inputs and returns the outputs, unless the user says otherwise.
    """
    module = parse(source)
    functions = [node for node in module.body if isinstance(node, ast.FunctionDef)]
    has_setup = any(node.name == "setup" for node in functions)
    for node in functions:
        is_kernel = any(_decorator_name(decorator) in _KERNEL_DECORATORS for decorator in node.decorator_list)
        if not node.name.startswith("_") and not is_kernel:
            yield _python_entry(node, source.path, definition, has_setup=has_setup)
    assigned = [] if any(node.name == "run" for node in functions) else module.body
    for line in assigned:
        if isinstance(line, ast.Assign) and "run" in (getattr(target, "id", "") for target in line.targets):
            yield _Entry("run", source.path, line.lineno, (False,))


def _model_entry(sources: Iterable[SourceFile], definition: Definition) -> tuple[SourceFile, ...]:
    """Sources that call a module of a solution, if the reference has one to replace."""
    python = with_suffix(sources, PYTHON_SUFFIXES)
    models = ((source.path, name) for source in python for name in ("ModelNew", "Model") if name in _classes(source))
    path, model = next(models, ("", ""))
    reference = SourceFile("problem.py", definition.reference)
    if not model or "Model" not in _classes(reference):
        return ()
    entry = MODEL_ENTRY.format(module=path.removesuffix(".py").replace("/", "."), model=model)
    return SourceFile("model_entry.py", entry), reference


def _classes(source: SourceFile) -> set[str]:
    return {node.name for node in parse(source).body if isinstance(node, ast.ClassDef)}


def _python_entry(node: ast.FunctionDef, path: str, definition: Definition, *, has_setup: bool) -> _Entry:
    given, ours = node.args, {*definition.inputs, *definition.outputs}
    positional = [argument.arg for argument in (*given.posonlyargs, *given.args)]
    optional = set(positional[len(positional) - len(given.defaults) :])
    optional |= {arg.arg for arg, default in zip(given.kwonlyargs, given.kw_defaults, strict=True) if default}
    names = [*positional, *(argument.arg for argument in given.kwonlyargs)]
    names = [name for name in names if not has_setup or name in ours]
    least = sum(name not in optional for name in names)
    most = float("inf") if given.vararg or given.kwarg else len(names)
    counts = {False: len(definition.inputs), True: len(ours)}
    fitting = [style for style, count in counts.items() if least <= count <= most]
    likelier = any(name in names for name in definition.outputs) or not any(_returned_values(node))
    styles = tuple(sorted(fitting, key=lambda style: style is not likelier))
    takes = counted(least, "argument") if least == most else f"{least} to {most} arguments"
    return _Entry(node.name, path, node.lineno, styles, takes)


def _returned_values(node: ast.AST) -> Iterator[bool]:
    """Whether each return of a function, not of functions within it, has a value."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Return):
            yield child.value is not None and not (isinstance(child.value, ast.Constant) and child.value.value is None)
        elif not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.expr):
            yield from _returned_values(child)


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


# -- C++ and CUDA ------------------------------------------------------------------------------


def _exports_of(sources: Iterable[SourceFile]) -> list[_Entry]:
    found = []
    for source in sources:
        text = without_comments(source.content)
        patterns: list[tuple[re.Pattern[str], SupportedBindings | None]] = [(_EXPORT, None)]
        if _PYBIND.search(text):
            patterns.append((_PYBIND_FUNCTION, SupportedBindings.TORCH))
        for pattern, binding in patterns:
            for match in islice(pattern.finditer(text), _MAX_EXPORTS):
                line = text.count("\n", 0, match.start()) + 1
                found.append(_Entry(match[1], source.path, line, (binding is None,), binding=binding))
    return found


def without_comments(text: str) -> str:
    """The text with comments as blanks; the lines stay where they are."""
    return _COMMENT.sub(lambda match: match[1] or re.sub(r"[^\n]", " ", match[0]), text)
