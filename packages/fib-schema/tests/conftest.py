"""Shared fixtures: small records, and the public data set if it is installed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
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


@pytest.fixture
def definition() -> Definition:
    return Definition(
        name="gemm",
        op_type="gemm",
        axes={"M": AxisVar(), "N": AxisConst(value=4), "K": AxisVar()},
        inputs={"A": TensorSpec(["M", "K"], "float16"), "B": TensorSpec(["N", "K"], "float16")},
        outputs={"C": TensorSpec(["M", "N"], "float16")},
        reference="def run(A, B):\n    return A @ B.T\n",
    )


@pytest.fixture
def make_solution() -> Callable[..., Solution]:
    def make(name: str = "fast", author: str = "ada", definition: str = "gemm", content: str = "x") -> Solution:
        spec = BuildSpec("python", ["cpu"], "main.py::run", destination_passing_style=False)
        return Solution(name, definition, author, spec, [SourceFile("main.py", content)])

    return make


@pytest.fixture
def make_trace() -> Callable[..., Trace]:
    def make(
        solution: str = "fast",
        uuid: str = "w0",
        speedup: float = 2.0,
        axes: dict[str, int] | None = None,
        definition: str = "gemm",
        absolute: float = 0.0,
        relative: float = 0.0,
        status: str = "PASSED",
        latency: float = 1.0,
        flags: Sequence[str] = (),
    ) -> Trace:
        passed = status == "PASSED"
        evaluation = Evaluation(
            status=status,
            environment=Environment("cpu"),
            timestamp="2026-01-01T00:00:00",
            correctness=Correctness(relative, absolute) if passed else None,
            performance=Performance(latency, latency * speedup, speedup) if passed else None,
            extra={"flags": list(flags)} if flags else None,
        )
        workload = Workload(axes or {"M": 1, "K": 2}, {"A": RandomInput(), "B": RandomInput()}, uuid)
        return Trace(definition, workload, solution, evaluation)

    return make


@pytest.fixture
def trace_set(tmp_path: Path, definition: Definition, make_solution: Callable[..., Solution]) -> TraceSet:
    root = tmp_path / "set"
    root.mkdir()
    made = TraceSet.from_path(root)
    made.add_definitions([definition])
    made.add_solutions([make_solution("fast", "ada"), make_solution("slow", "bob")])
    return made


@pytest.fixture(scope="session")
def public_data() -> Path:
    """The public flashinfer-trace data set, or a part of it."""
    given = os.environ.get("FIB_TEST_DATASET")
    here = Path(__file__).resolve()
    beside = [parent.parent / "shared" / "flashinfer-trace" for parent in here.parents if (parent / ".git").exists()]
    for path in [Path(given)] if given else beside:
        if path.is_dir():
            return path
    pytest.skip("the public flashinfer-trace data set is not here; set FIB_TEST_DATASET to its folder")
