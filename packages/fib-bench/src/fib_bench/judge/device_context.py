"""What holds for every side on a device: what its clock costs, how fast it can be, and whose turn it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import attrs
import torch
from filelock import BaseFileLock

from ..timing.clock_monitor import ClockWatch
from ..timing.roofline import SpeedOfLight
from ..worker.client import WorkerLost
from .phase_timer import Ledger, Phase


@attrs.frozen
class Calibration:
    """What a device's clock costs, from a worker without a solution."""

    overhead_ns: Mapping[str, Mapping[int, float]]
    """By method and chain."""
    flush_ns: float
    """What is done before each sample, on the device's own time."""

    def of(self, method: str, chain: int) -> float:
        """The cost for a method.

        Raises:
            WorkerLost: There is no such method or chain: the claim is forged.
        """
        by_chain = self.overhead_ns.get("queued" if method == "sync" else method, {})
        if chain not in by_chain:
            problem = f"the worker says that it times by {method!r} in chains of {chain}, which does not exist"
            raise WorkerLost(problem, is_forgery=True)
        return by_chain[chain]


@attrs.frozen(kw_only=True)
class Conditions:
    """What holds for every side on a device."""

    device: torch.device
    timeout_seconds: float
    calibration: Calibration
    light: SpeedOfLight
    watch: ClockWatch | None
    ledger: Ledger = attrs.field(factory=Ledger)
    """Where the time goes."""
    lock: BaseFileLock | None = None
    """Held by whoever measures on the device."""

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Keep other runs from measuring on the device meanwhile; first waits until none of them does."""
        if self.lock is None:
            yield
            return
        with self.ledger.during(Phase.WAIT):
            self.lock.acquire()
        try:
            yield
        finally:
            self.lock.release()
