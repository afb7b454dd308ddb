"""PythonBuilder and its subclasses. Solutions in Python and in languages embedded in it.

Building imports the solution, so its top-level code runs in the calling process. Embedded languages compile kernels
when they first run. The subclasses only state which package their language needs. Without a GPU, the interpreters of
Triton and Helion can run kernels (see `interpreter_environment`), and TileLang can compile for ``target="c"``.

The sources become a package with a unique name that is not on ``sys.path``. Its modules are compiled from the text of
the solution: no file of the cache is executed, neither a source that was changed there nor bytecode. The files are
there for tracebacks, and for sources that read data beside them. Relative imports work as in any package. Absolute
imports of a solution's own files (``import helper``) work too: modules of such a solution get an ``__import__`` that
searches the solution's files first. So the solution does not find a ``helper`` of the rest of the process, nor the
other way round.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import linecache
import os
import re
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from types import CodeType, ModuleType, TracebackType
from typing import Any, ClassVar

from fib_schema import Definition, Solution, SupportedLanguages
from fib_schema.syntax import parse_source

from ..builder import Builder
from ..cache import encoded, ensure_sources, unwritable
from ..errors import BuildProblem
from ..runnable import PASSING, RETURNING, SETUP, Runnable, RunnableMetadata, adapt
from ..toolchain import DEPENDENCIES, MissingTool, dependency_name


class PythonBuilder(Builder):
    """Imports the sources as a package of their own and returns its entry function."""

    name = "python"
    language: ClassVar[SupportedLanguages] = SupportedLanguages.PYTHON
    requirement: ClassVar[tuple[str, str] | None] = None
    """The module that solutions import, such as ``cuda.tile``, and the requirement for pip."""

    def __init__(self) -> None:
        super().__init__(f"fib_{self.name}_", self.name)

    @classmethod
    def unavailable_reason(cls) -> str | None:
        """The package that is not installed, with the remedy; None if nothing is missing."""
        if cls.requirement is None:
            return None
        name, install = cls.requirement
        package, _, module = name.partition(".")
        spec = find_spec(package)
        if module and spec is not None:  # find_spec(name) would import the package
            spec = PathFinder.find_spec(name, spec.submodule_search_locations or ())
        return None if spec is not None else f"{name} is not installed; install {install!r}"

    def can_build(self, solution: Solution) -> bool:
        """Whether the solution is in this builder's language; a binding is ignored."""
        return solution.spec.language is self.language

    def build(self, definition: Definition, solution: Solution) -> Runnable:
        """Import a solution.

        Raises:
            BuildError: The entry file is not a Python file, the import fails, or the entry point is missing, not
                callable or has other parameters than the definition.
        """
        try:
            return self._import(definition, solution)
        except BuildProblem as problem:
            raise problem.of(solution, self.name) from problem

    def _import(self, definition: Definition, solution: Solution) -> Runnable:
        path, spec = solution.get_entry_path(), solution.spec
        if not path.endswith(".py"):
            raise BuildProblem(f"the entry file {path!r} is not a Python file; its name must end in '.py'")
        _check_dependencies(solution)
        package = self.package_name(solution)
        try:
            root = self.make_build_folder()
        except OSError as error:
            raise unwritable(self.build_folder, error) from error
        folder = ensure_sources(root, package, solution.sources)
        module, unload = _import_entry(package, folder, solution)
        is_dps, setup = spec.destination_passing_style, getattr(module, "setup", None)
        has_setup = callable(setup) and solution.get_entry_symbol() != "setup"
        try:
            style = PASSING if is_dps else RETURNING
            function = adapt(_entry_function(module, solution), definition, style, has_setup=has_setup)
            setup = adapt(setup, definition, SETUP) if callable(setup) and has_setup else None
        except BuildProblem:
            unload()
            raise
        misc = {"package": package, "folder": str(folder), "entry_point": spec.entry_point}
        metadata = RunnableMetadata(self.name, definition.name, solution.name, is_dps, definition, misc)
        return Runnable(function, metadata, unload, setup=setup)


class TritonBuilder(PythonBuilder):
    """Imports Triton solutions as PythonBuilder does."""

    name = "triton"
    language = SupportedLanguages.TRITON
    requirement = ("triton", "fib-compile[triton]")


class TileLangBuilder(PythonBuilder):
    """Imports TileLang solutions as PythonBuilder does."""

    name = "tilelang"
    language = SupportedLanguages.TILELANG
    requirement = ("tilelang", "fib-compile[tilelang]")


class HelionBuilder(PythonBuilder):
    """Imports Helion solutions as PythonBuilder does."""

    name = "helion"
    language = SupportedLanguages.HELION
    requirement = ("helion", "fib-compile[helion]")


class CuTileBuilder(PythonBuilder):
    """Imports cuTile solutions as PythonBuilder does."""

    name = "cutile"
    language = SupportedLanguages.CUTILE
    requirement = ("cuda.tile", "fib-compile[cutile]")


class CuteDSLBuilder(PythonBuilder):
    """Imports CuTe DSL solutions as PythonBuilder does."""

    name = "cute_dsl"
    language = SupportedLanguages.CUTE_DSL
    requirement = ("cutlass.cute", "fib-compile[cute-dsl]")


def _check_dependencies(solution: Solution) -> None:
    """`MissingTool` if a dependency of a Python solution is not installed; versions are not compared."""
    from importlib.metadata import PackageNotFoundError, distribution

    for text in solution.spec.dependencies:
        name = dependency_name(text)
        if name in DEPENDENCIES or (name.isidentifier() and find_spec(name)):
            continue
        try:
            distribution(name)
        except PackageNotFoundError:
            raise MissingTool(f"dependency {name!r} is not installed; install it: pip install {name}") from None


# -- import ----------------------------------------------------------------------------------------

_COMPILER_ERROR = re.compile(r"^(?:\S*/)?([^\s/:(]+[:(]\S* (?:fatal error|error|undefined reference)\b)", re.MULTILINE)
_import_lock = threading.RLock()


def _renew_after_fork() -> None:
    """Free the lock in a forked child: a thread that held it does not exist there."""
    global _import_lock  # noqa: PLW0603
    _import_lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_after_fork)


def _import_entry(package: str, folder: Path, solution: Solution) -> tuple[ModuleType, Callable[[], None]]:
    """Import the entry file of a solution; returns the module, and a function that removes all modules.

    Raises:
        BuildProblem: The import failed.
    """
    module_name = _module_name(package, solution)
    with _import_lock:
        for name in _modules(package):  # left by an earlier import
            del sys.modules[name]
        for finder in list(sys.meta_path):
            if isinstance(finder, _SolutionModules) and finder.package == package:
                sys.meta_path.remove(finder)
        own = _SolutionModules(package, folder, solution)
        sys.meta_path.insert(0, own)
        try:
            module = importlib.import_module(module_name)
        except (Exception, SystemExit) as error:
            _unload(own, _modules(package))
            raise _import_problem(error, folder, solution) from error
        modules = _modules(package)
    return module, lambda: _unload(own, modules)


def _module_name(package: str, solution: Solution) -> str:
    parts = PurePosixPath(solution.get_entry_path()).with_suffix("").parts
    if any("." in part for part in parts):
        path = solution.get_entry_path()
        raise BuildProblem(f"the entry file {path!r} cannot be imported: rename it, without dots before '.py'")
    return ".".join((package, *(parts[:-1] if parts[-1] == "__init__" else parts)))


def _entry_function(module: ModuleType, solution: Solution) -> Any:
    symbol = solution.get_entry_symbol()
    if not hasattr(module, symbol):
        names = sorted(name for name, value in vars(module).items() if callable(value) and not name.startswith("_"))
        exports = ", ".join(names) or "nothing callable"
        raise BuildProblem(f"{solution.get_entry_path()!r} has no {symbol!r}; it exports {exports}")
    function = getattr(module, symbol)
    if not callable(function):
        raise BuildProblem(f"entry point {solution.spec.entry_point!r} is a {type(function).__name__!r}, not callable")
    return function


def _import_problem(error: BaseException, folder: Path, solution: Solution) -> BuildProblem:
    start = found.start(1) if (found := _COMPILER_ERROR.search(str(error))) else 0
    problem = f"failed with {type(error).__name__}: {str(error)[start:]}"
    if isinstance(error, SystemExit):
        problem = f"called exit with code {error.code!r}; remove the call"
    problem = f"importing {solution.get_entry_path()!r} {problem}"
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


def _unload(own: _SolutionModules, modules: Mapping[str, ModuleType]) -> None:
    """Remove the modules of an import, except modules that a later import has replaced."""
    with _import_lock:
        if own in sys.meta_path:
            sys.meta_path.remove(own)
            own.forget_lines()
        for name, module in modules.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]


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


class _SolutionModules:
    """The modules of one solution, which are made from its text: a finder of the meta path until it is unloaded.

    Modules of a solution that imports its own files by absolute names get an ``__import__`` that finds these first.
    """

    def __init__(self, package: str, folder: Path, solution: Solution) -> None:
        self.package = package
        self._folder = folder
        self._texts = {source.path: encoded(source) for source in solution.sources if source.path.endswith(".py")}
        texts = [source.content for source in solution.sources if source.path in self._texts]
        self._modules = _own_modules(package, solution)
        is_absolute = len(texts) > 1 and not self._modules.keys().isdisjoint(
            name for text in texts for name in _imports(text)
        )
        self._builtins = {**vars(builtins), "__import__": self._import} if is_absolute else None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a module of the solution; None for all others.

        Raises:
            ModuleNotFoundError: The solution has no such module. Other finders would search the folder, in which
                somebody else may have put one.
        """
        del path, target
        package, _, stem = fullname.replace(".", "/").partition("/")
        if package != self.package:
            return None
        for file in (f"{stem}/__init__.py".removeprefix("/"), f"{stem}.py"):
            if (text := self._texts.get(file)) is not None:
                return self._file_spec(fullname, file, text)
        if stem and not any(known.startswith(f"{stem}/") for known in self._texts):
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        spec = ModuleSpec(fullname, None, is_package=True)
        spec.submodule_search_locations = [str(self._folder / stem)]
        return spec

    def forget_lines(self) -> None:
        """Remove the lines that tracebacks show."""
        for file in self._texts:
            linecache.cache.pop(str(self._folder / file), None)

    def _file_spec(self, fullname: str, file: str, text: bytes) -> ModuleSpec:
        path = str(self._folder / file)
        is_package = PurePosixPath(file).name == "__init__.py"
        spec = ModuleSpec(fullname, _Loader(fullname, path, text, self._builtins), origin=path, is_package=is_package)
        spec.has_location = True
        if is_package:
            spec.submodule_search_locations = [str(PurePosixPath(path).parent)]
        # `inspect.getsource`, with which Triton reads its kernels, would read the file otherwise.
        lines = text.decode("utf-8", "replace").splitlines(keepends=True)
        linecache.cache[path] = (len(text), None, lines, path)
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
    """Executes a text that is held in memory, with given builtins."""

    def __init__(self, fullname: str, path: str, text: bytes, own_builtins: Mapping[str, Any] | None) -> None:
        super().__init__(fullname, path)
        self._text = text
        self._builtins = own_builtins

    def get_data(self, path: str) -> bytes:
        return self._text if path == self.path else super().get_data(path)

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002 - Python's interface
        code: CodeType = compile(self._text, self.path, "exec", dont_inherit=True)
        return code

    def exec_module(self, module: ModuleType) -> None:
        if self._builtins is not None:
            vars(module)["__builtins__"] = dict(self._builtins)
        super().exec_module(module)
