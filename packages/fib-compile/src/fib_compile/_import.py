"""Import of a solution's sources as a package of its own.

The package has a unique name and is not on ``sys.path``. Relative imports work as in any package. Absolute imports of a
solution's own files (``import helper``) work too: modules of such a solution get an ``__import__`` that searches the
solution's files first, so that neither finds a ``helper`` of the other, the solution or the rest of the process.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path, PurePosixPath
from types import ModuleType, TracebackType
from typing import Any

import attrs
from fib_schema import Solution
from fib_schema.syntax import parse_source

from .errors import BuildProblem
from .forking import ForkSafeLock

_import_lock = ForkSafeLock()


@attrs.frozen
class ImportedEntry:
    """An entry function, its ``setup``, and a function that removes the modules."""

    function: Any
    setup: Callable[..., Any] | None
    unload: Callable[[], None]


def import_entry(package: str, folder: Path, solution: Solution) -> ImportedEntry:
    """Import the entry file of a solution and find its entry function.

    Raises:
        BuildProblem: The import failed, or the symbol is missing or not callable.
    """
    module_name = _module_name(package, solution)
    with _import_lock:
        finder = _make_finder(package, solution)
        _forget(package, folder)
        if finder:
            sys.meta_path.insert(0, finder)
        try:
            module = _import(package, folder, module_name)
        except (Exception, SystemExit) as error:
            _unload(finder, _modules(package))
            raise _import_problem(error, folder, solution) from error
        modules = _modules(package)
    function = _entry_function(module, solution)
    setup = getattr(module, "setup", None)
    is_setup = callable(setup) and solution.get_entry_symbol() != "setup"
    return ImportedEntry(function, setup if is_setup else None, lambda: _unload(finder, modules))


def _module_name(package: str, solution: Solution) -> str:
    parts = PurePosixPath(solution.get_entry_path()).with_suffix("").parts
    if any("." in part for part in parts):
        path = solution.get_entry_path()
        raise BuildProblem(f"the entry file {path!r} cannot be imported: rename it, without dots before '.py'")
    return ".".join((package, *(parts[:-1] if parts[-1] == "__init__" else parts)))


def _import(package: str, folder: Path, module_name: str) -> ModuleType:
    init = folder / "__init__.py"
    if init.exists():
        spec = importlib.util.spec_from_file_location(package, init, submodule_search_locations=[str(folder)])
    else:
        spec = ModuleSpec(package, None, is_package=True)
        spec.submodule_search_locations = [str(folder)]
    assert spec is not None
    root = importlib.util.module_from_spec(spec)
    sys.modules[package] = root
    if spec.loader is not None:
        spec.loader.exec_module(root)
    return importlib.import_module(module_name)


def _entry_function(module: ModuleType, solution: Solution) -> Any:
    symbol = solution.get_entry_symbol()
    if not hasattr(module, symbol):
        names = sorted(name for name, value in vars(module).items() if callable(value) and not name.startswith("_"))
        exports = ", ".join(names) or "nothing callable"
        raise BuildProblem(f"{solution.get_entry_path()!r} has no {symbol!r}; it exports {exports}")
    function = getattr(module, symbol)
    if not callable(function):
        kind = type(function).__name__
        raise BuildProblem(f"entry point {solution.spec.entry_point!r} is not callable but of type {kind!r}")
    return function


def _import_problem(error: BaseException, folder: Path, solution: Solution) -> BuildProblem:
    what = f"importing {solution.get_entry_path()!r}"
    problem = f"{what} failed with {type(error).__name__}: {error}"
    if isinstance(error, SystemExit):
        problem = f"{what} called exit with code {error.code!r}; remove the call"
    return BuildProblem(problem, _own_lines(error, error.__traceback__, folder))


def _own_lines(error: BaseException, trace: TracebackType | None, folder: Path) -> list[str]:
    frames = [frame for frame in traceback.extract_tb(trace) if frame.filename.startswith(f"{folder}/")]
    lines = traceback.format_list(frames)
    if isinstance(error, SyntaxError):
        lines += traceback.format_exception_only(error)
    return [line for entry in lines for line in entry.replace(f"{folder}/", "").splitlines()]


def _modules(package: str) -> dict[str, ModuleType]:
    names = [name for name in list(sys.modules) if name.startswith(package)]
    return {name: sys.modules[name] for name in names if name == package or name[len(package)] == "."}


def _forget(package: str, folder: Path) -> None:
    """Remove the modules of an earlier import, and the directory listings that Python cached."""
    for name in _modules(package):
        del sys.modules[name]
    for path in [path for path in sys.path_importer_cache if path.startswith(str(folder))]:
        del sys.path_importer_cache[path]


def _unload(finder: _SolutionFinder | None, modules: Mapping[str, ModuleType]) -> None:
    """Remove the finder and the modules of an import, except modules that a later import has replaced."""
    with _import_lock:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)
        for name, module in modules.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]


def _make_finder(package: str, solution: Solution) -> _SolutionFinder | None:
    """A finder for a solution that imports its own files by absolute names; None for others."""
    texts = [source.content for source in solution.sources if source.path.endswith(".py")]
    if len(texts) == 1:
        return None
    modules = _own_modules(package, solution)
    imported = {name for text in texts for name in _imports(text)}
    return _SolutionFinder(package, modules) if imported & modules.keys() else None


def _own_modules(package: str, solution: Solution) -> dict[str, str]:
    """Full module names, by the top-level names that a script in the entry file's folder could import."""
    names: dict[str, str] = {}
    entry_folder = PurePosixPath(solution.get_entry_path()).parent.parts
    for base in ((), entry_folder):
        for source in solution.sources:
            parts = PurePosixPath(source.path).parts
            if source.path.endswith(".py") and parts[: len(base)] == base:
                top = parts[len(base)].removesuffix(".py")
                names[top] = ".".join((package, *base, top))
    names.pop("__init__", None)
    return names


def _imports(text: str) -> set[str]:
    try:
        tree = parse_source(text)
    except (SyntaxError, ValueError, RecursionError):
        return set()  # the import itself reports the error
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.partition(".")[0])
    return names


class _SolutionFinder:
    """A meta path finder for one package, whose modules import the solution's files first."""

    def __init__(self, package: str, modules: Mapping[str, str]) -> None:
        self._prefix = f"{package}."
        self._modules = modules
        self._builtins = {**vars(builtins), "__import__": self._import}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(self._prefix):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = _Loader(fullname, spec.loader.path, self._builtins)
        return spec

    def _import(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        top, _, rest = name.partition(".")
        module = self._modules.get(top) if level == 0 else None
        if module is None or (globals or {}).get("__name__") == module:  # a file never imports itself by its own name
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        leaf = builtins.__import__(f"{module}.{rest}" if rest else module, globals, locals, ("__name__",), 0)
        if not fromlist:
            return sys.modules[module]
        return builtins.__import__(leaf.__name__, globals, locals, fromlist, 0)


class _Loader(SourceFileLoader):
    """Executes a module with given builtins."""

    def __init__(self, fullname: str, path: str, own_builtins: Mapping[str, Any]) -> None:
        super().__init__(fullname, path)
        self._builtins = own_builtins

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__builtins__"] = dict(self._builtins)
        super().exec_module(module)
