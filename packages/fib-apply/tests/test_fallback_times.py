"""Selection against the fallback's time: nothing is routed that is not faster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from apply_samples import SCALE, new_trace
from fib_apply.config import ApplyConfig
from fib_apply.errors import InvalidSetting
from fib_apply.key import ApplyKey, AxesOnlyKeyBuilder
from fib_apply.selection import rules
from fib_apply.selection.rankings import Candidate, HardwareRankings, Ranking
from fib_apply.selection.rules import SolutionFacts
from fib_schema import Trace

Rank = Callable[..., Ranking]
Select = Callable[..., HardwareRankings]


@pytest.fixture(scope="session")
def select() -> Select:
    def selected(*traces: Trace, **settings: Any) -> HardwareRankings:
        names = sorted({t.solution for t in traces if t.solution})
        facts = [SolutionFacts(name, "python", 10, f"hash of {name}") for name in names]
        found = rules.select(SCALE, traces, facts, ApplyConfig(**settings), AxesOnlyKeyBuilder(SCALE))
        return found.rankings["cpu"]

    return selected


@pytest.fixture(scope="session")
def rank(select: Select) -> Rank:
    def ranked(*traces: Trace, **settings: Any) -> Ranking:
        return select(*traces, **settings).by_key[ApplyKey({"M": 1})]

    return ranked


def names_of(ranking: Ranking | None) -> list[str]:
    return [] if ranking is None else [candidate.solution for candidate in ranking.candidates]


class TestReference:
    def test_a_slower_solution_is_left_to_the_fallback(self, rank: Rank) -> None:
        ranking = rank(new_trace("a", 3.0, reference=2.0), new_trace("b", 4.0, reference=2.0))
        assert (ranking.candidates, ranking.reason) == ((), "none of 2 is faster than the reference")
        assert dict(ranking.left_out)["a"] == "not faster than the reference: 3000.00 us against 2000.00 us"

    def test_candidates_state_the_time_of_the_fallback(self, rank: Rank) -> None:
        ranking = rank(new_trace("a", 1.0, reference=2.0))
        assert (ranking.candidates[0].fallback_ms, ranking.fallback) == (pytest.approx(2.0), "the reference")

    def test_a_difference_within_the_margin_is_no_speedup(self, rank: Rank) -> None:
        trace = new_trace("a", 1.98, reference=2.0)
        assert names_of(rank(trace)) == []
        assert "within the uncertainty" in rank(trace).left_out[0][1]
        assert names_of(rank(trace, margin=0.001)) == ["a"]

    @pytest.mark.parametrize(("uncertainty_ms", "expected"), [(0.01, ["a"]), (0.06, [])])
    def test_the_uncertainty_of_the_clock_widens_both_intervals(
        self, rank: Rank, uncertainty_ms: float, expected: list[str]
    ) -> None:
        extra = {"reference_timing": {"interval_ms": [1.99, 2.01], "uncertainty_ms": uncertainty_ms}}
        timing = {"interval_ms": [1.89, 1.91], "uncertainty_ms": uncertainty_ms}
        assert names_of(rank(new_trace("a", 1.9, reference=2.0, timing=timing, performance=extra))) == expected

    def test_an_uncertainty_beyond_the_latency_is_no_error(self, rank: Rank) -> None:
        timing = {"interval_ms": [0.9, 1.1], "uncertainty_ms": 5.0}
        extra = {"reference_timing": {"uncertainty_ms": 5.0}}
        assert names_of(rank(new_trace("a", 1.0, reference=2.0, timing=timing, performance=extra))) == []

    @pytest.mark.parametrize("uncertainty", [-1.0, float("nan"), float("inf"), "1", True])
    def test_an_invalid_uncertainty_makes_the_margin_count(self, rank: Rank, uncertainty: object) -> None:
        timing = {"interval_ms": [0.999, 1.001], "uncertainty_ms": uncertainty}
        ranking = rank(new_trace("a", 1.0, reference=2.0, timing=timing))
        assert ranking.candidates[0].interval_ms is None

    @pytest.mark.parametrize("reference", [0.0, float("nan"), float("inf")])
    def test_without_a_time_of_the_fallback_nothing_is_selected(self, rank: Rank, reference: float) -> None:
        ranking = rank(new_trace("a", 1.0, reference=reference))
        assert (ranking.candidates, ranking.reason) == ((), "the reference has no recorded time here")
        assert ranking.left_out == (("a", "no time of the reference to compare with"),)

    def test_several_workloads_are_compared_by_their_mean(self, rank: Rank) -> None:
        slow = new_trace("a", 3.0, reference=2.0, uuid="u")
        assert names_of(rank(slow, new_trace("a", 1.0, reference=2.0, uuid="v"))) == ["a"]
        assert names_of(rank(slow, new_trace("a", 1.5, reference=2.0, uuid="v"))) == []

    def test_the_option_turns_the_comparison_off(self, rank: Rank) -> None:
        ranking = rank(new_trace("a", 3.0, reference=2.0), require_speedup=False)
        assert names_of(ranking) == ["a"]
        assert ranking.candidates[0].fallback_ms == pytest.approx(2.0)

    def test_the_best_over_all_keys_is_slower_at_none(self, select: Select) -> None:
        traces = [new_trace("a", 1.0, reference=2.0, m=1), new_trace("a", 9.0, reference=2.0, m=2)]
        traces += [new_trace("b", 1.5, reference=2.0, m=1)]
        assert names_of(select(*traces).best) == ["b"]

    def test_the_options_are_checked(self) -> None:
        with pytest.raises(InvalidSetting, match="require_speedup"):
            ApplyConfig(require_speedup=1)  # type: ignore[arg-type] # on purpose


class TestBaseline:
    def interleaved(self, name: str, latency_ms: float) -> dict[str, Any]:
        return {"baseline": {"solution": name, "latency_ms": latency_ms, "speedup_factor": 1.0, "timing": {}}}

    def test_its_time_counts_and_not_that_of_the_reference(self, rank: Rank) -> None:
        ranking = rank(new_trace("ours", 2.0), new_trace("a", 3.0, reference=100.0), baseline="ours")
        assert (names_of(ranking), ranking.fallback) == ([], "the baseline 'ours'")

    def test_a_time_that_was_interleaved_is_preferred(self, rank: Rank) -> None:
        trace = new_trace("a", 3.0, performance=self.interleaved("ours", 4.0))
        assert names_of(rank(new_trace("ours", 2.0), trace, baseline="ours")) == ["a"]
        assert rank(trace, baseline="ours").candidates[0].fallback_ms == pytest.approx(4.0)

    def test_that_of_another_baseline_does_not_count(self, rank: Rank) -> None:
        trace = new_trace("a", 3.0, performance=self.interleaved("another", 4.0))
        assert rank(trace, baseline="ours").reason == "the baseline 'ours' has no passing evaluation here"


class TestBatchInvariance:
    def test_the_best_total_time_serves_all_sizes(self, select: Select) -> None:
        traces = [new_trace("small", latency, m=m) for m, latency in ((1, 1.0), (2, 50.0))]
        traces += [new_trace("large", latency, m=m) for m, latency in ((1, 5.0), (2, 20.0))]
        by_size = select(*traces)
        assert [names_of(r)[0] for r in by_size.by_key.values()] == ["small", "large"]
        rankings = select(*traces, batch_invariant=True)
        assert list(rankings.by_key) == [ApplyKey()]
        assert names_of(rankings.by_key[ApplyKey()]) == ["large", "small"]
        assert rankings.by_key[ApplyKey()].candidates[0].latency_ms == pytest.approx(12.5)
        assert rankings.key_of(ApplyKey({"M": 1000})) == ApplyKey()

    def test_a_key_with_many_workloads_counts_once(self, select: Select) -> None:
        traces = [new_trace("a", 1.0, m=1, uuid=f"u{n}") for n in range(9)] + [new_trace("a", 50.0, m=2)]
        traces += [new_trace("b", 9.0, m=1, uuid=f"u{n}") for n in range(9)] + [new_trace("b", 30.0, m=2)]
        assert names_of(select(*traces, batch_invariant=True).by_key[ApplyKey()]) == ["b", "a"]

    def test_it_must_have_been_verified_at_all_sizes(self, select: Select) -> None:
        traces = [new_trace("a", 0.1, m=1), *(new_trace("b", m=m) for m in (1, 2))]
        traces += [new_trace("c", 0.1, m=1), new_trace("c", m=2, status="RUNTIME_ERROR")]
        ranking = select(*traces, batch_invariant=True).by_key[ApplyKey()]
        assert names_of(ranking) == ["b"]
        missing = "not measured on all workloads of M=2, which one solution has to serve too"
        assert ranking.left_out == (("a", missing), ("c", "RUNTIME_ERROR on workload w2"))

    def test_the_total_is_compared_with_that_of_the_fallback(self, select: Select) -> None:
        traces = [new_trace("a", 3.0, m=1, reference=2.0), new_trace("a", 10.0, m=2, reference=20.0)]
        assert names_of(select(*traces, batch_invariant=True).by_key[ApplyKey()]) == ["a"]
        traces = [new_trace("a", 1.0, m=1, reference=2.0), new_trace("a", 30.0, m=2, reference=20.0)]
        ranking = select(*traces, batch_invariant=True).by_key[ApplyKey()]
        assert (names_of(ranking), ranking.reason) == ([], "none of 1 is faster than the reference")

    def test_only_marked_axes_count_as_batch(self) -> None:
        import attrs
        from fib_apply.selection.rules import batch_axes
        from fib_schema import AxisVar

        wider = attrs.evolve(SCALE, axes={**SCALE.axes, "K": AxisVar()})
        assert batch_axes(wider) == ("M", "K")
        assert batch_axes(attrs.evolve(wider, tags=["stage:decode", "batch_axis:M"])) == ("M",)
        assert batch_axes(attrs.evolve(wider, tags=["batch_axis:unknown"])) == ("M", "K")


class TestFallbackEquivalents:
    """A solution that is the fallback in another form, as an adapter states, sets the fallback's time."""

    @pytest.mark.parametrize(
        ("latency", "interval", "expected"),
        [
            (0.99, None, False),
            (0.5, None, True),
            (0.5, (0.4, 0.95), False),
            (0.99, (0.98, 0.985), False),
            (0.8, (0.79, 0.81), True),
        ],
    )
    def test_a_candidate_must_be_faster_beyond_the_uncertainty(
        self, latency: float, interval: tuple[float, float] | None, expected: bool
    ) -> None:
        own = Candidate("ours", 1.0, None if interval is None else (0.95, 1.05))
        if latency == 0.99 and interval is not None:
            own = Candidate("ours", 1.0, (0.982, 1.05))
        assert Candidate("a", latency, interval).is_faster_than_equivalent(own, 0.03) is expected

    def test_other_numbers_of_workloads_are_compared_by_speedup(self) -> None:
        own = Candidate("ours", 4.0, workloads=2, fallback_ms=8.0)
        assert Candidate("a", 5.0, fallback_ms=20.0).is_faster_than_equivalent(own, 0.03)
        assert not Candidate("a", 3.0, fallback_ms=4.0).is_faster_than_equivalent(own, 0.03)
