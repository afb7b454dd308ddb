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
    may_capture: bool = True
    """Whether it may be called while a CUDA graph is captured: false if it was timed without capture."""
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

    @property
    def plain(self) -> Candidate | None:
        """The first candidate that needs no plan."""
        return next((candidate for candidate in self.candidates if not candidate.has_setup), None)


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
        return key.without_axes(self.batch_axes)
