"""Identity of Triton. What its compiler computes once in each process, computed in the fork server for all workers.

Each compiled kernel is looked up by a digest of all files of Triton, which takes 0.4 s, and by the version of ptxas,
for which a program is started. Triton keeps both, and so do the processes that are forked afterwards.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module

_MODULES = ("triton.runtime.cache", "triton.compiler.compiler")  # of the digest, in newer and older versions
_MISSING = (ImportError, AttributeError, OSError, RuntimeError, subprocess.SubprocessError)  # a build reports it


def identify_triton(architectures: Iterable[str]) -> None:
    """Compute what identifies the installed Triton and its compiler; nothing if it is missing.

    Args:
        architectures: Such as ``9.0a``.
    """
    for module in _MODULES:
        with suppress(*_MISSING):
            import_module(module).triton_key()
    for architecture in architectures:
        with suppress(*_MISSING):
            number = int("".join(filter(str.isdigit, architecture)))
            import_module("triton.backends.nvidia.compiler").get_ptxas_version(number)
