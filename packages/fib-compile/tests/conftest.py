"""Fixtures that the tests of fib-compile share."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fib_compile.device import is_cuda_available
from fib_schema import AxisConst, AxisVar, BuildSpec, Definition, Solution, SourceFile, TensorSpec, format_json

IN_A_CHILD = """
import sys, torch
from fib_compile import BuilderRegistry
from fib_schema import Definition, Solution, parse_json

definition, solution = sys.stdin.read().split("\\0")
runnable = BuilderRegistry.get_instance().build(parse_json(definition, Definition), parse_json(solution, Solution))
x = torch.arange(200, dtype=torch.float32, device=sys.argv[1]).reshape(50, 4)
assert torch.equal(runnable.call_value_returning(x), x + 1)
print(runnable.metadata.build_type)
"""

FAST_CPP = """
#include <tvm/ffi/c_api.h>
#include <stdint.h>

// TVM-FFI's C interface alone compiles ten times as fast as its C++ one.
static const DLTensor* tensor(const TVMFFIAny& any) {
  if (any.type_index == kTVMFFITensor) return TVMFFITensorGetDLTensorPtr(any.v_obj);
  return static_cast<const DLTensor*>(any.v_ptr);
}

extern "C" int __tvm_ffi_run(void*, const TVMFFIAny* args, int32_t, TVMFFIAny*) {
  const DLTensor* x = tensor(args[0]);
  const DLTensor* y = tensor(args[1]);
  for (int64_t i = 0; i < x->shape[0] * x->shape[1]; ++i)
    static_cast<float*>(y->data)[i] = static_cast<float*>(x->data)[i] + INCREMENT;
  return 0;
}
"""


@pytest.fixture(autouse=True)
def cache_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own for every test."""
    path = tmp_path / "cache"
    monkeypatch.setenv("FIB_CACHE_PATH", str(path))
    return path


@pytest.fixture
def definition() -> Definition:
    """``y = x + 1`` on ``[n, 4]`` float32."""
    tensor = TensorSpec(("n", "k"), "float32")
    return Definition(
        "add_one",
        "elementwise",
        axes={"n": AxisVar(), "k": AxisConst(4)},
        inputs={"x": tensor},
        outputs={"y": tensor},
        reference="def run(x):\n    return x + 1\n",
    )


@pytest.fixture
def two_inputs() -> Definition:
    """``c = a - b``, which shows the order of arguments; ``b`` is optional."""
    tensor = TensorSpec(("n",), "float32")
    return Definition(
        "subtract",
        "elementwise",
        axes={"n": AxisVar()},
        inputs={"a": tensor, "b": TensorSpec(("n",), "float32", optional=True)},
        outputs={"c": tensor},
        reference="def run(a, b):\n    return a if b is None else a - b\n",
    )


@pytest.fixture
def make_solution() -> Callable[..., Solution]:
    """Make a solution from files: ``make_solution({"k.py": text}, language="python", dps=False)``."""

    def make(
        files: dict[str, str] | str,
        *,
        language: str = "python",
        entry: str | None = None,
        dps: bool = False,
        binding: str | None = None,
        name: str = "solution",
        **fields: object,
    ) -> Solution:
        if isinstance(files, str):
            files = {"kernel.cpp" if language == "cpp" else "kernel.py": files}
        entry = entry or f"{next(iter(files))}::run"
        spec = BuildSpec(language, ("cpu",), entry, destination_passing_style=dps, binding=binding, **fields)
        sources = tuple(SourceFile(path, content) for path, content in files.items())
        return Solution(name, "add_one", "tests", spec, sources)

    return make


@pytest.fixture
def fast_cpp(make_solution: Callable[..., Solution]) -> Callable[..., Solution]:
    """A C++ solution of ``add_one`` that compiles quickly; `increment` makes it another one."""

    def make(increment: int = 1, **fields: object) -> Solution:
        text = FAST_CPP.replace("INCREMENT", str(increment))
        return make_solution({"kernel.cpp": text}, language="cpp", dps=True, **fields)

    return make


@pytest.fixture
def run_in_child(definition: Definition) -> Callable[..., str]:
    """Build a solution of ``add_one`` and check what it computes, in a fresh process; returns the builder's name."""

    def run(solution: Solution, *, device: str = "cpu", **environment: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", IN_A_CHILD, device],
            input=f"{format_json(definition)}\0{format_json(solution)}",
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()[-1]

    return run


@pytest.fixture
def needs_gpu() -> None:
    """Skip where there is no CUDA device."""
    if not is_cuda_available():
        pytest.skip("needs a CUDA device")
