"""Coverage of data sets: `fib_bench.coverage` and ``fib-bench validate --coverage``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fib_bench import BenchmarkConfig
from fib_bench.cli.main import main
from fib_bench.coverage import DefinitionCoverage, measure_coverage, run_references
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
)

QUICK = BenchmarkConfig(quick=True, timeout_seconds=60)


def definition(name: str, reference: str = "def run(x):\n    return x * 2\n") -> Definition:
    return Definition(
        name=name,
        op_type="pointwise",
        axes={"n": AxisVar()},
        inputs={"x": TensorSpec(["n"], "float32")},
        outputs={"y": TensorSpec(["n"], "float32")},
        reference=reference,
    )


def workload(name: str, size: int) -> Trace:
    return Trace(name, Workload({"n": size}, {"x": RandomInput()}, f"{name}{size}"))


def solution(name: str, author: str, definition: str) -> Solution:
    spec = BuildSpec(language="python", target_hardware=("cpu",), entry_point="main.py::run")
    return Solution(name, definition, author, spec, (SourceFile("main.py", "def run(x, y):\n    y.copy_(x * 2)\n"),))


def passed(solution: str, of: Trace) -> Trace:
    evaluation = Evaluation(
        status="PASSED",  # type: ignore[arg-type] # converted
        environment=Environment("cpu"),
        timestamp="2026-01-01T00:00:00",
        correctness=Correctness(),
        performance=Performance(1.0, 2.0, 2.0),
    )
    return Trace(of.definition, of.workload, solution, evaluation)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """`whole` lacks nothing, `broken` has a reference that raises and two baselines, `empty` has nothing."""
    root = tmp_path / "set"
    root.mkdir()
    trace_set = TraceSet.from_path(root)
    raising = "def run(x):\n    raise RuntimeError('<no luck>')\n"
    trace_set.add_definitions([definition("whole"), definition("broken", raising), definition("empty")])
    names = {"whole": ("base",), "broken": ("first", "second")}
    trace_set.add_solutions(solution(s, "baseline", name) for name, solutions in names.items() for s in solutions)
    workloads = [workload(name, size) for name in names for size in (3, 5)]
    trace_set.add_traces([*workloads, *(passed("base", each) for each in workloads[:2]), passed("first", workloads[2])])
    return root


class TestMeasure:
    def test_gaps_without_running_anything(self, root: Path) -> None:
        found = {row.name: row for row in measure_coverage(TraceSet.from_path(root)).definitions}
        assert found["whole"] == DefinitionCoverage("whole", "pointwise", 2, 1, ("base",), 2)
        assert found["whole"].gaps == ()
        assert found["empty"].gaps == ("it has no workloads", "it has no baseline")
        assert found["broken"].gaps == (
            "it has 2 baselines, and scores need one: first, second",
            "its baseline passed on 1 of 2 workloads",
        )

    def test_only_the_named_references_run(self, root: Path) -> None:
        assert list(run_references(TraceSet.from_path(root), QUICK, ["empty"])) == ["empty"]

    def test_another_author_may_own_the_baselines(self, root: Path) -> None:
        rows = measure_coverage(TraceSet.from_path(root), baseline_author="nobody").definitions
        assert all("it has no baseline" in row.gaps for row in rows)

    def test_a_definition_that_cannot_be_read_is_a_gap(self, root: Path) -> None:
        (root / "definitions/pointwise/empty.json").write_text('{"name": "empty"}')
        (row,) = [row for row in measure_coverage(TraceSet.from_path(root)).definitions if row.name == "empty"]
        assert row.gaps[0].startswith("it cannot be read: ")


class TestCommand:
    def test_text_ends_with_a_summary(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["validate", str(root), "--coverage", "--no-references"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert "pointwise/empty: it has no workloads" in lines
        assert lines[-1] == f"{root}: of 3 definitions 2 have workloads, 1 have a baseline, 1 lack nothing"

    @pytest.mark.slow
    def test_json_with_references(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["validate", str(root), "--json", "--coverage"]) == 0
        coverage = json.loads(capsys.readouterr().out)["coverage"]
        assert not coverage["is_complete"]
        found = {row["name"]: row for row in coverage["definitions"]}
        assert found["whole"]["reference"] == {"passed": 2, "total": 2, "problems": []}
        assert found["whole"]["gaps"] == []
        assert found["broken"]["reference"]["passed"] == 0
        assert "<no luck>" in " ".join(found["broken"]["reference"]["problems"])

    def test_without_the_option_there_is_no_coverage(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["validate", str(root), "--json"]) == 0
        assert "coverage" not in json.loads(capsys.readouterr().out)
