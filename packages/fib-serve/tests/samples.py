"""Samples that the tests of fib-serve share: a small data set, solutions and traces."""

import json
from pathlib import Path

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
from fib_serve.database import audit
from fib_serve.queue import claim, complete, record
from fib_serve.submissions import NewSubmission, find_submission
from sqlalchemy import select

GOOD = "def run(x):\n    return x * 2\n"
WRONG = "def run(x):\n    return x * 3\n"


def make_definition(name="double"):
    return Definition(
        name=name,
        op_type="elementwise",
        axes={"n": AxisVar()},
        inputs={"x": TensorSpec(("n",), "float32")},
        outputs={"y": TensorSpec(("n",), "float32")},
        reference="def run(x):\n    return x * 2\n",
        description="Twice the input.",
    )


def make_workloads(prefix="double", sizes=(4, 8)):
    return [Workload({"n": size}, {"x": RandomInput()}, f"{prefix}-{size}") for size in sizes]


def make_solution(source=GOOD, name="mine", author="alice", **changes):
    spec = BuildSpec("python", ("cpu",), "kernel.py::run", destination_passing_style=False)
    solution = Solution(name, "double", author, spec, (SourceFile("kernel.py", source),))
    return attrs.evolve(solution, **changes)


def new_submission(user_id, source=GOOD, name="mine", **options):
    solution = make_solution(source, name).with_unique_name()
    return NewSubmission(user_id=user_id, solution=solution, workloads=None, planned=2, **options)


def make_trace(workload, solution, status="PASSED", log=""):
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


def write_data_set(root, prefix="double", sizes=(4, 8)):
    root.mkdir(parents=True)
    trace_set = TraceSet.from_path(root)
    trace_set.add_definitions([make_definition()])
    trace_set.add_traces([Trace("double", workload) for workload in make_workloads(prefix, sizes)])
    return root


def finish(database, data_set, log="", **values):
    """Play the worker: record traces for the next submission, passing ones by default; returns its id."""
    claimed = claim(database, "cpu", 2)
    catalog = Catalog.read(Path(data_set))
    for workload in make_workloads():
        trace = make_trace(workload, claimed.solution.name, values.get("verdict", "PASSED"), log)
        record(database, claimed, catalog, make_definition(), trace)
    columns = {"verdict": "PASSED", "passed": 2, "is_ranked": True, "score": 2.0, "hardware": "cpu"}
    complete(database, claimed, columns | {"summary": {"public": {"speedup_text": "2x", "problem": log}}} | values)
    return claimed.submission.id


def read(database, identifier):
    with database.read() as connection:
        return find_submission(connection, identifier)


def actions_of(database):
    """The actions of the audit log, the oldest first."""
    with database.read() as connection:
        return list(connection.execute(select(audit.c.action).order_by(audit.c.id)).scalars())


def bearer(token):
    return {"Authorization": f"Bearer {token}"}


def plain_solution(source=GOOD, name="mine"):
    return json.loads(json.dumps(to_plain(make_solution(source, name))))
