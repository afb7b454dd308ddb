"""Tests of the comparison of two runs, and of its gate for CI."""

import json
from pathlib import Path

import pytest
from fib_bench.cli.main import main
from fib_bench.report.comparing import NothingToCompare, compare
from hypothesis import given
from hypothesis import strategies as st

from .samples import make_result, trace_set_of


def verdicts(found):
    return [str(pair.verdict) for pair in found.pairs]


def timed(latency, low, high):
    """A trace with a confidence interval."""
    return make_result("a", "1", latency, performance_extra={"timing": {"interval_ms": [low, high]}})


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
    def test_intervals_that_are_apart_decide(self, before, after, verdict):
        found = compare(trace_set_of(timed(*before)), trace_set_of(timed(*after)))
        assert verdicts(found) == [verdict]
        assert found.is_worse == (verdict == "slower")

    @pytest.mark.parametrize(("after", "said"), [(1.019, "same"), (1.021, "slower"), (0.981, "same"), (0.97, "faster")])
    def test_without_intervals_the_change_alone_decides(self, after, said):
        for before in (make_result("a", "1", 1.0), timed(1.0, 0.5, 2.0)):
            assert verdicts(compare(trace_set_of(before), trace_set_of(make_result("a", "1", after)))) == [said]

    def test_what_stops_passing_is_worse_and_comes_first(self):
        before = [make_result("a", name, 1.0) for name in "1234"] + [make_result("a", "5")] * 2
        after = [
            make_result("a", "1", 0.5),
            make_result("a", "2", log="Traceback\nValueError: no"),
            make_result("a", "3", 2.0),
            make_result("a", "5", 1.0),
            make_result("a", "6", 1.0),
        ]
        found = compare(trace_set_of(*before), trace_set_of(*after))
        assert verdicts(found) == ["broken", "slower", "faster", "fixed", "missing", "new"]
        assert found.pairs[0].reason == "RUNTIME_ERROR, untrusted output: ValueError: no"
        assert (found.is_worse, found.counts["missing"], found.ratio.point) == (True, 1, pytest.approx(1.0))
        failing = compare(*[trace_set_of(make_result("a", "1"))] * 2)
        assert (verdicts(failing), failing.is_worse) == (["failing"], False)

    def test_what_is_not_ranked_any_more_is_broken_unless_allowed(self):
        runs = (
            trace_set_of(make_result("a", "1", 1.0)),
            trace_set_of(make_result("a", "1", 1.0, flags=["low_precision"])),
        )
        found = compare(*runs)
        assert (verdicts(found), found.pairs[0].reason) == (["broken"], "unranked, flagged: low_precision")
        assert verdicts(compare(*runs, allow_flags=["low_precision"])) == ["same"]
        quick = compare(runs[0], trace_set_of(make_result("a", "1", 9.0, flags=["quick"])))
        assert (verdicts(quick), quick.pairs[0].reason, quick.is_worse) == (["unmeasured"], "quick", False)

    @pytest.mark.parametrize("latency", [0.0, float("nan"), float("inf")])
    def test_a_latency_that_is_no_number_decides_nothing(self, latency):
        found = compare(
            trace_set_of(make_result("a", "1", 1.0)), trace_set_of(make_result("a", "1", latency, speedup=1.0))
        )
        assert (verdicts(found), found.ratio.point, found.is_worse) == (["unmeasured"], None, False)

    def test_latencies_on_other_inputs_are_not_compared(self):
        recorded, made = make_result("a", "1", 1.0), make_result("a", "1", 2.0, flags=["synthesized inputs"])
        (pair,) = compare(trace_set_of(recorded), trace_set_of(made)).pairs
        assert (pair.verdict, pair.reason) == ("unmeasured", "only one run had the recorded inputs")
        assert verdicts(compare(trace_set_of(made), trace_set_of(made))) == ["same"]

    @given(st.floats(0.001, 1e4), st.floats(0.001, 1e4), st.floats(0, 1))
    def test_two_runs_the_other_way_round_say_the_opposite(self, one, other, margin):
        runs = trace_set_of(make_result("a", "1", one)), trace_set_of(make_result("a", "1", other))
        opposite = {"slower": "faster", "faster": "slower", "same": "same"}
        (there,), (back,) = (
            verdicts(compare(*runs, min_change=margin)),
            verdicts(compare(*runs[::-1], min_change=margin)),
        )
        assert back == opposite[there]


class TestSides:
    def test_devices_and_solutions_are_not_compared_with_others(self):
        runs = (
            trace_set_of(make_result("a", "1", 1.0, hardware="A100")),
            trace_set_of(make_result("a", "1", 0.5, hardware="H200")),
        )
        with pytest.raises(NothingToCompare, match="the first ran on A100, the second on H200"):
            compare(*runs)
        with pytest.raises(NothingToCompare, match="no trace of the same solution, workload and device"):
            compare(trace_set_of(make_result("b", "1", 1.0)), trace_set_of(make_result("a", "1", 1.0)))


class TestCommand:
    @pytest.fixture
    def sets(self, write_set):
        before = write_set(
            make_result("a", "1", 1.0), make_result("b", "1", 3.0), make_result("a", "2", 1.0), name="before"
        )
        after = write_set(make_result("a", "1", 2.0), make_result("b", "1", 3.0), name="after")
        return [str(before), str(after)]

    def test_exits_with_1_if_something_became_slower(self, sets, capsys):
        assert main(["report", "compare", *sets]) == 1
        shown = capsys.readouterr()
        assert "slower" in shown.out
        assert "1 slower, 1 same, 1 missing" in shown.out
        assert main(["report", "compare", *sets[::-1]]) == 0
        assert main(["report", "compare", *sets, "--min-change", "1.5"]) == 0

    def test_json_has_each_pair(self, sets, capsys):
        main(["report", "compare", *sets, "--json"])
        pairs = json.loads(capsys.readouterr().out)["pairs"]
        assert [(pair["verdict"], pair["workload"]) for pair in pairs] == [
            ("slower", "1"),
            ("same", "1"),
            ("missing", "2"),
        ]

    def test_bad_files_are_named_if_nothing_can_be_compared(self, sets, capsys):
        (bad,) = (Path(sets[1]) / "traces").rglob("*.jsonl")
        bad.write_text("{\n")
        assert main(["report", "compare", *sets, "--json"]) == 2
        assert f"error: {bad}:1" in capsys.readouterr().err
