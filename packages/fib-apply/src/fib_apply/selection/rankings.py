"""Rankings: the candidates of each key of a definition, in order of preference, and which ranking serves a key."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import attrs
import msgspec

from ..key import ApplyKey

SELECTION_SETTINGS = ("max_atol", "max_rtol", "baseline", "margin", "require_speedup", "enabled", "exclude", "only")
"""The settings that decide which solutions are selected."""
_ROUNDING = 1e-12
"""Tolerance of logarithms, so that latencies that differ by exactly the margin count as equal."""


def number_text(value: Any) -> str:
    """A number as traces and calls are compared by it: six digits, because engines compute a scale in float32."""
    return f"{value:.6g}" if isinstance(value, float) else str(int(value))


def log_margin(margin: float) -> float:
    """The smallest difference of logarithms of latencies that differ by more than a margin."""
    return math.log1p(margin) + _ROUNDING


class Candidate(msgspec.Struct, frozen=True, array_like=True):
    """A solution that may serve a key."""

    solution: str
    latency_ms: float
    """Geometric mean over its workloads."""
    interval_ms: tuple[float, float] | None = None
    """Likewise, if every workload has one."""
    has_setup: bool = False
    """Whether it needs a plan: plain calls cannot use it."""
    atol: float | None = None
    """The tolerance that it passed with; the loosest of several workloads."""
    rtol: float | None = None
    required_matched_ratio: float | None = None
    workloads: int = 1
    """Number of the key's workloads that it ran."""
    may_capture: bool = False
    """Whether it may be called while a CUDA graph is captured: replays were verified with changed integers."""
    may_pad: bool = False
    """Whether it may be called with padded indices: such calls were verified."""
    fallback_ms: float | None = None
    """The fallback's time on the same workloads; None if it was not recorded."""
    fallback_interval_ms: tuple[float, float] | None = None
    numbers: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """The values of number inputs with which it was measured, see `number_text`. Inputs are missing that a workload
    leaves to the benchmark, or that the benchmark changed: the solution was verified to follow them."""

    def was_measured_with(self, numbers: Mapping[str, str]) -> bool:
        """Whether a trace covers the values of a call's number inputs."""
        return all(name not in numbers or numbers[name] in measured for name, measured in self.numbers)

    def is_faster_than_equivalent(self, equivalent: Candidate, margin: float) -> bool:
        """Whether it is faster, beyond uncertainty, than a solution that calls the same function as the fallback.

        If they ran different numbers of workloads, their times are compared as shares of the recorded fallback's.
        """
        one, other = self.latency_ms, equivalent.latency_ms
        if self.workloads != equivalent.workloads and self.fallback_ms and equivalent.fallback_ms:
            one, other = one / self.fallback_ms, other / equivalent.fallback_ms
        elif self.interval_ms is not None and equivalent.interval_ms is not None:
            return self.interval_ms[1] < equivalent.interval_ms[0]
        return math.log(other) - math.log(one) > log_margin(margin)


class Ranking(msgspec.Struct, frozen=True, array_like=True):
    """The candidates of one key, or of all keys, in order of preference."""

    candidates: tuple[Candidate, ...]
    reason: str
    """Reason for the first candidate, or for having none; one line."""
    left_out: tuple[tuple[str, str], ...] = ()
    """The other measured solutions, each with the reason."""
    fallback: str = ""
    """Timed function of the fallback: the reference or a baseline."""
    is_padded: bool = False
    """Whether it is of calls with padded indices, which not all candidates serve. The others stay among the candidates,
    because a fallback in another form may be one of them."""
    captured: tuple[Candidate, ...] | None = None
    """The candidates of calls that are captured, by their device latencies. None if traces have no call latencies of
    their own: then `candidates` serve such calls too."""

    def of_captured(self) -> Ranking:
        """The ranking for calls that are captured; the same one if no solution serves these."""
        if not self.captured or all(candidate.has_setup for candidate in self.captured):
            return self
        return msgspec.structs.replace(self, candidates=self.captured, captured=None)

    @property
    def plain_candidates(self) -> tuple[Candidate, ...]:
        """The candidates that serve calls without a plan."""
        return tuple([c for c in self.candidates if not c.has_setup and (c.may_pad or not self.is_padded)])

    @property
    def plain_problem(self) -> str:
        """Reason why no candidate serves calls without a plan, in a few words; for rankings without such a one."""
        if not self.candidates:
            return "nothing chosen"
        return "not verified with padded indices" if self.is_padded else "by plan only"

    @property
    def plain(self) -> Candidate | None:
        """The first candidate that serves calls without a plan."""
        return next(iter(self.plain_candidates), None)


@attrs.frozen
class HardwareRankings:
    """The rankings of one definition on one hardware."""

    hardware: str
    by_key: Mapping[ApplyKey, Ranking]
    best: Ranking | None = None
    """Over all keys; None if no solution qualified at all keys that it ran."""

    def find(self, key: ApplyKey, *, uses_best: bool) -> Ranking | None:
        """The ranking that serves a key; None if only the fallback may. With `uses_best`, that of all keys may, too."""
        found = self.by_key.get(key.recorded)
        if found is not None or not uses_best or not key.is_exact:
            return found  # the best was verified with contiguous, exact inputs, and the same ones absent
        return self.best if any(key.absent == other.absent for other in self.by_key) else None
