"""Events of a run, for progress displays and programs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from typing import TypeAlias

import attrs
from fib_schema import Trace, Workload

from .plan import Plan, Skip


class Phase(StrEnum):
    """A phase of an evaluation."""

    START = "start"
    """The judge and its workers start and create their device context."""
    BUILD = "build"
    """Solutions are loaded; C++ and CUDA are compiled."""
    COMPILE = "compile"
    """The first call of a solution on each workload, in which embedded languages and torch.compile compile."""
    INPUTS = "inputs"
    REFERENCE = "reference"
    """The reference computes expected outputs."""
    WAIT = "wait"
    """Another run holds the device lock."""
    CHECK = "check"
    """Solutions are called and their outputs are compared."""
    WARM_UP = "warm up"
    TIME = "time"
    """Solutions are timed, interleaved with the reference and the baseline."""
    AUDIT = "audit"
    """Background activity, kernel profile."""
    OTHER = "other"
    """Plan, records, messages and the end of processes; devices that are idle at the end of a run; trusted runs."""


class PhaseTimer:
    """Adds up the seconds of each phase of a run, each second once: a nested phase interrupts the outer one."""

    def __init__(self) -> None:
        self._seconds: dict[Phase, float] = {}
        self._open: list[Phase] = []
        self._since = 0.0

    @contextmanager
    def during(self, phase: Phase) -> Iterator[None]:
        """Count the block as a phase."""
        self._count()
        self._open.append(phase)
        try:
            yield
        finally:
            self._count()
            self._open.pop()

    def _count(self) -> None:
        now = time.monotonic()
        if self._open:
            self._seconds[self._open[-1]] = self._seconds.get(self._open[-1], 0.0) + now - self._since
        self._since = now

    def take(self) -> Mapping[Phase, float]:
        """Return the seconds by phase since the last call, in the order of `Phase`, and reset them."""
        taken = {phase: self._seconds[phase] for phase in Phase if phase in self._seconds}
        self._seconds = {}
        return taken


@attrs.frozen
class Planned:
    """The plan of the run is made."""

    plan: Plan


@attrs.frozen
class Working:
    """The run starts work that may take a while."""

    definition: str
    solution: str | None
    """None while the reference runs."""
    workload: Workload

    def __str__(self) -> str:
        sizes = ",".join(f"{axis}={size}" for axis, size in self.workload.axes.items())
        return f"{self.definition} [{sizes}] {self.solution or 'reference'}"


@attrs.frozen
class Evaluated:
    """An evaluation is finished, and recorded if traces are dumped."""

    trace: Trace


@attrs.frozen
class Skipped:
    """Planned work cannot run; `count` evaluations are skipped."""

    skip: Skip
    count: int


@attrs.frozen
class PhaseTimes:
    """The seconds that each phase of the judge took since the last such event."""

    seconds: Mapping[Phase, float]
    busy_seconds: float | None = None
    """For how long a kernel ran on the device since then, as the driver samples it; None if it does not tell."""


@attrs.frozen
class DeviceExcluded:
    """A device is excluded from the rest of the run."""

    device: str
    reason: str

    def __str__(self) -> str:
        return f"{self.device} is excluded, and other devices take its work: {self.reason}"


Event: TypeAlias = Planned | Working | Evaluated | Skipped | PhaseTimes | DeviceExcluded
Observer: TypeAlias = Callable[[Event], None]
