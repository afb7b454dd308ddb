import os
import subprocess
import sys

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

TENSOR_CPP = """
#include <tvm/ffi/c_api.h>
#include <stdint.h>

// TVM-FFI's C interface alone compiles ten times as fast as its C++ one.
static const DLTensor* tensor(const TVMFFIAny& any) {
  if (any.type_index == kTVMFFITensor) return TVMFFITensorGetDLTensorPtr(any.v_obj);
  return static_cast<const DLTensor*>(any.v_ptr);
}
"""
FAST_CPP = (
    TENSOR_CPP
    + """
extern "C" int __tvm_ffi_run(void*, const TVMFFIAny* args, int32_t, TVMFFIAny*) {
  const DLTensor* x = tensor(args[0]);
  const DLTensor* y = tensor(args[1]);
  for (int64_t i = 0; i < x->shape[0] * x->shape[1]; ++i)
    static_cast<float*>(y->data)[i] = static_cast<float*>(x->data)[i] + INCREMENT;
  return 0;
}
"""
)

_ROWS = TensorSpec(("n", "k"), "float32")
ADD_ONE = Definition(
    "add_one",
    "elementwise",
    axes={"n": AxisVar(), "k": AxisConst(4)},
    inputs={"x": _ROWS},
    outputs={"y": _ROWS},
    reference="def run(x):\n    return x + 1\n",
)
"""``y = x + 1`` on ``[n, 4]`` float32."""
_VECTOR = TensorSpec(("n",), "float32")
SUBTRACT = Definition(
    "subtract",
    "elementwise",
    axes={"n": AxisVar()},
    inputs={"a": _VECTOR, "b": TensorSpec(("n",), "float32", optional=True)},
    outputs={"c": _VECTOR},
    reference="def run(a, b):\n    return a if b is None else a - b\n",
)
"""``c = a - b``, which shows the order of arguments; ``b`` is optional."""


def make_solution(files, *, language="python", entry=None, dps=False, binding=None, name="solution", **fields):
    """Make a solution from files: ``make_solution({"k.py": text}, language="python", dps=False)``."""
    if isinstance(files, str):
        files = {"kernel.cpp" if language == "cpp" else "kernel.py": files}
    entry = entry or f"{next(iter(files))}::run"
    spec = BuildSpec(language, ("cpu",), entry, destination_passing_style=dps, binding=binding, **fields)
    sources = tuple(SourceFile(path, content) for path, content in files.items())
    return Solution(name, "add_one", "tests", spec, sources)


def fast_cpp(increment=1, **fields):
    """A C++ solution of ``add_one`` that compiles quickly; `increment` makes it another one."""
    text = FAST_CPP.replace("INCREMENT", str(increment))
    return make_solution({"kernel.cpp": text}, language="cpp", dps=True, **fields)


def wrapped_compiler(folder, statement):
    """A compiler that runs a statement of the shell before it compiles a file."""
    wrapper = folder / "c++"
    wrapper.write_text(f'#!/bin/sh\ncase "$*" in *" -c "*) {statement};; esac\nexec /usr/bin/env c++ "$@"\n')
    wrapper.chmod(0o755)
    return str(wrapper)


def run_in_child(solution, *, device="cpu", **environment):
    """Build a solution of ``add_one`` and check what it computes, in a fresh process; returns the builder's name."""
    done = subprocess.run(
        [sys.executable, "-c", IN_A_CHILD, device],
        input=f"{format_json(ADD_ONE)}\0{format_json(solution)}",
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]
