"""Tests of summaries that weight workloads by the calls of a traced engine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from fib_bench.cli.main import main
from fib_bench.report import Options
from fib_bench.report.merging import merge
from fib_bench.report.ratios import UNKNOWN, Outcome, Ratio, mean_of
from fib_bench.report.weighted import NoTraffic, summarise_weighted
from fib_schema import Trace, TraceSet
from fib_schema.trace_facts import CPU_TIMING
from fib_schema.traffic import FOLDER, plain_size
from hypothesis import given
from hypothesis import strategies as st

MakeResult = Callable[..., Trace]
WriteSet = Callable[..., Path]


def count(root: Path, definitions: dict[str, tuple[int, dict[int, int]]], name: str = "rank-0.json") -> None:
    """Write a file of counts: all calls of each definition, and those by size."""
    plain = {
        definition: {"calls": calls, "sizes": [plain_size({"n": n}, (), c) for n, c in sizes.items()]}
        for definition, (calls, sizes) in definitions.items()
    }
    (root / FOLDER).mkdir(exist_ok=True)
    (root / FOLDER / name).write_text(json.dumps({"version": 1, "definitions": plain}))


@pytest.fixture
def result(make_result: MakeResult) -> MakeResult:
    """A trace on the workload of a size, whose uuid is the size."""

    def make(solution: str, n: int, latency_ms: float | None = None, **fields: Any) -> Trace:
        return make_result(solution, str(n), latency_ms, axes={"n": n}, **fields)

    return make


class TestWeightedMean:
    @given(st.lists(st.tuples(st.floats(0.01, 100), st.floats(0.01, 100), st.floats(0.5, 1e6)), min_size=1, max_size=9))
    def test_it_is_the_quotient_of_totals(self, workloads: list[tuple[float, float, float]]) -> None:
        ratios = [
            Ratio(reference / mine, (0.9 * reference / mine, 1.2 * reference / mine))
            for reference, mine, _ in workloads
        ]
        mean = mean_of(ratios, [mine * calls for _, mine, calls in workloads])
        totals = [sum(times[side] * times[2] for times in workloads) for side in (0, 1)]
        assert mean.point == pytest.approx(totals[0] / totals[1])
        assert mean.interval == pytest.approx((0.9 * mean.point, 1.2 * mean.point))

    def test_what_is_unknown_or_has_no_weight_does_not_count(self) -> None:
        assert mean_of([Ratio(2.0), UNKNOWN], [1.0, 5.0]) == Ratio(2.0)
        assert mean_of([UNKNOWN], [1.0]) == mean_of([], []) == UNKNOWN

    def test_one_ratio_that_is_not_comparable_makes_the_mean_so(self) -> None:
        assert mean_of([Ratio(2.0), Ratio(3.0, None, False)], [1, 1]).outcome is Outcome.NOT_COMPARABLE


class TestSummary:
    def test_totals_are_sums_of_calls_times_latency(self, result: MakeResult, write_set: WriteSet) -> None:
        """The reference takes 1 ms on each workload. A solution that is slow where the calls are is no winner."""
        root = write_set(
            result("small", 1, 0.5), result("small", 9, 2.0), result("large", 1, 2.0), result("large", 9, 0.5)
        )
        count(root, {"double": (1000, {1: 10, 9: 890})})
        found = summarise_weighted(TraceSet.from_path(root))
        large, small = found.entries
        assert (large.solution, large.reference_ms, large.solution_ms) == ("large", 900, 10 * 2.0 + 890 * 0.5)
        assert (small.reference_ms, small.solution_ms) == (900, 10 * 0.5 + 890 * 2.0)
        assert large.speedup == pytest.approx(900 / 465)
        assert (large.calls, large.share) == (900, 0.9)
        assert (found.uncounted, found.problems) == ((), ())

    def test_counts_of_ranks_are_summed(self, result: MakeResult, write_set: WriteSet) -> None:
        root = write_set(result("a", 1, 0.5))
        for rank in range(4):
            count(root, {"double": (10, {1: 10})}, f"rank-{rank}.json")
        (entry,) = summarise_weighted(TraceSet.from_path(root)).entries
        assert (entry.calls, entry.reference_ms) == (40, 40)

    def test_a_merge_adds_the_counts(self, result: MakeResult, write_set: WriteSet, tmp_path: Path) -> None:
        roots = [write_set(result("a", 1, 0.5), name=name) for name in ("first", "second")]
        for number, root in enumerate(roots):
            count(root, {"double": (10, {1: 10})}, f"rank-{number}.json")
        assert merge(roots, tmp_path / "merged").is_ok
        (entry,) = summarise_weighted(TraceSet.from_path(tmp_path / "merged")).entries
        assert entry.calls == 20

    def test_a_solution_that_ran_on_fewer_calls_does_not_precede(self, result: MakeResult, write_set: WriteSet) -> None:
        root = write_set(result("all", 1, 0.9), result("all", 9, 0.9), result("some", 1, 0.1))
        count(root, {"double": (100, {1: 60, 9: 40})})
        rows = summarise_weighted(TraceSet.from_path(root)).entries
        assert [(row.solution, row.share) for row in rows] == [("all", 1.0), ("some", 0.6)]

    def test_the_calls_of_a_size_are_shared_by_the_workloads_that_were_tried(
        self, make_result: MakeResult, write_set: WriteSet
    ) -> None:
        root = write_set(*(make_result("a", uuid, 0.5) for uuid in "xyz"))
        count(root, {"double": (30, {4: 30})})
        (entry,) = summarise_weighted(TraceSet.from_path(root)).entries
        assert (entry.calls, entry.solution_ms) == (30, 15)

    def test_a_solution_that_fails_anywhere_has_no_speedup(self, result: MakeResult, write_set: WriteSet) -> None:
        root = write_set(result("ok", 1, 0.5), result("ok", 9, 0.5), result("bad", 1, 0.1), result("bad", 9))
        count(root, {"double": (10, {1: 10})})
        ok, bad = summarise_weighted(TraceSet.from_path(root)).entries
        assert (ok.solution, ok.speedup) == ("ok", 2.0)
        assert (bad.is_ranked, bad.speedup, bad.solution_ms, bad.speedup_text) == (False, None, None, "-")
        assert bad.problem

    def test_an_interval_that_includes_1_is_noise(self, result: MakeResult, write_set: WriteSet) -> None:
        extra = {"timing": {"interval_ms": [0.97, 1.04]}, "reference_timing": {"interval_ms": [0.98, 1.03]}}
        root = write_set(result("a", 1, 1.0, performance_extra=extra))
        count(root, {"double": (10, {1: 10})})
        found = summarise_weighted(TraceSet.from_path(root))
        assert [entry.speedup_text for entry in found.entries] == ["noise"]
        assert found.entries[0].solution_ms == 10

    def test_cpu_timings_are_ranked_on_request(self, result: MakeResult, write_set: WriteSet) -> None:
        root = write_set(result("a", 1, 0.5, flags=[CPU_TIMING]))
        count(root, {"double": (10, {1: 10})})
        found = summarise_weighted(TraceSet.from_path(root))
        assert (found.entries[0].is_ranked, found.entries[0].speedup) == (False, 2.0)
        found = summarise_weighted(TraceSet.from_path(root), Options(allow_flags=[CPU_TIMING]))
        assert found.entries[0].is_ranked

    def test_a_trace_of_another_layout_than_the_workload_has_no_share(
        self, result: MakeResult, write_set: WriteSet
    ) -> None:
        """A tool that ignores layouts measured contiguous inputs for a workload whose calls have padded ones."""
        layout = {"layout": {"x": [2]}}
        foreign, honest = (
            attrs.evolve(trace, workload=attrs.evolve(trace.workload, extra=layout))
            for trace in (result("foreign", 4, 0.1), result("honest", 4, 0.5))
        )
        honest = attrs.evolve(honest, evaluation=attrs.evolve(honest.evaluation, extra=layout))
        root = write_set(foreign, honest)
        count(root, {"double": (10, {4: 0})})
        plain = json.loads((root / FOLDER / "rank-0.json").read_text())
        plain["definitions"]["double"]["sizes"] = [{"axes": {"n": 4}, "layout": {"x": [2]}, "calls": 10}]
        (root / FOLDER / "rank-0.json").write_text(json.dumps(plain))
        (entry,) = summarise_weighted(TraceSet.from_path(root)).entries
        assert (entry.solution, entry.calls, entry.reference_ms) == ("honest", 10, 10)

    def test_definitions_without_counts_are_named(self, result: MakeResult, write_set: WriteSet) -> None:
        root = write_set(*(result(f"of_{name}", 1, 0.5, definition=name) for name in ("double", "other", "third")))
        count(root, {"double": (10, {1: 10}), "third": (10, {7: 10})})
        assert summarise_weighted(TraceSet.from_path(root)).uncounted == ("other", "third")

    def test_without_counts_the_error_says_what_to_do(self, result: MakeResult, write_set: WriteSet) -> None:
        root = write_set(result("a", 1, 0.5))
        with pytest.raises(NoTraffic, match="trace an engine into the data set with fib-tracer") as raised:
            summarise_weighted(TraceSet.from_path(root))
        assert str(root) in str(raised.value)


class TestCommand:
    @pytest.fixture
    def root(self, result: MakeResult, write_set: WriteSet) -> Path:
        root = write_set(
            result("fast", 1, 0.5), result("broken", 1), result("b", 1, 4.0, definition="other", reference_ms=2.0)
        )
        count(root, {"double": (40_000_000, {1: 30_000_000})})
        return root

    def test_the_table(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["report", "summary", str(root), "--weighted"]) == 0
        out, err = capsys.readouterr()
        fast = next(line for line in out.splitlines() if line.startswith("fast"))
        assert fast.split() == ["fast", "30,000,000", "75.0%", "30,000", "s", "15,000", "s", "2.00x"]
        total = "definition on cpu: 30,000 s with the reference, 15,000 s with the best solutions"
        assert f"{total}, 2.00x" in out
        assert "without counted calls of benchmarked workloads: other" in err

    def test_json_and_csv(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["report", "summary", str(root), "--weighted", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert [(each["solution"], each["speedup"]) for each in found["entries"]] == [("fast", 2.0), ("broken", None)]
        assert found["uncounted"] == ["other"]
        assert main(["report", "summary", str(root), "--weighted", "--csv"]) == 0
        assert capsys.readouterr().out.splitlines()[0].startswith("definition,hardware,solution,is_ranked,calls")

    def test_without_counts_it_exits_with_2(
        self, result: MakeResult, write_set: WriteSet, capsys: pytest.CaptureFixture[str]
    ) -> None:
        root = write_set(result("a", 1, 0.5), name="uncounted")
        assert main(["report", "summary", str(root), "--weighted"]) == 2
        assert "no counted calls of benchmarked workloads" in capsys.readouterr().err

    def test_a_damaged_file_of_counts_is_reported(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (root / FOLDER / "damaged.json").write_text("{")
        assert main(["report", "summary", str(root), "--weighted"]) == 0
        assert "traffic/damaged.json: cannot be read as counts" in capsys.readouterr().err
