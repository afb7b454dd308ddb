"""PythonBuilder, TritonBuilder and TileLangBuilder. Solutions in Python and in languages embedded in it.

Building imports the solution, so its top-level code runs in the calling process. Triton and TileLang compile kernels
when they first run. Without a GPU, Triton's interpreter can run them (set ``TRITON_INTERPRET=1`` before triton is
imported), and TileLang can compile for ``target="c"``.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import ClassVar

from fib_schema import Definition, Solution, SupportedLanguages

from .._cache import ensure_sources
from .._calling import adapt_entry, adapt_setup
from .._dependencies import check_python_dependencies
from .._import import import_entry
from ..builder import Builder
from ..errors import BuildProblem
from ..runnable import Runnable, RunnableMetadata


class PythonBuilder(Builder):
    """Imports the sources as a package of their own and returns its entry function."""

    name = "python"
    language: ClassVar[SupportedLanguages] = SupportedLanguages.PYTHON

    def __init__(self) -> None:
        super().__init__(f"fib_{self.name}_", self.name)

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
            raise problem.of(solution.name, self.name) from problem

    def _import(self, definition: Definition, solution: Solution) -> Runnable:
        path, spec = solution.get_entry_path(), solution.spec
        if not path.endswith(".py"):
            raise BuildProblem(f"the entry file {path!r} is not a Python file; its name must end in '.py'")
        check_python_dependencies(solution)
        package = self.package_name(solution)
        folder = ensure_sources(self.build_folder, package, solution.sources)
        entry = import_entry(package, folder, solution)
        is_dps, has_setup = spec.destination_passing_style, entry.setup is not None
        try:
            function = adapt_entry(entry.function, definition, is_dps=is_dps, has_setup=has_setup)
            setup = adapt_setup(entry.setup, definition) if entry.setup else None
        except BuildProblem:
            entry.unload()
            raise
        misc = {"package": package, "folder": str(folder), "entry_point": spec.entry_point}
        metadata = RunnableMetadata(self.name, definition.name, solution.name, is_dps, definition, misc)
        return Runnable(function, metadata, entry.unload, setup=setup)


class TritonBuilder(PythonBuilder):
    """Imports Triton solutions as PythonBuilder does."""

    name = "triton"
    language = SupportedLanguages.TRITON

    @staticmethod
    def unavailable_reason() -> str | None:
        """Triton is an extra."""
        return None if find_spec("triton") else "triton is not installed; install 'fib-compile[triton]'"


class TileLangBuilder(PythonBuilder):
    """Imports TileLang solutions as PythonBuilder does."""

    name = "tilelang"
    language = SupportedLanguages.TILELANG

    @staticmethod
    def unavailable_reason() -> str | None:
        """TileLang is an extra."""
        return None if find_spec("tilelang") else "tilelang is not installed; install 'fib-compile[tilelang]'"
