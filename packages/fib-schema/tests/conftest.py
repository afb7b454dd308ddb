"""Shared fixtures: small records, and the public data set if it is installed."""

import os
import resource
from contextlib import contextmanager
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


@contextmanager
def files_limited_to(size_bytes):
    """Limit the size of files that this process writes, as on a disk that is full: `write` ends in the middle."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.fixture
def definition():
    return Definition(
        name="gemm",
        op_type="gemm",
        axes={"M": AxisVar(), "N": AxisConst(value=4), "K": AxisVar()},
        inputs={"A": TensorSpec(["M", "K"], "float16"), "B": TensorSpec(["N", "K"], "float16")},
        outputs={"C": TensorSpec(["M", "N"], "float16")},
        reference="def run(A, B):\n    return A @ B.T\n",
    )


@pytest.fixture
def make_solution():
    def make(name="fast", author="ada", definition="gemm", content="x"):
        spec = BuildSpec("python", ["cpu"], "main.py::run", destination_passing_style=False)
        return Solution(name, definition, author, spec, [SourceFile("main.py", content)])

    return make


@pytest.fixture
def make_trace():
    def make(
        solution="fast",
        uuid="w0",
        speedup=2.0,
        axes=None,
        definition="gemm",
        absolute=0.0,
        relative=0.0,
        status="PASSED",
        latency=1.0,
        flags=(),
    ):
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
def trace_set(tmp_path, definition, make_solution):
    root = tmp_path / "set"
    root.mkdir()
    made = TraceSet.from_path(root)
    made.add_definitions([definition])
    made.add_solutions([make_solution("fast", "ada"), make_solution("slow", "bob")])
    return made


@pytest.fixture(scope="session")
def public_data():
    """The public flashinfer-trace data set, or a part of it."""
    given = os.environ.get("FIB_TEST_DATASET")
    here = Path(__file__).resolve()
    beside = [parent.parent / "shared" / "flashinfer-trace" for parent in here.parents if (parent / ".git").exists()]
    for path in [Path(given)] if given else beside:
        if path.is_dir():
            return path
    pytest.skip("the public flashinfer-trace data set is not here; set FIB_TEST_DATASET to its folder")
