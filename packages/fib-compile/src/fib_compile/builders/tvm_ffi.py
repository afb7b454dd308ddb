"""TVMFFIBuilder. C++ and CUDA through TVM-FFI.

The library needs neither Python nor torch: it depends on TVM-FFI's ABI, on the compilers and on their flags. Loading
it runs its static initialisers and no other code of the solution.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fib_schema import Solution, SupportedBindings

from .._plan import BuildPlan, Toolkit
from ..errors import BuildProblem
from .native import NativeBuilder, Unloadable

_EXPORT = re.compile(rb"\0__tvm_ffi_(?!_metadata_|_doc_)([A-Za-z0-9_]+)(?=\0)")


class TVMFFIBuilder(NativeBuilder):
    """Compiles sources with ``TVM_FFI_DLL_EXPORT_TYPED_FUNC`` into a library and loads it."""

    name = "tvm_ffi"
    bindings = (None, SupportedBindings.TVM_FFI)

    @staticmethod
    def unavailable_reason() -> str | None:
        """Only TVM-FFI is needed: without a compiler, libraries in the cache can still be used."""
        return None if find_spec("tvm_ffi") else "tvm_ffi is not installed; install 'apache-tvm-ffi'"

    def abi(self) -> str:
        """The minor version: TVM-FFI keeps its ABI within it."""
        major, minor, *_ = _version().split(".")
        return f"tvm-ffi-{major}.{minor}"

    def headers(self) -> str:
        """The whole version: a library may use functions that an older one does not have."""
        return f"tvm-ffi {_version()}"

    def toolkit(self, plan: BuildPlan) -> Toolkit:  # noqa: ARG002
        """Headers and library of the installed TVM-FFI."""
        spec = find_spec("tvm_ffi")
        assert spec is not None
        assert spec.origin is not None
        root = Path(spec.origin).parent  # importing tvm_ffi would import torch
        link_flags = ("-Wl,--no-undefined", f"-L{root / 'lib'}", "-ltvm_ffi")
        return Toolkit((str(root / "include"),), ("-std=c++17",), link_flags)

    def load(self, library: Path, plan: BuildPlan, solution: Solution) -> Any:  # noqa: ARG002
        """Load a library and return the entry function."""
        import tvm_ffi

        try:
            module = tvm_ffi.load_module(library)
        except (RuntimeError, OSError, ValueError) as error:
            raise Unloadable(f"the compiled library does not load: {error}") from error
        symbol = solution.get_entry_symbol()
        try:
            return module.get_function(symbol)
        except AttributeError as error:
            exports = ", ".join(_exports(library)) or "nothing; use TVM_FFI_DLL_EXPORT_TYPED_FUNC"
            raise BuildProblem(f"the library has no function {symbol!r}; it exports {exports}") from error


@cache
def _version() -> str:
    from importlib.metadata import version  # 20 ms, which importing this module need not cost

    return version("apache-tvm-ffi")


def _exports(library: Path) -> list[str]:
    return sorted({name.decode() for name in _EXPORT.findall(library.read_bytes())})
