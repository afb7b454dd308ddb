"""Rankings: the candidates of each key of a definition, in order of preference."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from ..key import ApplyKey


@attrs.frozen
class Candidate:
    """A solution that may serve a key."""

    solution: str
    latency_ms: float
    """Geometric mean over its workloads; if it serves all sizes of batch axes, the mean over the recorded ones."""
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


@attrs.frozen
class Ranking:
    """The candidates of one key, or of all keys, in order of preference."""

    candidates: tuple[Candidate, ...]
    reason: str
    """Reason for the first candidate, or for having none; one line."""
    left_out: tuple[tuple[str, str], ...] = ()
    """The other measured solutions, each with the reason."""
    fallback: str = ""
    """Timed function of the fallback: the reference or a baseline."""
    refused: Candidate | None = None
    """The fastest of those that were left out because they are not faster than the fallback, if no other is left."""

    is_padded: bool = False
    """Whether it is of calls with padded indices, which not all candidates serve. The others stay among the candidates,
    because a fallback in another form may be one of them."""

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
    batch_axes: tuple[str, ...] = ()
    """The axes that keys leave out, because one solution serves all their sizes."""

    def key_of(self, key: ApplyKey) -> ApplyKey:
        """The key under which a call's key is recorded."""
        recorded = key.without_axes(self.batch_axes)
        return recorded if recorded.padded_axis is None else recorded.without_axes({recorded.padded_axis})
