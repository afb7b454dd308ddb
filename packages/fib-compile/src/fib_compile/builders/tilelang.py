"""TileLangBuilder: solutions in TileLang.

Without a GPU they can compile for ``target="c"``. Building imports the solution, so its top-level
code runs in the calling process.
"""

from __future__ import annotations

from importlib.util import find_spec

from fib_schema import SupportedLanguages

from .python import PythonBuilder


class TileLangBuilder(PythonBuilder):
    """Imports the sources as PythonBuilder does; TileLang compiles the kernels when they first run."""

    name = "tilelang"
    language = SupportedLanguages.TILELANG

    @staticmethod
    def unavailable_reason() -> str | None:
        """TileLang comes as an extra."""
        return None if find_spec("tilelang") else "tilelang is not installed; install 'fib-compile[tilelang]'"
