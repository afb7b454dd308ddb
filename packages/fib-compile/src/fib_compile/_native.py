"""What the builders of compiled languages share: key, look up, lock, look again, compile, publish, load."""

from __future__ import annotations

import os
import shutil
from abc import abstractmethod
from pathlib import Path
from typing import Any

from fib_schema import Definition, Solution

from ._artefacts import LIBRARY, ArtefactStore, Failure
from ._cuda import preload, runs_on
from ._recipe import Recipe, Toolkit, make_recipe
from ._sources import cache_problem, temporary_folder, write_sources
from ._toolchain import NoCompiler
from .builder import Builder, Limits
from .errors import BuildError
from .runnable import Runnable, RunnableMetadata

CACHE_ONLY_VARIABLE = "FIB_CACHE_ONLY"


class NativeBuilder(Builder):
    """Base of the builders that compile a library."""

    @abstractmethod
    def abi(self) -> str:
        """What a library of this builder needs from the process that loads it."""

    @abstractmethod
    def headers(self) -> str:
        """The version of the binding's headers, which a machine that compiles itself does not mix."""

    @abstractmethod
    def toolkit(self, recipe: Recipe) -> Toolkit:
        """The binding's part of the command lines; asked for only when something is compiled."""

    @abstractmethod
    def load(self, library: Path, recipe: Recipe, solution: Solution) -> Any:
        """Load a verified library and return the entry function.

        Raises:
            BuildError: It does not load, or has no such function.
        """

    def build(self, definition: Definition, solution: Solution) -> Runnable:
        """Compile a solution, or take its library from the cache.

        Concurrent processes compile it once. A library that is damaged is compiled again; what did
        not compile once is not tried again with the same compiler.

        Raises:
            BuildError: It does not compile or load, or the cache cannot be written.
        """
        recipe = make_recipe(self, definition, solution)
        libraries, _ = self._libraries(recipe, solution, Limits())
        library, function = self._load_first(libraries, recipe, solution)
        metadata = RunnableMetadata(
            self.name,
            definition.name,
            solution.name,
            solution.spec.destination_passing_style,
            definition,
            {"library": str(library), "entry_point": solution.spec.entry_point, "key": recipe.key},
        )
        return Runnable(function, metadata)

    def compile_ahead(self, definition: Definition, solution: Solution, limits: Limits) -> bool:
        """Compile a solution into the cache without loading it; False if it is there.

        Raises:
            BuildError: It does not compile, or the cache cannot be written.
        """
        return self._libraries(make_recipe(self, definition, solution), solution, limits)[1]

    def _load_first(self, libraries: list[Path], recipe: Recipe, solution: Solution) -> tuple[Path, Any]:
        """The first library that loads, and its entry function."""
        *others, last = libraries
        for library in others:
            try:
                return library, self._load(library, recipe, solution)
            except BuildError:
                continue  # made by a compiler for other machines than this one; the last one's error is raised
        return last, self._load(last, recipe, solution)

    def _load(self, library: Path, recipe: Recipe, solution: Solution) -> Any:
        if recipe.has_cuda or solution.spec.dependencies:
            preload(ArtefactStore(self.build_folder).facts(library)["libraries"])
        return self.load(library, recipe, solution)

    def _libraries(self, recipe: Recipe, solution: Solution, limits: Limits) -> tuple[list[Path], bool]:
        """Verified libraries, one of which should load, and whether it was compiled just now."""
        store = ArtefactStore(self.build_folder)
        compilers = recipe.compilers
        if os.environ.get(CACHE_ONLY_VARIABLE) == "1":
            compilers = NoCompiler(f"{CACHE_ONLY_VARIABLE} forbids compiling")
        try:
            if not isinstance(compilers, NoCompiler):
                library, is_new = self._find_or_compile(store, recipe, solution, limits)
                return [library], is_new
            if published := _runnable_here(store, recipe):
                return published, False
        except OSError as error:
            raise BuildError(solution.name, self.name, cache_problem(self.build_folder, error)) from error
        raise BuildError(solution.name, self.name, f"{compilers.problem}; and the cache holds no library that fits")

    def _find_or_compile(
        self, store: ArtefactStore, recipe: Recipe, solution: Solution, limits: Limits
    ) -> tuple[Path, bool]:
        if found := self._known(store, recipe, solution):
            return found, False
        try:
            with store.lock(recipe.key, wait_seconds=2 * limits.seconds, is_stopped=limits.is_stopped):
                if found := self._known(store, recipe, solution):
                    return found, False
                return self._compile(store, recipe, solution, limits), True
        except TimeoutError as error:
            raise BuildError(solution.name, self.name, f"another build of it does not end: {error}") from error

    def _known(self, store: ArtefactStore, recipe: Recipe, solution: Solution) -> Path | None:
        if found := store.find(recipe.key, recipe.variant) or _compiled_for_more(store, recipe):
            return found
        if failure := store.find_failure(recipe.key, recipe.variant):
            raise self._error(
                solution, failure, " (known from an earlier build; 'fib-compile cache prune --failures' forgets it)"
            )
        return None

    def _compile(self, store: ArtefactStore, recipe: Recipe, solution: Solution, limits: Limits) -> Path:
        from ._compile import CompileError, compile_library

        log = store.new_log(recipe.key, recipe.variant)
        folder = temporary_folder(self.build_folder)
        try:
            write_sources(folder, solution.sources)
            job = recipe.job(self.toolkit(recipe), folder, limits)
            library = folder / f".{LIBRARY}"
            compile_library(job, library, log)
            return store.add(recipe.key, recipe.variant, library, recipe.facts)
        except CompileError as error:
            failure = Failure(error.command, error.exit_code, error.lines, str(log))
            if error.is_final:
                store.add_failure(recipe.key, recipe.variant, failure)
            raise self._error(solution, failure) from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _error(self, solution: Solution, failure: Failure, remark: str = "") -> BuildError:
        problem = "takes too long to compile" if failure.exit_code is None else "does not compile"
        return BuildError(
            solution.name,
            self.name,
            problem + remark,
            failure.lines,
            failure.command,
            failure.exit_code,
            failure.log_path,
        )


def _runnable_here(store: ArtefactStore, recipe: Recipe) -> list[Path]:
    """What other machines have published that this one can run, the best match first."""
    compiled_for = {library: store.facts(library)["architectures"] for library in store.find_all(recipe.key)}
    fitting = [library for library, have in compiled_for.items() if runs_on(have, recipe.architectures)]
    return sorted(fitting, key=lambda library: not set(recipe.architectures) <= set(compiled_for[library]))


def _compiled_for_more(store: ArtefactStore, recipe: Recipe) -> Path | None:
    """A library that the same compilers made for the same architectures and others."""
    for library in store.find_all(recipe.key) if recipe.has_cuda else ():
        facts = store.facts(library)
        if facts["made_with"] == recipe.made_with and set(recipe.architectures) <= set(facts["architectures"]):
            return library
    return None
