"""PythonBuilder and its subclasses. Solutions in Python and in languages embedded in it.

Building imports the solution, so its top-level code runs in the calling process. Embedded languages compile kernels
when they first run. The subclasses only state which package their language needs. Without a GPU, the interpreters of
Triton and Helion can run kernels (see `interpreter_environment`), and TileLang can compile for ``target="c"``.
"""

from __future__ import annotations

from importlib.machinery import PathFinder
from importlib.util import find_spec
from typing import ClassVar

import attrs
from fib_schema import Definition, Solution, SupportedLanguages

from .._calling import adapt_entry, adapt_setup
from .._dependencies import check_python_dependencies
from .._import import import_entry
from .._source_folders import ensure_sources, unwritable
from ..builder import Builder
from ..errors import BuildProblem
from ..runnable import Runnable, RunnableMetadata


@attrs.frozen
class Requirement:
    """A package that a language needs."""

    module: str
    """The module that solutions import, such as ``cuda.tile``."""
    install: str
    """The requirement for pip."""

    def is_installed(self) -> bool:
        """Whether the module can be found; nothing is imported."""
        package, _, module = self.module.partition(".")
        spec = find_spec(package)
        if module and spec is not None:  # find_spec(self.module) would import the package
            spec = PathFinder.find_spec(self.module, spec.submodule_search_locations or ())
        return spec is not None


class PythonBuilder(Builder):
    """Imports the sources as a package of their own and returns its entry function."""

    name = "python"
    language: ClassVar[SupportedLanguages] = SupportedLanguages.PYTHON
    requirement: ClassVar[Requirement | None] = None

    def __init__(self) -> None:
        super().__init__(f"fib_{self.name}_", self.name)

    @classmethod
    def unavailable_reason(cls) -> str | None:
        """The package that is not installed, with the remedy; None if nothing is missing."""
        if cls.requirement is None or cls.requirement.is_installed():
            return None
        return f"{cls.requirement.module} is not installed; install {cls.requirement.install!r}"

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
        check_python_dependencies(solution)
        package = self.package_name(solution)
        try:
            root = self.make_build_folder()
        except OSError as error:
            raise unwritable(self.build_folder, error) from error
        folder = ensure_sources(root, package, solution.sources)
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
    requirement = Requirement("triton", "fib-compile[triton]")


class TileLangBuilder(PythonBuilder):
    """Imports TileLang solutions as PythonBuilder does."""

    name = "tilelang"
    language = SupportedLanguages.TILELANG
    requirement = Requirement("tilelang", "fib-compile[tilelang]")


class HelionBuilder(PythonBuilder):
    """Imports Helion solutions as PythonBuilder does."""

    name = "helion"
    language = SupportedLanguages.HELION
    requirement = Requirement("helion", "fib-compile[helion]")


class CuTileBuilder(PythonBuilder):
    """Imports cuTile solutions as PythonBuilder does."""

    name = "cutile"
    language = SupportedLanguages.CUTILE
    requirement = Requirement("cuda.tile", "fib-compile[cutile]")


class CuteDSLBuilder(PythonBuilder):
    """Imports CuTe DSL solutions as PythonBuilder does."""

    name = "cute_dsl"
    language = SupportedLanguages.CUTE_DSL
    requirement = Requirement("cutlass.cute", "fib-compile[cute-dsl]")
