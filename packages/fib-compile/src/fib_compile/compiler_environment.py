"""Environment of compilers. The variables that a compiler gets, and what of them enters cache keys.

A compiler gets the variables that are listed here and no others, so that no other one can matter. The values that
state what to compile (`REQUESTED`, and those that ``FIB_COMPILER_VARIABLES`` names) are part of a library's key, those
that state where tools are of its variant. Of `_PLACES` only what they lead to matters, which the identity of the
compiler covers.
"""

from __future__ import annotations

import logging
import os
from functools import cache

VARIABLES_VARIABLE = "FIB_COMPILER_VARIABLES"
REQUESTED = (
    "CCC_OVERRIDE_OPTIONS", "CPATH", "CPLUS_INCLUDE_PATH", "C_INCLUDE_PATH", "LD_RUN_PATH", "LIBRARY_PATH",
    "NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS", "SOURCE_DATE_EPOCH",
)  # fmt: skip
"""Variables that state what to compile."""
_SETTINGS = ("COMPILER_PATH", "GCC_EXEC_PREFIX", "LD_LIBRARY_PATH", "NVCC_CCBIN")
_SETTINGS_OF_TOOLS = ("CCACHE_", "SCCACHE_", "DISTCC_", "ICECC_", "NIX_", "ONEAPI_")
"""Prefixes of variables that wrappers of compilers read."""
_PLACES = ("HOME", "PATH", "TMPDIR")
_IGNORED = ("CFLAGS", "CPPFLAGS", "CUDAFLAGS", "CUDACXX", "CUDAHOSTCXX", "CXXFLAGS", "LDFLAGS", "NVCCFLAGS")
_OTHER_ARCH_VARIABLE = "TORCH_CUDA_ARCH_LIST"
_logger = logging.getLogger("fib_compile")


def compiler_environment() -> dict[str, str]:
    """The variables that a compiler gets."""
    set_names = set(os.environ)
    names = {*_PLACES, *_SETTINGS, *_requesting()} & set_names
    names |= {name for name in set_names if name.startswith(_SETTINGS_OF_TOOLS)}
    environment = {name: os.environ[name] for name in sorted(names)}
    return environment | {"LC_ALL": "C"}  # English messages, in which errors are recognised


def requested() -> list[str]:
    """The values of variables that state what to compile."""
    return [f"{name}={os.environ[name]}" for name in _requesting() if os.environ.get(name)]


def _requesting() -> list[str]:
    own = os.environ.get(VARIABLES_VARIABLE, "").replace(",", " ").split()
    return sorted({*REQUESTED, *own} - {*_PLACES, *_SETTINGS})


def settings() -> list[str]:
    """The values of the other variables that a compiler may read."""
    known = {*_PLACES, *_requesting(), "LC_ALL"}
    return [f"{name}={value}" for name, value in sorted(compiler_environment().items()) if name not in known]


@cache
def warn_of_ignored_variables() -> None:
    """Name variables that are set for other programs, once in a process."""
    if names := [name for name in _IGNORED if os.environ.get(name)]:
        remedy = "state flags in CXX ('g++ -O3'), NVCC_APPEND_FLAGS or a solution's compile_options"
        _logger.warning("%s: ignored; %s", ", ".join(names), remedy)
    if os.environ.get(_OTHER_ARCH_VARIABLE) and not os.environ.get("FIB_CUDA_ARCH_LIST"):
        _logger.warning("%s: ignored; set FIB_CUDA_ARCH_LIST", _OTHER_ARCH_VARIABLE)
