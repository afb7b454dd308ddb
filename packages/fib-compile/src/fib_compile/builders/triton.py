"""TritonBuilder: solutions in Triton.

Without a GPU they run through Triton's interpreter: set ``TRITON_INTERPRET=1`` before anything
imports triton. Building imports the solution, so its top-level code runs in the calling process.
"""

from __future__ import annotations

from importlib.util import find_spec

from fib_schema import SupportedLanguages

from .python import PythonBuilder


class TritonBuilder(PythonBuilder):
    """Imports the sources as PythonBuilder does; Triton compiles the kernels when they first run."""

    name = "triton"
    language = SupportedLanguages.TRITON

    @staticmethod
    def unavailable_reason() -> str | None:
        """Triton comes as an extra."""
        return None if find_spec("triton") else "triton is not installed; install 'fib-compile[triton]'"
