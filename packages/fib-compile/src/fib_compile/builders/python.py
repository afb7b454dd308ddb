"""PythonBuilder: solutions in Python, and the base of the languages embedded in it.

Building imports the solution, so its top-level code runs in the calling process.
"""

from __future__ import annotations

from typing import ClassVar

from fib_schema import Definition, Solution, SupportedLanguages

from .._dependencies import MissingDependency, UnknownDependency, check_python_dependencies
from .._import import import_entry
from .._signature import adapt_entry, adapt_setup
from .._sources import ensure_sources
from ..builder import Builder
from ..errors import BuildError
from ..runnable import Runnable, RunnableMetadata


class PythonBuilder(Builder):
    """Imports the sources as a package of their own and takes the entry function from it."""

    name = "python"
    language: ClassVar[SupportedLanguages] = SupportedLanguages.PYTHON

    def __init__(self) -> None:
        super().__init__(f"fib_{self.name}_", self.name)

    def can_build(self, solution: Solution) -> bool:
        """Whether the solution is in this builder's language; a binding means nothing here."""
        return solution.spec.language is self.language

    def build(self, definition: Definition, solution: Solution) -> Runnable:
        """Import a solution.

        Raises:
            BuildError: The entry file is no Python file, the import fails, or the entry point is
                missing, not callable or takes other parameters than the definition asks for.
        """
        if not solution.get_entry_path().endswith(".py"):
            problem = f"the entry file {solution.get_entry_path()!r} is no Python file; its name must end in '.py'"
            raise BuildError(solution.name, self.name, problem)
        try:
            check_python_dependencies(solution)
        except (MissingDependency, UnknownDependency) as error:
            raise BuildError(solution.name, self.name, str(error)) from error
        package = self.package_name(solution)
        folder = ensure_sources(self.build_folder, package, solution, self.name)
        entry = import_entry(package, folder, solution, self.name)
        try:
            function = adapt_entry(entry.function, definition, solution, self.name, has_setup=entry.setup is not None)
            setup = adapt_setup(entry.setup, definition, solution, self.name) if entry.setup else None
        except BuildError:
            entry.unload()
            raise
        metadata = RunnableMetadata(
            self.name,
            definition.name,
            solution.name,
            solution.spec.destination_passing_style,
            definition,
            {"package": package, "folder": str(folder), "entry_point": solution.spec.entry_point},
        )
        return Runnable(function, metadata, entry.unload, setup=setup)
