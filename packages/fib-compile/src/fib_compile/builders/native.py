"""NativeBuilder. Compiled solutions: plan, cache lookup, lock, second lookup, compilation, publication, loading."""

from __future__ import annotations

import os
import shutil
from abc import abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import attrs
from fib_schema import Definition, Solution, SupportedBindings

from .._architectures import runs_on
from .._cache import LIBRARY, ArtifactStore, Failure, temporary_folder, unwritable, write_sources
from .._plan import BuildPlan, Toolkit, make_plan
from .._toolchain import preload
from ..builder import Builder, Limits
from ..errors import BuildError, BuildProblem
from ..runnable import Runnable, RunnableMetadata

CACHE_ONLY_VARIABLE = "FIB_CACHE_ONLY"


class NativeBuilder(Builder):
    """Base of the builders that compile C++ and CUDA into a library."""

    bindings: ClassVar[tuple[SupportedBindings | None, ...]]
    """The bindings that the builder compiles; None stands for a solution without one."""

    def __init__(self) -> None:
        super().__init__(f"fib_{self.name}_", self.name)

    @abstractmethod
    def abi(self) -> str:
        """What a library of this builder needs from the process that loads it."""

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
            BuildProblem: It does not load, or has no such function.
        """

    def can_build(self, solution: Solution) -> bool:
        """Whether the solution is compiled from C++ or CUDA, with a binding of this builder."""
        return solution.spec.language.is_compiled and solution.spec.binding in self.bindings

    def build(self, definition: Definition, solution: Solution) -> Runnable:
        """Compile a solution, or take its library from the cache.

        Concurrent processes compile it once. A damaged library is compiled again. A failure is not repeated with the
        same compiler.

        Raises:
            BuildError: It does not compile or load, or the cache cannot be written.
        """
        try:
            plan = self._plan(definition, solution)
            libraries, _ = self._libraries(plan, solution, Limits())
            library, function = self._load_first(libraries, plan, solution)
        except BuildProblem as problem:
            raise problem.of(solution.name, self.name) from problem
        misc = {"library": str(library), "entry_point": solution.spec.entry_point, "key": plan.key}
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
            raise problem.of(solution.name, self.name) from problem

    def _plan(self, definition: Definition, solution: Solution) -> BuildPlan:
        builder_id = (self.name, str(self.version), self.abi())
        return make_plan(definition, solution, builder_id=builder_id, headers=self.headers())

    def _load_first(self, libraries: list[Path], plan: BuildPlan, solution: Solution) -> tuple[Path, Any]:
        """The first library that loads, and its entry function."""
        *others, last = libraries
        for library in others:
            try:
                return library, self._load(library, plan, solution)
            except BuildProblem:
                continue  # compiled on another machine for other processors; the last library's problem is raised
        return last, self._load(last, plan, solution)

    def _load(self, library: Path, plan: BuildPlan, solution: Solution) -> Any:
        if plan.has_cuda or solution.spec.dependencies:
            preload(ArtifactStore(self.build_folder).facts(library)["libraries"])
        return self.load(library, plan, solution)

    def _libraries(self, plan: BuildPlan, solution: Solution, limits: Limits) -> tuple[list[Path], bool]:
        """Verified libraries, one of which should load, and whether it was compiled just now."""
        store = ArtifactStore(self.build_folder)
        problem = str(plan.missing) if plan.missing else ""
        if os.environ.get(CACHE_ONLY_VARIABLE) == "1":
            problem = f"{CACHE_ONLY_VARIABLE} forbids compiling"
        try:
            if not problem:
                library, is_new = self._find_or_compile(store, plan, solution, limits)
                return [library], is_new
            if published := _runnable_here(store, plan):
                return published, False
        except OSError as error:
            raise unwritable(self.build_folder, error) from error
        raise BuildProblem(f"{problem}; and the cache holds no library that fits")

    def _find_or_compile(
        self, store: ArtifactStore, plan: BuildPlan, solution: Solution, limits: Limits
    ) -> tuple[Path, bool]:
        if found := self._known(store, plan, solution):
            return found, False
        try:
            with store.lock(plan.key, wait_seconds=2 * limits.seconds, is_stopped=limits.is_stopped):
                if found := self._known(store, plan, solution):
                    return found, False
                return self._compile(store, plan, solution, limits), True
        except TimeoutError as error:
            raise BuildProblem(
                f"another build of the same solution has not ended: {error}; stop that process"
            ) from error

    def _known(self, store: ArtifactStore, plan: BuildPlan, solution: Solution) -> Path | None:
        if found := store.find(plan.key, plan.variant) or _compiled_for_more(store, plan):
            return found
        if failure := store.find_failure(plan.key, plan.variant):
            remark = " (known from an earlier build; to try again: fib-compile cache prune --failures)"
            raise self._error(solution, failure, remark)
        return None

    def _compile(self, store: ArtifactStore, plan: BuildPlan, solution: Solution, limits: Limits) -> Path:
        from .._compile import CompileError, compile_library

        log = store.new_log(plan.key, plan.variant)
        folder = temporary_folder(self.build_folder)
        try:
            write_sources(folder, solution.sources)
            library = folder / f".{LIBRARY}"
            compile_library(plan.job(self.toolkit(plan), folder, limits), library, log)
            return store.add(plan.key, plan.variant, library, plan.facts)
        except CompileError as error:
            if error.is_final:
                store.add_failure(plan.key, plan.variant, error.failure)
            raise self._error(solution, error.failure) from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _error(self, solution: Solution, failure: Failure, remark: str = "") -> BuildError:
        problem = "takes too long to compile" if failure.exit_code is None else "does not compile"
        return BuildError(solution.name, self.name, problem + remark, **attrs.asdict(failure, recurse=False))


def _runnable_here(store: ArtifactStore, plan: BuildPlan) -> list[Path]:
    """Libraries that other machines published and this one can run, the best match first."""
    compiled_for = {library: store.facts(library)["architectures"] for library in store.find_all(plan.key)}
    fitting = [library for library, have in compiled_for.items() if runs_on(have, plan.architectures)]
    return sorted(fitting, key=lambda library: not set(plan.architectures) <= set(compiled_for[library]))


def _compiled_for_more(store: ArtifactStore, plan: BuildPlan) -> Path | None:
    """A library that the same compilers made for these architectures and others."""
    for library in store.find_all(plan.key) if plan.has_cuda else ():
        facts = store.facts(library)
        if facts["made_with"] == plan.made_with and set(plan.architectures) <= set(facts["architectures"]):
            return library
    return None
