"""Tests of the plan of a run: pairs that it runs, and the reasons for those that it skips."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from fib_bench import BenchmarkConfig, EvalConfig
from fib_bench.plan import DefinitionPlan, Plan, make_plan
from fib_schema import (
    Correctness,
    Definition,
    Environment,
    Evaluation,
    Performance,
    RandomInput,
    Solution,
    Trace,
    TraceSet,
    UnknownName,
    Workload,
)

MakeSolution = Callable[..., Solution]
H200 = "NVIDIA H200"


@pytest.fixture
def trace_set(definition: Definition, make_workload: Callable[..., Workload], make_solution: MakeSolution) -> TraceSet:
    """``double`` with two solutions and three workloads, and ``triple`` with a solution and nothing to run it on."""
    triple = attrs.evolve(definition, name="triple", op_type="other")
    workloads = [Trace("double", make_workload(definition, {"n": n}, f"w{n}")) for n in (1, 2, 3)]
    a, b = make_solution("def run(x): ...", name="a"), make_solution("def run(x): pass", name="b")
    c = make_solution("def run(x): ...", name="c", definition="triple")
    return TraceSet(
        definitions={"double": definition, "triple": triple},
        solutions={"double": [a, b], "triple": [c]},
        workloads={"double": workloads},
    )


def work(plan: Plan) -> dict[str, dict[str, list[str]]]:
    return {
        part.definition.name: {uuid: [s.name for s in group] for uuid, group in part.pending.items()}
        for part in plan.definitions
    }


def plan_of(trace_set: TraceSet, hardware: str = "cpu", *, resume: bool = False, **fields: object) -> Plan:
    return make_plan(trace_set, BenchmarkConfig(**fields), hardware, resume=resume)


def test_a_definition_without_workloads_is_listed(trace_set: TraceSet) -> None:
    assert [str(skip) for skip in plan_of(trace_set).skipped] == ["triple: it has no workloads"]


def test_of_two_workloads_with_one_uuid_only_the_first_runs(
    trace_set: TraceSet, definition: Definition, make_workload: Callable[..., Workload]
) -> None:
    again = Trace("double", make_workload(definition, {"n": 9}, "w2"))
    others = {"double": [*trace_set.workloads["double"], again]}
    plan = plan_of(
        TraceSet(definitions=trace_set.definitions, solutions=trace_set.solutions, workloads=others),
        definitions=("double",),
    )
    assert [workload.axes["n"] for workload in plan.definitions[0].workloads] == [1, 2, 3]
    assert [(str(skip), skip.is_failure) for skip in plan.skipped] == [
        ("double / w2: an earlier workload has the same uuid; give each a uuid of its own", True)
    ]


def test_names_choose(trace_set: TraceSet) -> None:
    plan = plan_of(trace_set, definitions=("double",), solutions=("b",), max_workloads=2)
    assert work(plan) == {"double": {"w1": ["b"], "w2": ["b"]}}
    assert plan.skipped == ()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"definitions": ("duoble",)}, "no definition is named 'duoble'; did you mean 'double'?"),
        ({"solutions": ("d",)}, "no solution is named 'd'; known are 'a', 'b', 'c'"),
        ({"op_types": ("elemntwise",)}, "no op_type is named 'elemntwise'; did you mean 'elementwise'?"),
    ],
)
def test_a_name_that_matches_nothing_lists_near_misses(
    trace_set: TraceSet, fields: dict[str, tuple[str, ...]], said: str
) -> None:
    with pytest.raises(UnknownName) as caught:
        plan_of(trace_set, **fields)
    assert str(caught.value) == said


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"definitions": ("double",), "solutions": ("c",)},
            [
                "double: it has none of the requested solutions",
                "triple / c: its definition was not requested",
            ],
        ),
        (
            {"definitions": ("double",), "op_types": ("other",)},
            ["double: its op_type was not requested"],
        ),
    ],
)
def test_names_that_leave_nothing_to_each_other_are_listed(
    trace_set: TraceSet, fields: dict[str, tuple[str, ...]], said: list[str]
) -> None:
    if "op_types" in fields:
        fields = {**fields, "definitions": ("double", "triple")}
        said = [*said, "triple: it has no workloads"]
    plan = plan_of(trace_set, **fields)
    assert plan.count == 0
    assert sorted(str(skip) for skip in plan.skipped) == sorted(said)


def test_a_solution_for_other_hardware_is_skipped_with_the_reason(
    trace_set: TraceSet, make_solution: MakeSolution
) -> None:
    trace_set.add_solutions([make_solution("def run(x): 1", name="gpu", hardware=("NVIDIA H200", "cuda"))])
    plan = plan_of(trace_set, solutions=("gpu",))
    assert plan.count == 0
    assert [str(skip) for skip in plan.skipped] == ["double / gpu: made for NVIDIA H200, cuda; this device is 'cpu'"]
    assert not plan.skipped[0].is_failure


@pytest.fixture
def h100_set(trace_set: TraceSet, make_solution: MakeSolution) -> TraceSet:
    trace_set.add_solutions(
        [make_solution(f"def run(x): {n}", name=f"h100_{n}", hardware=("H100", "B200")) for n in range(2)]
    )
    return trace_set


def test_solutions_run_on_hardware_of_the_same_architecture_with_a_note(h100_set: TraceSet) -> None:
    plan = plan_of(h100_set, H200, definitions=("double",), solutions=("h100_0", "h100_1"))
    assert (plan.count, plan.skipped) == (6, ())
    assert plan.notes == (
        "2 solutions made for H100, B200: this device, 'NVIDIA H200', has the same architecture (9.0); "
        "--strict-hardware skips such solutions",
    )


@pytest.mark.parametrize(
    "fields", [{"strict_hardware": True}, {"op_type_config": {"elementwise": EvalConfig(strict_hardware=True)}}]
)
def test_strict_hardware_skips_what_names_other_devices(h100_set: TraceSet, fields: dict[str, object]) -> None:
    plan = plan_of(h100_set, H200, solutions=("h100_0",), definitions=("double",), **fields)
    assert (plan.count, plan.notes) == (0, ())
    assert [str(skip) for skip in plan.skipped] == [
        "double / h100_0: made for H100, B200; this device is 'NVIDIA H200'"
    ]


def test_an_unknown_hardware_name_is_a_failure_with_suggestions(
    trace_set: TraceSet, make_solution: MakeSolution
) -> None:
    trace_set.add_solutions([make_solution("def run(x): 1", name="new", hardware=("H1000",))])
    for hardware in ("cpu", H200):
        plan = plan_of(trace_set, hardware, solutions=("new",))
        (skip,) = plan.skipped
        assert skip.is_failure
        assert skip.reason.startswith("target_hardware: no hardware is named 'H1000'; did you mean 'H100'")
        assert skip.reason.endswith(f"this device is {hardware!r}")
    assert not plan_of(trace_set, solutions=("new",), strict_hardware=True).skipped[0].is_failure


class TestResume:
    def add(self, trace_set: TraceSet, solution: str, workload: str, hardware: str = "cpu", **extra: str) -> None:
        made = next(s for s in trace_set.solutions["double"] if s.name == solution)
        evaluation = Evaluation(
            "PASSED",
            Environment(hardware),
            "2025-01-01",
            correctness=Correctness(),
            performance=Performance(),
            extra={"solution_hash": made.hash(), **extra},
        )
        found = next(t.workload for t in trace_set.workloads["double"] if t.workload.uuid == workload)
        trace_set.add_traces([Trace("double", found, solution, evaluation)])

    def test_leaves_out_what_has_a_trace_and_says_so(self, trace_set: TraceSet) -> None:
        self.add(trace_set, "a", "w1")
        plan = plan_of(trace_set, resume=True, definitions=("double",))
        assert work(plan) == {"double": {"w1": ["b"], "w2": ["a", "b"], "w3": ["a", "b"]}}
        assert [str(skip) for skip in plan.skipped] == ["double / a / w1: a trace of it exists (resume)"]

    @pytest.mark.parametrize("other", [{"solution_hash": "of an earlier version"}, {"hardware": H200}])
    def test_runs_again_what_another_version_or_device_has_done(
        self, trace_set: TraceSet, other: dict[str, str]
    ) -> None:
        self.add(trace_set, "a", "w1", **other)
        assert plan_of(trace_set, resume=True).count == 6

    @pytest.mark.parametrize(("measured", "left"), [(None, 1), ({"x": [2]}, 0)])
    def test_runs_again_what_was_measured_with_another_layout(
        self, definition: Definition, make_solution: MakeSolution, measured: object, left: int
    ) -> None:
        solution = make_solution("def run(x): ...", name="a")
        workload = Workload({"n": 4}, {"x": RandomInput()}, "w", {"layout": {"x": [2]}})
        trace_set = TraceSet(
            None, {"double": definition}, {"double": [solution]}, {"double": [Trace("double", workload)]}
        )
        self.add(trace_set, "a", "w", **({} if measured is None else {"layout": measured}))
        assert plan_of(trace_set, resume=True).count == left


class TestBadFiles:
    @pytest.fixture
    def root(self, make_data_set: Callable[..., Path], make_solution: MakeSolution) -> Path:
        root = make_data_set(make_solution("def run(x): ...", name="a"), make_solution("def run(x): 1", name="bad"))
        file = next(root.rglob("bad.json"))
        file.write_text(file.read_text().replace('"python"', '"cobol"'))
        return root

    def test_a_bad_solution_is_reported_and_the_others_run(self, root: Path) -> None:
        plan = plan_of(TraceSet.from_path(root))
        assert work(plan) == {"double": {"n-4": ["a"]}}
        assert plan.skipped[0].is_failure
        assert "cobol" in plan.skipped[0].reason


class TestSplit:
    @pytest.fixture
    def plan(self, definition: Definition, make_workload: Callable[..., Workload], make_solution: MakeSolution) -> Any:
        """A plan of workloads and solutions."""

        def make(workloads: int, solutions: int) -> DefinitionPlan:
            chosen = tuple(make_solution("pass", name=f"s{index}") for index in range(solutions))
            some = tuple(make_workload(definition, {"n": index + 1}, f"w{index}") for index in range(workloads))
            return DefinitionPlan(definition, some, {workload.uuid: chosen for workload in some})

        return make

    @pytest.mark.parametrize(("workloads", "solutions"), [(1, 1), (1, 7), (2, 3), (5, 2), (16, 1)])
    @pytest.mark.parametrize("pieces", [1, 2, 3, 8, 40])
    def test_each_pair_is_in_one_piece(self, plan: Any, workloads: int, solutions: int, pieces: int) -> None:
        pairs = [
            (uuid, solution.name)
            for piece in plan(workloads, solutions).split(pieces)
            for uuid, some in piece.pending.items()
            for solution in some
        ]
        assert len(pairs) == len(set(pairs)) == workloads * solutions
