"""Tests of the plan of a run: pairs that it runs, and the reasons for those that it skips."""

import attrs
import pytest
from fib_bench import BenchmarkConfig
from fib_bench.plan import DefinitionPlan, make_plan
from fib_schema import RandomInput, Trace, TraceSet, UnknownName, Workload

from .samples import DOUBLE, make_result, make_solution, make_workload

H200 = "NVIDIA H200"


@pytest.fixture
def trace_set():
    """``double`` with two solutions and three workloads, and ``triple`` with a solution and nothing to run it on."""
    triple = attrs.evolve(DOUBLE, name="triple", op_type="other")
    workloads = [Trace("double", make_workload(DOUBLE, {"n": n}, f"w{n}")) for n in (1, 2, 3)]
    a, b = make_solution("def run(x): ...", name="a"), make_solution("def run(x): pass", name="b")
    c = make_solution("def run(x): ...", name="c", definition="triple")
    return TraceSet(
        definitions={"double": DOUBLE, "triple": triple},
        solutions={"double": [a, b], "triple": [c]},
        workloads={"double": workloads},
    )


def work(plan):
    return {
        part.definition.name: {uuid: [s.name for s in group] for uuid, group in part.pending.items()}
        for part in plan.definitions
    }


def plan_of(trace_set, hardware="cpu", *, resume=False, **fields):
    return make_plan(trace_set, BenchmarkConfig(**fields), hardware, resume=resume)


def test_a_definition_without_workloads_is_listed(trace_set):
    assert [str(skip) for skip in plan_of(trace_set).skipped] == ["triple: it has no workloads"]


def test_of_two_workloads_with_one_uuid_only_the_first_runs(trace_set):
    again = Trace("double", make_workload(DOUBLE, {"n": 9}, "w2"))
    others = {"double": [*trace_set.workloads["double"], again]}
    plan = plan_of(
        TraceSet(definitions=trace_set.definitions, solutions=trace_set.solutions, workloads=others),
        definitions=("double",),
    )
    assert [workload.axes["n"] for workload in plan.definitions[0].workloads] == [1, 2, 3]
    assert [(str(skip), skip.is_failure) for skip in plan.skipped] == [
        ("double / w2: an earlier workload has the same uuid; give each a uuid of its own", True)
    ]


def test_names_choose(trace_set):
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
def test_a_name_that_matches_nothing_lists_near_misses(trace_set, fields, said):
    with pytest.raises(UnknownName) as caught:
        plan_of(trace_set, **fields)
    assert str(caught.value) == said


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"definitions": ("double",), "solutions": ("c",)},
            ["double: it has none of the requested solutions", "triple / c: its definition was not requested"],
        ),
        ({"definitions": ("double",), "op_types": ("other",)}, ["double: its op_type was not requested"]),
    ],
)
def test_names_that_leave_nothing_to_each_other_are_listed(trace_set, fields, said):
    if "op_types" in fields:
        fields = {**fields, "definitions": ("double", "triple")}
        said = [*said, "triple: it has no workloads"]
    plan = plan_of(trace_set, **fields)
    assert plan.count == 0
    assert sorted(str(skip) for skip in plan.skipped) == sorted(said)


@pytest.mark.parametrize(
    ("bad", "fields", "reasons"),
    [
        ("triple.json", {"definitions": ("double", "triple")}, ["triple: not a valid Definition"]),
        ("triple.json", {"solutions": ("a", "b", "c")}, ["triple: not a valid Definition"]),
        ("c.json", {"solutions": ("a", "b", "c")}, ["triple / c: not a valid Solution"]),
        ("c.json", {}, ["triple / c: not a valid Solution"]),
    ],
)
def test_a_bad_file_costs_only_itself(trace_set, tmp_path, bad, fields, reasons):
    stored = TraceSet(tmp_path)
    stored.add_definitions(trace_set.definitions.values())
    stored.add_solutions([*trace_set.solutions["double"], *trace_set.solutions["triple"]])
    stored.add_traces([*trace_set.workloads["double"], Trace("triple", make_workload(DOUBLE, {"n": 4}, "w4"))])
    next(tmp_path.rglob(bad)).write_text("{")
    plan = plan_of(TraceSet.from_path(tmp_path), **fields)
    assert work(plan) == {"double": {uuid: ["a", "b"] for uuid in ("w1", "w2", "w3")}}
    assert [str(skip).partition(":\n")[0] for skip in plan.skipped if skip.is_failure] == reasons


def test_a_solution_for_other_hardware_is_skipped_with_the_reason(trace_set):
    trace_set.add_solutions([make_solution("def run(x): 1", name="gpu", hardware=("NVIDIA H200", "cuda"))])
    plan = plan_of(trace_set, solutions=("gpu",))
    assert plan.count == 0
    assert [str(skip) for skip in plan.skipped] == ["double / gpu: made for NVIDIA H200, cuda; this device is 'cpu'"]
    assert not plan.skipped[0].is_failure


@pytest.fixture
def h100_set(trace_set):
    trace_set.add_solutions(
        [make_solution(f"def run(x): {n}", name=f"h100_{n}", hardware=("H100", "B200")) for n in range(2)]
    )
    return trace_set


def test_solutions_run_on_hardware_of_the_same_architecture_with_a_note(h100_set):
    plan = plan_of(h100_set, H200, definitions=("double",), solutions=("h100_0", "h100_1"))
    assert (plan.count, plan.skipped) == (6, ())
    assert plan.notes == (
        "2 solutions made for H100, B200: this device, 'NVIDIA H200', has the same architecture (9.0)",
    )


def test_an_unknown_hardware_name_is_a_failure_with_suggestions(trace_set):
    trace_set.add_solutions([make_solution("def run(x): 1", name="new", hardware=("H1000",))])
    for hardware in ("cpu", H200):
        plan = plan_of(trace_set, hardware, solutions=("new",))
        (skip,) = plan.skipped
        assert skip.is_failure
        assert skip.reason.startswith("target_hardware: no hardware is named 'H1000'; did you mean 'H100'")
        assert skip.reason.endswith(f"this device is {hardware!r}")


class TestResume:
    def add(self, trace_set, solution, workload, hardware="cpu", **extra):
        made = next(s for s in trace_set.solutions["double"] if s.name == solution)
        evaluation = make_result(solution, workload, 1.0, hardware=hardware).evaluation
        evaluation = attrs.evolve(evaluation, extra={"solution_hash": made.hash(), **extra})
        found = next(t.workload for t in trace_set.workloads["double"] if t.workload.uuid == workload)
        trace_set.add_traces([Trace("double", found, solution, evaluation)])

    def test_leaves_out_what_has_a_trace_and_says_so(self, trace_set):
        self.add(trace_set, "a", "w1")
        plan = plan_of(trace_set, resume=True, definitions=("double",))
        assert work(plan) == {"double": {"w1": ["b"], "w2": ["a", "b"], "w3": ["a", "b"]}}
        assert [str(skip) for skip in plan.skipped] == ["double / a / w1: a trace of it exists (resume)"]

    @pytest.mark.parametrize("other", [{"solution_hash": "of an earlier version"}, {"hardware": H200}])
    def test_runs_again_what_another_version_or_device_has_done(self, trace_set, other):
        self.add(trace_set, "a", "w1", **other)
        assert plan_of(trace_set, resume=True).count == 6

    @pytest.mark.parametrize(("measured", "left"), [(None, 1), ({"x": [2]}, 0)])
    def test_runs_again_what_was_measured_with_another_layout(self, measured, left):
        solution = make_solution("def run(x): ...", name="a")
        workload = Workload({"n": 4}, {"x": RandomInput()}, "w", {"layout": {"x": [2]}})
        trace_set = TraceSet(None, {"double": DOUBLE}, {"double": [solution]}, {"double": [Trace("double", workload)]})
        self.add(trace_set, "a", "w", **({} if measured is None else {"layout": measured}))
        assert plan_of(trace_set, resume=True).count == left


@pytest.mark.parametrize(("workloads", "solutions"), [(1, 1), (1, 7), (2, 3), (5, 2), (16, 1)])
@pytest.mark.parametrize("pieces", [1, 2, 3, 8, 40])
def test_each_pair_is_in_one_piece(workloads, solutions, pieces):
    chosen = tuple(make_solution("pass", name=f"s{index}") for index in range(solutions))
    some = tuple(make_workload(DOUBLE, {"n": index + 1}, f"w{index}") for index in range(workloads))
    plan = DefinitionPlan(DOUBLE, some, {workload.uuid: chosen for workload in some})
    pairs = [
        (uuid, solution.name)
        for piece in plan.split(pieces)
        for uuid, those in piece.pending.items()
        for solution in those
    ]
    assert len(pairs) == len(set(pairs)) == workloads * solutions
