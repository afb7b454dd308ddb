"""TVMFFIBuilder: C++ and CUDA through TVM-FFI.

The artefact needs neither Python nor torch: it depends on TVM-FFI's ABI, on the compilers and on
their flags. Building runs no solution code but the library's static initialisers, when it is loaded.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fib_schema import Solution, SupportedBindings, SupportedLanguages

from .._native import NativeBuilder
from .._recipe import Recipe, Toolkit
from ..errors import BuildError

_LANGUAGES = (SupportedLanguages.CPP, SupportedLanguages.CUDA)
_EXPORT = re.compile(rb"\0__tvm_ffi_(?!_metadata_|_doc_)([A-Za-z0-9_]+)(?=\0)")


class TVMFFIBuilder(NativeBuilder):
    """Compiles sources with ``TVM_FFI_DLL_EXPORT_TYPED_FUNC`` into a library and loads it."""

    name = "tvm_ffi"

    def __init__(self) -> None:
        super().__init__("fib_tvm_ffi_", self.name)

    @staticmethod
    def unavailable_reason() -> str | None:
        """A compiler is not asked for: without one, libraries in the cache can still be used."""
        return None if find_spec("tvm_ffi") else "tvm_ffi is not installed; install 'apache-tvm-ffi'"

    def can_build(self, solution: Solution) -> bool:
        """Whether it is C++ or CUDA with the binding ``tvm-ffi`` or none."""
        spec = solution.spec
        return spec.language in _LANGUAGES and spec.binding in (None, SupportedBindings.TVM_FFI)

    def abi(self) -> str:
        """TVM-FFI keeps its ABI within a minor version."""
        major, minor, *_ = _version().split(".")
        return f"tvm-ffi-{major}.{minor}"

    def headers(self) -> str:
        """A library may use what an older version does not have."""
        return f"tvm-ffi {_version()}"

    def toolkit(self, recipe: Recipe) -> Toolkit:  # noqa: ARG002
        """Headers and library of the installed TVM-FFI."""
        spec = find_spec("tvm_ffi")
        assert spec is not None
        assert spec.origin is not None
        root = Path(spec.origin).parent  # importing tvm_ffi would import torch
        link_flags = ("-Wl,--no-undefined", f"-L{root / 'lib'}", "-ltvm_ffi")
        return Toolkit((str(root / "include"),), ("-std=c++17",), link_flags)

    def load(self, library: Path, recipe: Recipe, solution: Solution) -> Any:  # noqa: ARG002
        """Load a library and take the entry function from it."""
        import tvm_ffi

        try:
            module = tvm_ffi.load_module(library)
        except (RuntimeError, OSError, ValueError) as error:
            problem = f"the compiled library does not load: {error}"
            raise BuildError(solution.name, self.name, problem) from error
        symbol = solution.get_entry_symbol()
        try:
            return module.get_function(symbol)
        except AttributeError as error:
            exports = ", ".join(_exports(library)) or "nothing; use TVM_FFI_DLL_EXPORT_TYPED_FUNC"
            problem = f"the library has no function {symbol!r}; it exports {exports}"
            raise BuildError(solution.name, self.name, problem) from error


@cache
def _version() -> str:
    from importlib.metadata import version  # 20 ms, which importing this module need not cost

    return version("apache-tvm-ffi")


def _exports(library: Path) -> list[str]:
    return sorted({name.decode() for name in _EXPORT.findall(library.read_bytes())})
