"""Imports a solution's sources as a package of their own.

The package has a name that no one else uses and is no part of ``sys.path``. Relative imports work
as in any package. Absolute imports of a solution's own files (``import helper``) work too: a module
that contains one gets builtins with an ``__import__`` that looks among the solution's files first,
so that nobody else's ``helper`` is found, and nobody else finds this one.
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

from .errors import BuildError
from .forking import ForkSafeLock

_import_lock = ForkSafeLock()


@attrs.frozen
class ImportedEntry:
    """An entry function, the ``setup`` beside it, and a way to forget the modules again."""

    function: Any
    setup: Callable[..., Any] | None
    unload: Callable[[], None]


def import_entry(package: str, folder: Path, solution: Solution, builder: str) -> ImportedEntry:
    """Import the entry file of a solution and take its entry function.

    Raises:
        BuildError: The import failed, or the symbol is missing or not callable.
    """
    module_name = _module_name(package, solution, builder)
    with _import_lock:
        finder = _own_finder(package, solution)
        _forget(package, folder)
        if finder:
            sys.meta_path.insert(0, finder)
        try:
            module = _import(package, folder, module_name)
        except (Exception, SystemExit) as error:
            _unload(finder, _modules(package))
            raise _import_error(error, folder, solution, builder) from error
        modules = _modules(package)
    function = _entry_function(module, solution, builder)
    setup = getattr(module, "setup", None)
    is_setup = callable(setup) and solution.get_entry_symbol() != "setup"
    return ImportedEntry(function, setup if is_setup else None, lambda: _unload(finder, modules))


def _module_name(package: str, solution: Solution, builder: str) -> str:
    parts = PurePosixPath(solution.get_entry_path()).with_suffix("").parts
    if any("." in part for part in parts):
        problem = (
            f"the entry file {solution.get_entry_path()!r} cannot be imported: rename it, without dots before '.py'"
        )
        raise BuildError(solution.name, builder, problem)
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


def _entry_function(module: ModuleType, solution: Solution, builder: str) -> Any:
    symbol = solution.get_entry_symbol()
    if not hasattr(module, symbol):
        names = sorted(name for name, value in vars(module).items() if callable(value) and not name.startswith("_"))
        exports = ", ".join(names) or "nothing callable"
        problem = f"{solution.get_entry_path()!r} has no {symbol!r}; it exports {exports}"
        raise BuildError(solution.name, builder, problem)
    function = getattr(module, symbol)
    if not callable(function):
        problem = f"entry point {solution.spec.entry_point!r} is not callable but of type {type(function).__name__!r}"
        raise BuildError(solution.name, builder, problem)
    return function


def _import_error(error: BaseException, folder: Path, solution: Solution, builder: str) -> BuildError:
    kind = type(error).__name__
    problem = f"importing {solution.get_entry_path()!r} failed with {kind}: {error}"
    if isinstance(error, SystemExit):
        problem = f"importing {solution.get_entry_path()!r} called exit with code {error.code!r}; remove that"
    return BuildError(solution.name, builder, problem, tuple(_own_lines(error, error.__traceback__, folder)))


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
    """Forget an earlier import, and what Python remembers about the folder's files."""
    for name in _modules(package):
        del sys.modules[name]
    for place in [place for place in sys.path_importer_cache if place.startswith(str(folder))]:
        del sys.path_importer_cache[place]


def _unload(finder: _OwnFiles | None, modules: Mapping[str, ModuleType]) -> None:
    """Remove what an import added, unless a later import of the same package has replaced it."""
    with _import_lock:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)
        for name, module in modules.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]


def _own_finder(package: str, solution: Solution) -> _OwnFiles | None:
    """A finder for solutions that import their own files by absolute names; others need none."""
    texts = [source.content for source in solution.sources if source.path.endswith(".py")]
    if len(texts) == 1:
        return None
    places = _own_names(package, solution)
    imported = {name for text in texts for name in _imports(text)}
    return _OwnFiles(package, places) if imported & places.keys() else None


def _own_names(package: str, solution: Solution) -> dict[str, str]:
    """Top-level names that a script in the entry file's folder could import -> full module names."""
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
        return set()  # the import will say it better
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.partition(".")[0])
    return names


class _OwnFiles:
    """A meta path finder for one package, whose modules see the solution's files first."""

    def __init__(self, package: str, places: Mapping[str, str]) -> None:
        self._prefix = f"{package}."
        self._places = places
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
        place = self._places.get(top) if level == 0 else None
        if place is None or (globals or {}).get("__name__") == place:  # no file means itself by its own name
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        leaf = builtins.__import__(f"{place}.{rest}" if rest else place, globals, locals, ("__name__",), 0)
        if not fromlist:
            return sys.modules[place]
        return builtins.__import__(leaf.__name__, globals, locals, fromlist, 0)


class _Loader(SourceFileLoader):
    """Runs a module with the builtins given."""

    def __init__(self, fullname: str, path: str, names: Mapping[str, Any]) -> None:
        super().__init__(fullname, path)
        self._builtins = names

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__builtins__"] = dict(self._builtins)
        super().exec_module(module)
