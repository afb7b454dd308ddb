"""Fallback times: whether solutions are faster than the fallback that they replace."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import attrs

from .measurements import Measurement, SelectionCriteria
from .rankings import Candidate
from .scores import Mean, Score, is_faster, log_margin
from .timings import Timing


@attrs.frozen
class FallbackComparison:
    """The times of the fallback at one key, and what is faster."""

    label: str
    """Name of the timed function, for texts."""
    _criteria: SelectionCriteria
    _baseline: Mapping[int, Measurement]
    """The measurements of the named baseline, by workload."""
    _least: float
    _mean: Mean

    @classmethod
    def of(
        cls, criteria: SelectionCriteria, runs: Sequence[Mapping[str, Measurement]], least: float, mean: Mean
    ) -> FallbackComparison:
        """The comparison at one key.

        Args:
            criteria: Names the baseline.
            runs: The measurements of each workload, by solution.
            least: The `log_margin` that counts where a latency has no interval.
            mean: Combines the latencies of several workloads.
        """
        name = criteria.baseline
        own = {} if name is None else {number: run[name] for number, run in enumerate(runs) if name in run}
        label = "the reference" if name is None else f"the baseline {name!r}"
        return cls(label, criteria, own, least, mean)

    def faster_than_fallback(
        self, ranked: Sequence[Score], left_out: dict[str, str]
    ) -> tuple[list[Score], str, Score | None]:
        """The solutions to select among.

        Args:
            ranked: All that are eligible, the baseline included, fastest first.
            left_out: Gets the reasons why others are left out.

        Returns:
            The solutions, the reason if there is none, and the fastest of those that are not faster than the fallback.
        """
        others = [score for score in ranked if score.name != self._criteria.baseline]
        if not self._criteria.requires_speedup or not others:
            return others, "no solution is eligible here", None
        timed = [(score, self._times_of(score)) for score in others]
        if not any(times for _, times in timed):
            left_out.update({score.name: f"no time of {self.label} to compare with" for score in others})
            missing = "has no passing evaluation here" if self._criteria.baseline else "has no recorded time here"
            return [], f"{self.label} {missing}", others[0]
        faster = [score for score, times in timed if is_faster(score.measured, times, self._least, self._mean)]
        left_out.update({s.name: self._refusal(s, times) for s, times in timed if s not in faster})
        return faster, f"none of {len(others)} is faster than {self.label}", others[0]

    def with_fallback(self, candidate: Candidate, score: Score) -> Candidate:
        """A candidate with the fallback's time on its workloads."""
        times = self._times_of(score)
        if not times:
            return candidate
        latency, interval = self._mean(times)
        interval_ms = None if interval is None else (math.exp(interval[0]), math.exp(interval[1]))
        return attrs.evolve(candidate, fallback_ms=math.exp(latency), fallback_interval_ms=interval_ms)

    def _times_of(self, score: Score) -> list[tuple[int, Timing]]:
        """The fallback on the workloads of a solution: interleaved with it where possible, else of the baseline."""
        found = []
        for number, measurement in score.measured:
            timing = measurement.fallback
            if timing is None and (own := self._baseline.get(number)) is not None:
                timing = Timing(own.latency_ms, own.interval_ms)
            if timing is not None:
                found.append((number, timing))
        return found

    def _refusal(self, score: Score, times: Sequence[tuple[int, Timing]]) -> str:
        if not times:
            return f"no time of {self.label} to compare with"
        numbers = {number for number, _ in times}
        mine, _ = self._mean([pair for pair in score.measured if pair[0] in numbers])
        its, _ = self._mean(times)
        uncertain = ", a difference within the uncertainty" if mine < its else ""
        compared = f"{math.exp(mine) * 1e3:.2f} us against {math.exp(its) * 1e3:.2f} us"
        return f"not faster than {self.label}: {compared}{uncertain}"


def is_faster_than_equivalent(candidate: Candidate, equivalent: Candidate, margin: float) -> bool:
    """Whether a candidate is faster, beyond uncertainty, than one that is the fallback in another form.

    If they ran different numbers of workloads, their times are compared as shares of the recorded fallback's.

    Args:
        candidate: The one that may replace the fallback.
        equivalent: The measured solution that calls the same function as the fallback.
        margin: The share that counts where one has no interval.
    """
    one, other = candidate.latency_ms, equivalent.latency_ms
    if candidate.workloads != equivalent.workloads and candidate.fallback_ms and equivalent.fallback_ms:
        one, other = one / candidate.fallback_ms, other / equivalent.fallback_ms
    elif candidate.interval_ms is not None and equivalent.interval_ms is not None:
        return candidate.interval_ms[1] < equivalent.interval_ms[0]
    return math.log(other) - math.log(one) > log_margin(margin)
