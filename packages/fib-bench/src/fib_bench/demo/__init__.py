"""A small example data set: `write_demo` writes it, the command ``fib-bench demo`` benchmarks it."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

import attrs
from fib_schema import (
    AxisConst,
    AxisVar,
    BuildSpec,
    Definition,
    RandomInput,
    Solution,
    SourceFile,
    TensorSpec,
    Trace,
    TraceSet,
    Workload,
)

AUTHOR = "fib-demo"
CPU_NOTE = (
    "CPU timings are for development: a speedup is a number only where its interval excludes 1 (else noise) and "
    "is narrow (else imprecise). Triton kernels run in the interpreter: their results are checked, their latency has "
    "no meaning."
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
    """One definition of the demo with its sizes and solutions."""

    name: str
    op_type: str
    axes: Mapping[str, AxisConst | AxisVar]
    inputs: Mapping[str, tuple[str, ...]]
    output: tuple[str, tuple[str, ...]]
    sizes: tuple[int, ...]
    """Values of the variable axis, one workload each."""
    solutions: Mapping[str, str]
    """Names of solutions and their files in the folder of the op_type."""
    description: str


_KERNELS = (
    _Kernel(
        name="rmsnorm_h1024",
        op_type="rmsnorm",
        axes={"batch_size": AxisVar(), "hidden_size": AxisConst(value=1024)},
        inputs={"x": ("batch_size", "hidden_size"), "weight": ("hidden_size",)},
        output=("y", ("batch_size", "hidden_size")),
        sizes=(1, 8, 64),
        solutions={
            "rmsnorm_torch": "torch_norm.py",
            "rmsnorm_triton": "triton_rows.py",
            "rmsnorm_cpp": "rows.cpp",
            "rmsnorm_without_weight": "wrong.py",
        },
        description="Root-mean-square normalisation of rows, with eps 1e-6.",
    ),
    _Kernel(
        name="gemm_n256_k256",
        op_type="gemm",
        axes={"M": AxisVar(), "N": AxisConst(value=256), "K": AxisConst(value=256)},
        inputs={"A": ("M", "K"), "B": ("N", "K")},
        output=("C", ("M", "N")),
        sizes=(1, 16, 64),
        solutions={
            "gemm_linear": "torch_linear.py",
            "gemm_triton_tiles": "triton_tiles.py",
            "gemm_cpp_blocked": "blocked.cpp",
        },
        description="C = A B^T.",
    ),
    _Kernel(
        name="softmax_n2048",
        op_type="softmax",
        axes={"rows": AxisVar(), "columns": AxisConst(value=2048)},
        inputs={"x": ("rows", "columns")},
        output=("y", ("rows", "columns")),
        sizes=(1, 8, 64),
        solutions={
            "softmax_torch": "torch_softmax.py",
            "softmax_triton": "triton_rows.py",
            "softmax_cpp_online": "online.cpp",
        },
        description="Softmax of rows.",
    ),
)


def write_demo(root: Path) -> None:
    """Write the demo's definitions, workloads and solutions below a folder.

    Definitions that the folder already has are left unchanged.

    Raises:
        DuplicateName: The folder holds another data set with solutions of the same names.
    """
    root.mkdir(parents=True, exist_ok=True)
    trace_set = TraceSet.from_path(root)
    for kernel in _KERNELS:
        if kernel.name in trace_set.definitions:
            continue
        trace_set.add_definitions([_definition(kernel)])
        trace_set.add_traces([Trace(kernel.name, workload) for workload in _workloads(kernel)])
        trace_set.add_solutions([_solution(kernel, *item) for item in kernel.solutions.items()])


def _definition(kernel: _Kernel) -> Definition:
    output, shape = kernel.output
    return Definition(
        name=kernel.name,
        op_type=kernel.op_type,
        axes=kernel.axes,
        inputs={name: TensorSpec(axes, "float32") for name, axes in kernel.inputs.items()},
        outputs={output: TensorSpec(shape, "float32")},
        reference=_read(kernel, "reference.py"),
        description=kernel.description,
    )


def _workloads(kernel: _Kernel) -> list[Workload]:
    axis = next(name for name, spec in kernel.axes.items() if isinstance(spec, AxisVar))
    inputs = {name: RandomInput() for name in kernel.inputs}
    return [Workload({axis: size}, inputs, f"{kernel.name}-{axis}-{size}") for size in kernel.sizes]


def _solution(kernel: _Kernel, name: str, file: str) -> Solution:
    language = _language(file)
    spec = BuildSpec(
        language=language,
        target_hardware=("cpu",) if language == "cpp" else ("cpu", "cuda"),
        entry_point=f"{file}::run",
        destination_passing_style=language != "python",
    )
    return Solution(name, kernel.name, AUTHOR, spec, (SourceFile(file, _read(kernel, file)),))


def _language(file: str) -> str:
    if file.endswith(".cpp"):
        return "cpp"
    return "triton" if file.startswith("triton") else "python"


def _read(kernel: _Kernel, file: str) -> str:
    return files(__package__).joinpath(kernel.op_type, file).read_text(encoding="utf-8")
