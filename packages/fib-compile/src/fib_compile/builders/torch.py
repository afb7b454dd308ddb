"""TorchBuilder. C++ and CUDA as extension modules of torch.

The library depends on the versions of torch and Python. Building imports the extension module, so its initialisers
run in the calling process.
"""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from fib_schema import Solution, SupportedBindings

from .._plan import BuildPlan, Toolkit
from .._toolchain import cuda_folders
from ..errors import BuildProblem
from .native import NativeBuilder, Unloadable, load_extension


class TorchBuilder(NativeBuilder):
    """Compiles sources with ``PYBIND11_MODULE(TORCH_EXTENSION_NAME, m)`` and imports the module."""

    name = "torch"
    bindings = (SupportedBindings.TORCH,)

    @staticmethod
    def unavailable_reason() -> str | None:
        """Only torch is needed: without a compiler, modules in the cache can still be used."""
        return None if importlib.util.find_spec("torch") else "torch is not installed; install 'torch'"

    def abi(self) -> str:
        """The versions of torch and Python: torch keeps no ABI between versions."""
        return _abi()

    def toolkit(self, plan: BuildPlan) -> Toolkit:
        """Headers of torch and Python, libraries of torch."""
        import torch

        root = Path(torch.__file__).parent
        python = sysconfig.get_path("include")
        includes = [root / "include", root / "include" / "torch" / "csrc" / "api" / "include", python]
        flags = (
            "-std=c++20",
            "-DTORCH_API_INCLUDE_EXTENSION_H",
            f"-DTORCH_EXTENSION_NAME={_module_name(plan)}",
            f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        )
        names = ["c10", "torch_cpu", "torch", "torch_python"]
        if plan.has_cuda:
            names += ["c10_cuda", "torch_cuda"]
            includes += [path for path in cuda_folders("include") if path.is_dir()]  # torch's headers want cuSPARSE's
        return Toolkit(tuple(map(str, includes)), flags, (f"-L{root / 'lib'}", *(f"-l{name}" for name in names)))

    def load(self, library: Path, plan: BuildPlan, solution: Solution) -> Any:
        """Import the module and return the entry function."""
        module = _import(_module_name(plan), library)
        symbol = solution.get_entry_symbol()
        function = getattr(module, symbol, None)
        if not callable(function):
            exports = ", ".join(name for name in dir(module) if not name.startswith("_")) or "nothing"
            raise BuildProblem(f"the module has no function {symbol!r}; it exports {exports}")
        return function


def _import(name: str, library: Path) -> ModuleType:
    import torch  # noqa: F401 - loads the libraries that the module is linked with

    try:
        return load_extension(name, library)
    except Exception as error:
        hint = "is PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) among the sources?"
        problem = f"importing the compiled module failed with {type(error).__name__}: {error}; {hint}"
        is_refused = isinstance(error, ImportError) and error.path == str(library)
        raise (Unloadable if is_refused else BuildProblem)(problem) from error


@cache
def _abi() -> str:
    from importlib.metadata import version

    return f"torch-{version('torch')}-{sys.implementation.cache_tag}"


def _module_name(plan: BuildPlan) -> str:
    return f"fib_torch_{plan.key}"
