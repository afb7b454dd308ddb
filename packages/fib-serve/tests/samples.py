"""Samples that the tests of fib-serve share: a small data set, solutions and traces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
from fib_schema import (
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
    to_plain,
)
from fib_serve.contest import Catalog
from fib_serve.database import Database
from fib_serve.queue import claim, complete, record
from fib_serve.submissions import Submission, find_submission

GOOD = "def run(x):\n    return x * 2\n"
WRONG = "def run(x):\n    return x * 3\n"


def make_definition(name: str = "double") -> Definition:
    return Definition(
        name=name,
        op_type="elementwise",
        axes={"n": AxisVar()},
        inputs={"x": TensorSpec(("n",), "float32")},
        outputs={"y": TensorSpec(("n",), "float32")},
        reference="def run(x):\n    return x * 2\n",
        description="Twice the input.",
    )


def make_workloads(prefix: str = "double", sizes: tuple[int, ...] = (4, 8)) -> list[Workload]:
    return [Workload({"n": size}, {"x": RandomInput()}, f"{prefix}-{size}") for size in sizes]


def make_solution(source: str = GOOD, name: str = "mine", author: str = "alice", **changes: Any) -> Solution:
    spec = BuildSpec("python", ("cpu",), "kernel.py::run", destination_passing_style=False)
    solution = Solution(name, "double", author, spec, (SourceFile("kernel.py", source),))
    return attrs.evolve(solution, **changes)


def make_trace(workload: Workload, solution: str, status: str = "PASSED", log: str = "") -> Trace:
    has_numbers = status in ("PASSED", "INCORRECT_NUMERICAL")
    evaluation = Evaluation(
        status,
        Environment("cpu"),
        "2026-01-01T00:00:00Z",
        log,
        Correctness() if has_numbers else None,
        Performance(1.0, 2.0, 2.0) if status == "PASSED" else None,
        {"isolation": {"level": 3, "measures": []}},
    )
    return Trace("double", workload, solution, evaluation)


def write_data_set(root: Path, prefix: str = "double", sizes: tuple[int, ...] = (4, 8)) -> Path:
    root.mkdir(parents=True)
    trace_set = TraceSet.from_path(root)
    trace_set.add_definitions([make_definition()])
    trace_set.add_traces([Trace("double", workload) for workload in make_workloads(prefix, sizes)])
    return root


def finish(database: Database, data_set: str, log: str = "", **values: Any) -> str:
    """Play the worker: record passing traces for the next submission; returns its id."""
    claimed = claim(database, "cpu")
    assert claimed is not None
    catalog = Catalog.read(Path(data_set))
    for workload in make_workloads():
        record(database, claimed, catalog, make_definition(), make_trace(workload, claimed.solution.name, log=log))
    columns = {"verdict": "PASSED", "passed": 2, "is_ranked": True, "score": 2.0, "hardware": "cpu", "harness": "1"}
    complete(database, claimed, columns | {"summary": {"public": {"speedup_text": "2x", "problem": log}}} | values)
    return claimed.submission.id


def read(database: Database, identifier: str) -> Submission:
    with database.read() as connection:
        return find_submission(connection, identifier)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def plain_solution(source: str = GOOD, name: str = "mine") -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps(to_plain(make_solution(source, name))))
    return plain
