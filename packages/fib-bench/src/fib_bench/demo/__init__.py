"""A small example data set: `write_demo` writes it, the command ``fib-bench demo`` benchmarks it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import attrs
from fib_schema import Solution, Trace, TraceSet

from ..authoring.definitions import definition_from_reference, random_workload
from ..authoring.inference import infer_kernel

AUTHOR = "fib-demo"
CPU_NOTE = (
    "CPU timings are for development. Marks of speedups: noise, if its interval includes 1; wide, if that is wider "
    "than 10 %. Triton kernels run in the interpreter: their results are checked, their latency has no meaning."
)
NEXT_STEPS = """
Each solution ran in a worker process of its own; a judge compared its outputs with the definition's
reference and appended one trace per solution and workload below {dir}/traces.

Next:
  fib-bench report best {dir} --include-unranked
                                        the fastest passing solution of each workload
  fib-bench report summary {dir} --json
                                        the same numbers for programs
  fib-bench add FILE --definition rmsnorm_h1024 --dataset {dir} --quick
                                        add a kernel of your own, and evaluate it
  fib-bench run {dir} --resume
                                        evaluate the solutions without traces
"""


@attrs.frozen
class _Kernel:
    """One definition of the demo; its reference and solutions are files in the folder of its op_type."""

    name: str
    op_type: str
    description: str
    axis: str
    """The variable axis."""
    sizes: tuple[int, ...]
    """Its sizes, one workload each."""
    solutions: Mapping[str, str]
    """Files by the name of the solution."""

    def write(self, trace_set: TraceSet) -> None:
        """Add the definition, its workloads and its solutions to a data set."""
        folder = Path(__file__).parent / self.op_type
        definition = definition_from_reference(
            self.name, folder / "reference.py", op_type=self.op_type, description=self.description
        )
        kernels = {name: infer_kernel(folder / file, definition) for name, file in self.solutions.items()}
        workloads = [random_workload(definition, {self.axis: size}) for size in self.sizes]
        trace_set.add_definitions([definition])
        trace_set.add_traces([Trace(self.name, workload) for workload in workloads])
        trace_set.add_solutions([
            Solution(name, self.name, AUTHOR, kernel.spec, kernel.sources) for name, kernel in kernels.items()
        ])  # fmt: skip


_KERNELS = (
    _Kernel(
        "rmsnorm_h1024",
        "rmsnorm",
        "Root-mean-square normalisation of rows, with eps 1e-6.",
        "batch_size",
        (1, 8, 64),
        {
            "rmsnorm_torch": "torch_norm.py",
            "rmsnorm_triton": "triton_rows.py",
            "rmsnorm_cpp": "rows.cpp",
            "rmsnorm_without_weight": "wrong.py",
        },
    ),
    _Kernel(
        "gemm_n256_k256",
        "gemm",
        "C = A B^T.",
        "M",
        (1, 16, 64),
        {"gemm_linear": "torch_linear.py", "gemm_triton_tiles": "triton_tiles.py", "gemm_cpp_blocked": "blocked.cpp"},
    ),
    _Kernel(
        "softmax_n2048",
        "softmax",
        "Softmax of rows.",
        "rows",
        (1, 8, 64),
        {"softmax_torch": "torch_softmax.py", "softmax_triton": "triton_rows.py", "softmax_cpp_online": "online.cpp"},
    ),
)


def write_demo(root: Path) -> None:
    """Write the demo's definitions, workloads and solutions below a folder; definitions that it has stay."""
    root.mkdir(parents=True, exist_ok=True)
    trace_set = TraceSet.from_path(root)
    for kernel in _KERNELS:
        if kernel.name not in trace_set.definitions:
            kernel.write(trace_set)
