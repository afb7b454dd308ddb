"""Facts about Python sources, read from the syntax tree: nothing is imported or run."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import attrs
from fib_schema import SourceFile, SupportedLanguages
from fib_schema.syntax import parse_source

from .errors import KernelFileError

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


@attrs.frozen
class Function:
    """A top-level function that may be an entry point."""

    name: str
    path: str
    line: int
    required: tuple[str, ...]
    """The parameters without defaults."""
    optional: tuple[str, ...]
    """The parameters with defaults."""
    is_variadic: bool
    returns_value: bool

    @property
    def parameters(self) -> tuple[str, ...]:
        """All named parameters."""
        return (*self.required, *self.optional)


def parse(source: SourceFile) -> ast.Module:
    """Parse a source file.

    Raises:
        KernelFileError: It does not parse; the error has the line and shows it.
    """
    try:
        return parse_source(source.content)
    except SyntaxError as error:
        place = f"{source.path}:{error.lineno}" if error.lineno else source.path
        lines = source.content.splitlines()
        shown = lines[error.lineno - 1] if error.lineno and error.lineno <= len(lines) else ""
        excerpt = f"\n  {error.lineno} | {shown[:200]}" if shown else ""
        raise KernelFileError(place, f"does not parse: {error.msg}{excerpt}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise KernelFileError(source.path, f"does not parse: {error}") from None


def language_of(module: ast.Module) -> tuple[SupportedLanguages, str]:
    """The language of a module, and the reason in words."""
    imported = set(_imports(module))
    for name, language in _LANGUAGES.items():
        if any(other == name or other.startswith(f"{name}.") for other in imported):
            return language, f"imports {name}"
    return SupportedLanguages.PYTHON, "a .py file that imports no kernel language"


def functions_of(module: ast.Module, path: str) -> list[Function]:
    """The public top-level functions that are not kernels, which are decorated with `jit`, `kernel` and so on."""
    return [
        _function(node, path)
        for node in module.body
        if isinstance(node, ast.FunctionDef)
        and not node.name.startswith("_")
        and not any(_decorator_name(decorator) in _KERNEL_DECORATORS for decorator in node.decorator_list)
    ]


def has_setup(module: ast.Module) -> bool:
    """Whether the module has a function `setup`, which gives the entry function further arguments."""
    return any(isinstance(node, ast.FunctionDef) and node.name == "setup" for node in module.body)


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


def _function(node: ast.FunctionDef, path: str) -> Function:
    given = node.args
    positional = [argument.arg for argument in (*given.posonlyargs, *given.args)]
    first_optional = len(positional) - len(given.defaults)
    keyword = list(zip((argument.arg for argument in given.kwonlyargs), given.kw_defaults, strict=True))
    return Function(
        node.name,
        path,
        node.lineno,
        (*positional[:first_optional], *(name for name, default in keyword if default is None)),
        (*positional[first_optional:], *(name for name, default in keyword if default is not None)),
        given.vararg is not None or given.kwarg is not None,
        any(_returned_values(node)),
    )


def _returned_values(node: ast.AST) -> Iterator[bool]:
    """True for each ``return`` of the function itself that has a value other than None."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Return):
            value = child.value
            yield value is not None and not (isinstance(value, ast.Constant) and value.value is None)
        elif not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.expr):
            yield from _returned_values(child)
