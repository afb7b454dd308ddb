"""A data set whose solutions misbehave in every way that a serving engine must survive."""

from fib_schema import (
    AxisConst,
    AxisVar,
    BuildSpec,
    Correctness,
    Definition,
    Environment,
    Evaluation,
    Performance,
    RandomInput,
    Solution,
    SourceFile,
    TensorSpec,
    Trace,
    TraceSet,
    Workload,
)

from .server import RECORDED, WIDTH

RIGHT = "def run(x):\n    return 2 * x + 1\n"
_IN_A_PROBE = "import os\nif os.environ.get('FIB_ENABLE_APPLY') == '0':\n    "
COMPILED = """
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>
void run(tvm::ffi::TensorView x, tvm::ffi::TensorView y) {
  const float* in = static_cast<const float*>(x.data_ptr());
  float* out = static_cast<float*>(y.data_ptr());
  for (int64_t i = 0; i < x.size(0) * x.size(1); ++i) out[i] = 2 * in[i] + 1;
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);
"""
NEVER_COMPILES = "// never ends"
_WORKSPACE = """
import torch
space = torch.empty(512, 64)
def run(x):
    part = space[: x.shape[0]]
    part.copy_(x)
    for _ in range(20):
        part.add_(1)
    return 2 * (part - 20) + 1
"""
RAISES = """
calls = 0
def run(x):
    global calls
    calls += 1
    if calls % 3 == 0:
        raise ValueError
    return 2 * x + 1
"""
SOURCES = {
    "workspace": _WORKSPACE,
    "compiled": COMPILED,
    "never_compiles": NEVER_COMPILES + COMPILED,
    "aborts": f"{_IN_A_PROBE}os.abort()\n{RIGHT}",
    "leaves": f"{_IN_A_PROBE}os._exit(0)\n{RIGHT}",
    "loads_slowly": f"import time\ntime.sleep(3)\n{RIGHT}",
    "raises": RAISES,
    "prints": f"print('a' * 10_000)\n{RIGHT}",
}


def write_data_set(root, sources=SOURCES):
    """Write definitions, one solution for each, and traces by which it is ten times faster than the reference."""
    root.mkdir()
    made = TraceSet.from_path(root)
    evaluation = Evaluation(
        "PASSED",
        Environment("cpu"),
        "2026-01-01T00:00:00Z",
        correctness=Correctness(0.0, 0.0),
        performance=Performance(0.1, 1.0, 10.0),
    )
    definitions, solutions, traces = [], [], []
    for name, text in sources.items():
        axes = {"m": AxisVar(), "n": AxisConst(WIDTH)}
        spec = TensorSpec(("m", "n"), "float32")
        definitions.append(Definition(name, "elementwise", axes, {"x": spec}, {"y": spec}, RIGHT))
        is_cpp = COMPILED in text
        build = BuildSpec(
            "cpp" if is_cpp else "python",
            ("cpu",),
            "main.cpp::run" if is_cpp else "main.py::run",
            destination_passing_style=is_cpp,
        )
        source = SourceFile(build.entry_point.partition("::")[0], text)
        solutions.append(Solution(f"{name}_solution", name, "tester", build, (source,)))
        traces += [
            Trace(name, Workload({"m": m}, {"x": RandomInput()}, f"w{m}"), f"{name}_solution", evaluation)
            for m in RECORDED
        ]
    made.add_definitions(definitions)
    made.add_solutions(solutions)
    made.add_traces(traces)
