"""NativeBuilder. Compiled solutions: plan, cache lookup, lock, second lookup, compilation, publication, loading."""

from __future__ import annotations

import os
import shutil
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import attrs
from fib_schema import Definition, Solution, SupportedBindings

from .._architectures import runs_on
from .._cache import ArtifactStore, Failure, Library
from .._plan import BuildPlan, Toolkit, make_plan
from .._source_folders import temporary_folder, unwritable, write_sources
from .._toolchain import preload
from ..builder import Builder, Limits
from ..compiler_environment import warn_of_ignored_variables
from ..errors import BuildError, BuildProblem
from ..runnable import Runnable, RunnableMetadata

CACHE_ONLY_VARIABLE = "FIB_CACHE_ONLY"
_REBUILT = "rebuilt"
"""The fact that a library replaces one that did not load: if it does not load either, it is not compiled again."""


class Unloadable(BuildProblem):
    """A library that the dynamic loader refuses: compiling it again may help."""


class NativeBuilder(Builder):
    """Base of the builders that compile C++ and CUDA into a library."""

    bindings: ClassVar[tuple[SupportedBindings | None, ...]]
    """The bindings that the builder compiles; None stands for a solution without one."""

    def __init__(self) -> None:
        super().__init__(f"fib_{self.name}_", self.name)

    @abstractmethod
    def abi(self) -> str:
        """Requirements of a library of this builder for the process that loads it."""

    def headers(self) -> str:
        """The version of the binding's headers; a machine that compiles uses only libraries made with the same."""
        return self.abi()

    @abstractmethod
    def toolkit(self, plan: BuildPlan) -> Toolkit:
        """The binding's part of the command lines; called only when something is compiled."""

    @abstractmethod
    def load(self, library: Path, plan: BuildPlan, solution: Solution) -> Any:
        """Load a verified library and return the entry function.

        Raises:
            Unloadable: The dynamic loader refuses it.
            BuildProblem: It has no such function, or its initialisers fail.
        """

    def can_build(self, solution: Solution) -> bool:
        """Whether the solution is compiled from C++ or CUDA, with a binding of this builder."""
        return solution.spec.language.is_compiled and solution.spec.binding in self.bindings

    def build(self, definition: Definition, solution: Solution) -> Runnable:
        """Compile a solution, or take its library from the cache.

        Concurrent processes compile it once. A library that is damaged or does not load is compiled again. An error in
        the sources is not repeated with the same compiler and headers.

        Raises:
            BuildError: It does not compile or load, or the cache cannot be written.
        """
        try:
            plan = self._plan(definition, solution)
            libraries, is_new = self._libraries(plan, solution, Limits())
            try:
                library, function = self._load_first(libraries, plan, solution)
            except Unloadable as problem:
                if is_new or self._why_no_compiler(plan):
                    raise
                library = self._replacement(libraries[0], plan, solution, problem)
                function = self._load(library, plan, solution)
        except BuildProblem as problem:
            raise problem.of(solution, self.name) from problem
        misc = {"library": str(library.path), "entry_point": solution.spec.entry_point, "key": plan.key}
        is_dps = solution.spec.destination_passing_style
        return Runnable(function, RunnableMetadata(self.name, definition.name, solution.name, is_dps, definition, misc))

    def compile_ahead(self, definition: Definition, solution: Solution, limits: Limits) -> bool:
        """Compile a solution into the cache without loading it; False if it is there.

        Raises:
            BuildError: It does not compile, or the cache cannot be written.
        """
        try:
            return self._libraries(self._plan(definition, solution), solution, limits)[1]
        except BuildProblem as problem:
            raise problem.of(solution, self.name) from problem

    def _plan(self, definition: Definition, solution: Solution) -> BuildPlan:
        builder_id = (self.name, str(self.version), self.abi())
        return make_plan(definition, solution, builder_id=builder_id, headers=self.headers())

    def _load_first(self, libraries: list[Library], plan: BuildPlan, solution: Solution) -> tuple[Library, Any]:
        """The first library that loads, and its entry function."""
        *others, last = libraries
        for library in others:
            try:
                return library, self._load(library, plan, solution)
            except BuildProblem:
                continue  # compiled on another machine for other processors; the last library's problem is raised
        return last, self._load(last, plan, solution)

    def _load(self, library: Library, plan: BuildPlan, solution: Solution) -> Any:
        if library.load_problem is not None:
            raise Unloadable(f"the compiled library does not load: {library.load_problem}")
        if plan.has_cuda or solution.spec.dependencies:
            preload(library.facts["libraries"])
        return self.load(library.path, plan, solution)

    def _libraries(self, plan: BuildPlan, solution: Solution, limits: Limits) -> tuple[list[Library], bool]:
        """Verified libraries, one of which should load, and whether it was compiled just now."""
        problem = self._why_no_compiler(plan)
        with self._cache_errors():
            store = ArtifactStore(self.build_folder)
            if not problem:
                library, is_new = self._find_or_compile(store, plan, solution, limits)
                return [library], is_new
            if published := _runnable_here(store, plan):
                return published, False
        raise BuildProblem(f"{problem}; and the cache holds no library that fits")

    def _why_no_compiler(self, plan: BuildPlan) -> str:
        if os.environ.get(CACHE_ONLY_VARIABLE) == "1":
            return f"{CACHE_ONLY_VARIABLE} forbids compiling"
        return str(plan.missing) if plan.missing else ""

    @contextmanager
    def _cache_errors(self) -> Iterator[None]:
        """Raise errors of the cache as build problems."""
        try:
            yield
        except TimeoutError as error:
            raise BuildProblem(
                f"another build of the same solution has not ended: {error}; stop that process"
            ) from error
        except OSError as error:
            raise unwritable(self.build_folder, error) from error

    def _find_or_compile(
        self, store: ArtifactStore, plan: BuildPlan, solution: Solution, limits: Limits
    ) -> tuple[Library, bool]:
        if found := self._known(store, plan, solution):
            return found, False
        with self._locked(store, plan, limits):
            if found := self._known(store, plan, solution):
                return found, False
            return self._compile(store, plan, solution, limits), True

    def _locked(self, store: ArtifactStore, plan: BuildPlan, limits: Limits) -> AbstractContextManager[None]:
        self.make_build_folder()
        return store.lock(plan.key, wait_seconds=2 * limits.seconds, is_stopped=limits.is_stopped)

    def _replacement(self, old: Library, plan: BuildPlan, solution: Solution, problem: Unloadable) -> Library:
        """A library in place of one that does not load; another process may have compiled it meanwhile."""
        limits = Limits()
        with self._cache_errors():
            store = ArtifactStore(self.build_folder)
            with self._locked(store, plan, limits):
                now = store.find(plan.key, plan.variant)
                if now is not None and now.path != old.path:
                    return now
                if now is not None and now.facts.get(_REBUILT):
                    raise problem
                return self._compile(store, plan, solution, limits, is_rebuilt=True)

    def _known(self, store: ArtifactStore, plan: BuildPlan, solution: Solution) -> Library | None:
        found = store.find(plan.key, plan.variant)
        if found and found.inputs.is_current():
            return found
        if found := _compiled_for_more(store, plan):
            return found
        if failure := store.find_failure(plan.key, plan.variant):
            remark = " (known from an earlier build; to try again: fib-compile cache prune --failures)"
            raise self._error(solution, failure, remark)
        return None

    def _compile(
        self, store: ArtifactStore, plan: BuildPlan, solution: Solution, limits: Limits, *, is_rebuilt: bool = False
    ) -> Library:
        from .._compile import CompileError, compile_library

        warn_of_ignored_variables()
        log = store.new_log(plan.key, plan.variant)
        folder = temporary_folder(self.make_build_folder())
        toolkit = self.toolkit(plan)
        try:
            write_sources(folder, solution.sources)
            library = folder / ".library.so"
            read = compile_library(plan.job(toolkit, folder, limits), library, log)
            facts = {**plan.facts, _REBUILT: is_rebuilt}
            return store.add(plan.key, plan.variant, library, facts, plan.inputs(toolkit, read))
        except CompileError as error:
            if error.is_final:
                store.add_failure(plan.key, plan.variant, error.failure, plan.inputs(toolkit, error.headers))
            raise self._error(solution, error.failure) from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _error(self, solution: Solution, failure: Failure, remark: str = "") -> BuildError:
        problem = "takes too long to compile" if failure.exit_code is None else "does not compile"
        if failure.is_cancelled:
            problem = "is not compiled, because the build was cancelled"
        return BuildError(
            solution.name,
            self.name,
            problem + remark,
            language=solution.spec.language,
            **attrs.asdict(failure, recurse=False),
        )


def load_extension(name: str, file: Path) -> ModuleType:
    """Import an extension module from a file; its name need not be that of the file.

    Raises:
        ImportError: It does not fit this process.
    """
    spec = spec_from_loader(name, ExtensionFileLoader(name, str(file)))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _runnable_here(store: ArtifactStore, plan: BuildPlan) -> list[Library]:
    """Libraries that other machines published and this one can run, the best match first."""
    fitting = [one for one in store.find_all(plan.key) if runs_on(one.facts["architectures"], plan.architectures)]
    return sorted(fitting, key=lambda one: not set(plan.architectures) <= set(one.facts["architectures"]))


def _compiled_for_more(store: ArtifactStore, plan: BuildPlan) -> Library | None:
    """A library that the same compilers made for these architectures and others."""
    for library in store.find_all(plan.key) if plan.has_cuda else ():
        is_same = library.facts["made_with"] == plan.made_with
        if is_same and set(plan.architectures) <= set(library.facts["architectures"]) and library.inputs.is_current():
            return library
    return None
