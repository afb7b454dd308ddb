"""What a run reports while it runs; progress displays and programs listen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import attrs
from fib_schema import Trace, Workload

from .judge.phase_timer import Phase
from .plan import Plan, Skip


@attrs.frozen
class Planned:
    """The run knows what it has to do."""

    plan: Plan


@attrs.frozen
class Working:
    """The run turns to something that may take a while."""

    definition: str
    solution: str | None
    """None while the reference runs."""
    workload: Workload

    def __str__(self) -> str:
        sizes = ", ".join(f"{axis}={size}" for axis, size in self.workload.axes.items())
        where = f"{self.workload.uuid[:8]} ({sizes})" if sizes else self.workload.uuid[:8]
        return f"{self.definition}: {self.solution or 'reference'} on {where}"


@attrs.frozen
class Evaluated:
    """An evaluation is made, and recorded if traces are dumped."""

    trace: Trace


@attrs.frozen
class Skipped:
    """Something that was planned cannot run; `count` evaluations fall away with it."""

    skip: Skip
    count: int


@attrs.frozen
class Spent:
    """Where the time of the judge went since it last told."""

    seconds: Mapping[Phase, float]


@attrs.frozen
class DeviceOut:
    """A device takes no further part in the run."""

    device: str
    reason: str

    def __str__(self) -> str:
        return f"{self.device} is left out, and others do its work: {self.reason}"


Event: TypeAlias = Planned | Working | Evaluated | Skipped | Spent | DeviceOut
Observer: TypeAlias = Callable[[Event], None]
