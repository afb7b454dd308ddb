"""Tests of the comparison of two runs or two solutions, and of its gate for CI."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from fib_bench.cli.main import main
from fib_bench.report.comparing import ChangeReport, NothingToCompare, Run, compare
from fib_schema import Trace, TraceSet, UnknownName
from hypothesis import given
from hypothesis import strategies as st

MakeResult = Callable[..., Trace]
WriteSet = Callable[..., Path]


def run_of(*traces: Trace, name: str = "run", solution: str | None = None) -> Run:
    groups: dict[str, list[Trace]] = {}
    for trace in traces:
        groups.setdefault(trace.definition, []).append(trace)
    return Run(TraceSet(traces=groups), name, solution)


def verdicts(found: ChangeReport) -> list[str]:
    return [str(pair.verdict) for pair in found.pairs]


@pytest.fixture
def timed(make_result: MakeResult) -> Callable[..., Trace]:
    """A trace with a confidence interval."""

    def make(latency: float, low: float, high: float) -> Trace:
        return make_result("a", "1", latency, performance_extra={"timing": {"interval_ms": [low, high]}})

    return make


class TestVerdicts:
    @pytest.mark.parametrize(
        ("before", "after", "verdict"),
        [
            ((1.0, 0.9, 1.1), (1.2, 1.15, 1.25), "slower"),
            ((1.2, 1.15, 1.25), (1.0, 0.9, 1.1), "faster"),
            ((1.0, 0.9, 1.1), (1.2, 1.05, 1.35), "same"),
            ((1.0, 0.9999, 1.0001), (1.019, 1.0189, 1.0191), "same"),
            ((1.0, 0.9999, 1.0001), (1.021, 1.0209, 1.0211), "slower"),
        ],
    )
    def test_intervals_that_are_apart_decide(
        self, timed: Callable[..., Trace], before: tuple[float, ...], after: tuple[float, ...], verdict: str
    ) -> None:
        found = compare(run_of(timed(*before)), run_of(timed(*after)))
        assert verdicts(found) == [verdict]
        assert found.is_worse == (verdict == "slower")

    @pytest.mark.parametrize(
        ("after", "verdict"), [(1.019, "same"), (1.021, "slower"), (0.981, "same"), (0.97, "faster")]
    )
    def test_without_intervals_the_change_alone_decides(
        self, make_result: MakeResult, timed: Callable[..., Trace], after: float, verdict: str
    ) -> None:
        for before in (make_result("a", "1", 1.0), timed(1.0, 0.5, 2.0)):
            assert verdicts(compare(run_of(before), run_of(make_result("a", "1", after)))) == [verdict]

    def test_what_stops_passing_is_worse_and_comes_first(self, make_result: MakeResult) -> None:
        before = [make_result("a", name, 1.0) for name in "1234"] + [make_result("a", "5")] * 2
        after = [
            make_result("a", "1", 0.5),
            make_result("a", "2", log="Traceback\nValueError: no"),
            make_result("a", "3", 2.0),
            make_result("a", "5", 1.0),
            make_result("a", "6", 1.0),
        ]
        found = compare(run_of(*before), run_of(*after))
        assert verdicts(found) == ["broken", "slower", "faster", "fixed", "missing", "new"]
        assert found.pairs[0].reason == "RUNTIME_ERROR, untrusted output: ValueError: no"
        assert (found.is_worse, found.missing, found.ratio.point) == (True, 1, pytest.approx(1.0))

    def test_what_is_not_ranked_any_more_is_broken_unless_allowed(self, make_result: MakeResult) -> None:
        runs = run_of(make_result("a", "1", 1.0)), run_of(make_result("a", "1", 1.0, flags=["low_precision"]))
        found = compare(*runs)
        assert (verdicts(found), found.pairs[0].reason) == (["broken"], "unranked, flagged: low_precision")
        assert verdicts(compare(*runs, allow_flags=["low_precision"])) == ["same"]

    @pytest.mark.parametrize("latency", [0.0, float("nan"), float("inf")])
    def test_a_latency_that_is_no_number_decides_nothing(self, make_result: MakeResult, latency: float) -> None:
        found = compare(run_of(make_result("a", "1", 1.0)), run_of(make_result("a", "1", latency, speedup=1.0)))
        assert (verdicts(found), found.ratio.point, found.is_worse) == (["unmeasured"], None, False)

    def test_latencies_on_other_inputs_are_not_compared(self, make_result: MakeResult) -> None:
        recorded, made = make_result("a", "1", 1.0), make_result("a", "1", 2.0, flags=["synthesized inputs"])
        (pair,) = compare(run_of(recorded), run_of(made)).pairs
        assert (pair.verdict, pair.reason) == ("unmeasured", "only one run had the recorded inputs")
        assert verdicts(compare(run_of(made), run_of(made))) == ["same"]

    def test_both_failing_is_no_news(self, make_result: MakeResult) -> None:
        found = compare(run_of(make_result("a", "1")), run_of(make_result("a", "1")))
        assert (verdicts(found), found.is_worse) == (["failing"], False)

    @given(st.floats(0.001, 1e4), st.floats(0.001, 1e4), st.floats(0, 1))
    def test_two_runs_the_other_way_round_say_the_opposite(
        self, make_result: MakeResult, one: float, other: float, margin: float
    ) -> None:
        runs = run_of(make_result("a", "1", one)), run_of(make_result("a", "1", other))
        opposite = {"slower": "faster", "faster": "slower", "same": "same"}
        (there,), (back,) = (
            verdicts(compare(*runs, min_change=margin)),
            verdicts(compare(*runs[::-1], min_change=margin)),
        )
        assert back == opposite[there]


class TestSides:
    def test_two_solutions_are_compared_whatever_their_names(self, make_result: MakeResult) -> None:
        traces = make_result("old", "1", 2.0), make_result("new", "1", 1.0), make_result("third", "1", 9.0)
        found = compare(run_of(*traces, solution="old"), run_of(*traces, solution="new"))
        assert [(pair.solution, pair.verdict, pair.ratio.point) for pair in found.pairs] == [("old", "faster", 0.5)]

    def test_devices_are_not_compared(self, make_result: MakeResult) -> None:
        runs = run_of(make_result("a", "1", 1.0, hardware="A100")), run_of(make_result("a", "1", 0.5, hardware="H200"))
        with pytest.raises(NothingToCompare, match="the first ran on A100, the second on H200"):
            compare(*runs)

    def test_unknown_names_are_errors(self, make_result: MakeResult) -> None:
        run = run_of(make_result("a", "1", 1.0))
        with pytest.raises(UnknownName):
            compare(run, run, definitions=["nothing"])
        with pytest.raises(UnknownName):
            compare(run, Run(run.trace_set, "other", "b"))

    def test_runs_of_nothing_are_an_error(self, make_result: MakeResult) -> None:
        with pytest.raises(NothingToCompare, match="two solutions with --solutions"):
            compare(run_of(make_result("b", "1", 1.0)), run_of(make_result("a", "1", 1.0)))


class TestCommand:
    @pytest.fixture
    def sets(self, write_set: WriteSet, make_result: MakeResult) -> list[str]:
        before = write_set(
            make_result("a", "1", 1.0), make_result("b", "1", 3.0), make_result("a", "2", 1.0), name="before"
        )
        after = write_set(make_result("a", "1", 2.0), make_result("b", "1", 3.0), name="after")
        return [str(before), str(after)]

    def test_exits_with_1_if_something_became_slower(self, sets: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["report", "compare", *sets]) == 1
        shown = capsys.readouterr()
        assert "slower" in shown.out
        assert "1 slower, 1 same, 1 missing" in shown.out
        assert "tried before only: 1 workload (" in shown.err

    def test_exits_with_0_if_nothing_did(self, sets: list[str]) -> None:
        assert main(["report", "compare", *sets[::-1]]) == 0
        assert main(["report", "compare", *sets, "--min-change", "1.5"]) == 0
        assert main(["report", "compare", *sets, "--min-change", "1.5", "--complete"]) == 1

    def test_solutions_of_one_set(self, sets: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["report", "compare", sets[0], "--solutions", "a", "b", "--json"]) == 1
        found = json.loads(capsys.readouterr().out)
        assert (found["is_worse"], found["counts"]) == (True, {"slower": 1, "missing": 1})
        assert main(["report", "compare", sets[0], "--solutions", "b", "a"]) == 0

    def test_json_has_each_pair(self, sets: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        main(["report", "compare", *sets, "--json"])
        pairs = json.loads(capsys.readouterr().out)["pairs"]
        assert [(pair["verdict"], pair["workload"]) for pair in pairs] == [
            ("slower", "1"),
            ("same", "1"),
            ("missing", "2"),
        ]

    def test_one_set_alone_is_no_request(self, sets: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["report", "compare", sets[0]]) == 2
        assert "two data sets, or --solutions X Y and one" in capsys.readouterr().err

    def test_bad_files_are_named_if_nothing_can_be_compared(
        self, sets: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        (bad,) = (Path(sets[1]) / "traces").rglob("*.jsonl")
        bad.write_text("{\n")
        assert main(["report", "compare", *sets, "--json"]) == 2
        assert f"error: {bad}:1" in capsys.readouterr().err
