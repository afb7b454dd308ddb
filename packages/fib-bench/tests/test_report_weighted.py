"""Tests of speedups that are weighted by the calls of a traced engine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from fib_bench.cli.main import main
from fib_bench.report import leaderboard
from fib_bench.report.merging import merge
from fib_bench.report.ratios import UNKNOWN, Outcome, Ratio, mean_of
from fib_schema import Trace, TraceSet
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


def weighted(root: Path) -> dict[str, tuple[float | None, float | None]]:
    """The weighted speedup and the share of calls by solution."""
    return {row.solution: (row.weighted_speedup, row.traffic_share) for row in leaderboard(TraceSet.from_path(root))}


@pytest.fixture
def result(make_result: MakeResult) -> MakeResult:
    """A trace on the workload of a size, whose uuid is the size. The reference takes 1 ms."""

    def make(solution: str, n: int, latency_ms: float | None = None, **fields: Any) -> Trace:
        return make_result(solution, str(n), latency_ms, axes={"n": n}, **fields)

    return make


@given(st.lists(st.tuples(st.floats(0.01, 100), st.floats(0.01, 100), st.floats(0.5, 1e6)), min_size=1, max_size=9))
def test_the_weighted_mean_is_the_quotient_of_totals(workloads: list[tuple[float, float, float]]) -> None:
    ratios = [
        Ratio(reference / mine, (0.9 * reference / mine, 1.2 * reference / mine)) for reference, mine, _ in workloads
    ]
    mean = mean_of(ratios, [mine * calls for _, mine, calls in workloads])
    totals = [sum(times[side] * times[2] for times in workloads) for side in (0, 1)]
    assert mean.point == pytest.approx(totals[0] / totals[1])
    assert mean.interval == pytest.approx((0.9 * mean.point, 1.2 * mean.point))


def test_what_is_unknown_has_no_weight() -> None:
    assert mean_of([Ratio(2.0), UNKNOWN], [1.0, 5.0]) == Ratio(2.0)
    assert mean_of([UNKNOWN], [1.0]) == mean_of([], []) == UNKNOWN
    assert mean_of([Ratio(2.0), Ratio(3.0, None, False)], [1, 1]).outcome is Outcome.NOT_COMPARABLE


def test_a_solution_that_is_slow_where_the_calls_are_gains_little(result: MakeResult, write_set: WriteSet) -> None:
    root = write_set(result("small", 1, 0.5), result("small", 9, 2.0), result("large", 1, 2.0), result("large", 9, 0.5))
    count(root, {"double": (1000, {1: 10, 9: 890})})
    found = weighted(root)
    assert found["large"] == (pytest.approx(900 / 465), 0.9)
    assert found["small"] == (pytest.approx(900 / 1785), 0.9)


def test_counts_of_ranks_and_of_merged_sets_are_summed(result: MakeResult, write_set: WriteSet, tmp_path: Path) -> None:
    root = write_set(result("a", 1, 0.5), result("a", 9, 0.25))
    count(root, {"double": (100, {1: 100})})
    count(root, {"double": (100, {9: 100})}, "rank-1.json")
    assert weighted(root) == {"a": (pytest.approx(200 / 75), 1.0)}
    other = write_set(result("a", 1, 0.5), name="other")
    count(other, {"double": (50, {1: 50})}, "other.json")
    assert merge([root, other], tmp_path / "both").is_ok
    assert weighted(tmp_path / "both") == {"a": (pytest.approx(250 / 100), 1.0)}


def test_a_solution_that_fails_anywhere_has_none(result: MakeResult, write_set: WriteSet) -> None:
    root = write_set(result("ok", 1, 0.5), result("ok", 9, 0.5), result("bad", 1, 0.1), result("bad", 9))
    count(root, {"double": (10, {1: 10})})
    assert (weighted(root)["ok"][0], weighted(root)["bad"][0]) == (2.0, None)


def test_a_trace_of_another_layout_than_the_workload_has_no_share(result: MakeResult, write_set: WriteSet) -> None:
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
    assert weighted(root) == {"honest": (2.0, 1.0)}


def test_the_summary_has_a_column_where_calls_were_counted(
    result: MakeResult, write_set: WriteSet, capsys: pytest.CaptureFixture[str]
) -> None:
    root = write_set(result("fast", 1, 0.5), result("a", 1, 4.0, definition="other", reference_ms=2.0))
    count(root, {"double": (40, {1: 30})})
    (root / FOLDER / "damaged.json").write_text("{")
    assert main(["report", "summary", str(root)]) == 0
    out, err = capsys.readouterr()
    assert "2.00x (75%)" in out
    assert out.count("weighted") == 1
    assert "traffic/damaged.json: cannot be read as counts" in err
