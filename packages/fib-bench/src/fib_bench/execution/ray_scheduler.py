"""Stations on the nodes of a Ray cluster: an actor for each device.

The driver hands out work, receives what happens as it happens, and records it; an actor runs the
same judge's process as a run on one machine. Only what the cluster itself loses is repeated. The
data set must be at the same path on every node that is to read blobs from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import attrs
from fib_schema import Environment, Solution

from ..config.model import BenchmarkConfig
from ..errors import JudgeFailed, UnsupportedDevice
from ..events import Event
from ..plan import DefinitionPlan
from .judge_process import JudgeProcess
from .ray_builds import Builds
from .ray_cluster import GetTimeoutError, RayError, connect, meaning_of, on_node, ray, seats_of
from .scheduler import Crew, Station

_OPENING_SECONDS = 120.0
_CLOSING_SECONDS = 10.0


def ray_crew(config: BenchmarkConfig, root: Path | None, baselines: Mapping[str, Solution]) -> RayCrew:
    """What carries out plans on the devices of a cluster, of the kind that the configuration names.

    Raises:
        UnsupportedDevice: The cluster has no such device.
        JudgeFailed: A judge did not start.
    """
    connect(config.address)
    is_cuda = config.device.startswith("cuda")
    device = "cuda:0" if is_cuda else config.device  # Ray shows an actor its own devices only
    settings = attrs.evolve(config, device=device, devices=None)
    root = None if root is None else root.absolute()
    seats = seats_of(ray.nodes(), "GPU" if is_cuda else "CPU")
    if not seats:
        raise UnsupportedDevice(config.device, "no node of the Ray cluster has one")
    opener = partial(JudgeProcess, settings, root, baselines)
    builds = Builds(seats, settings, root, baselines)
    stations = [
        (seat.name, partial(RayStation, seat.node, opener, is_cuda=is_cuda, turn_to=partial(builds.turn_to, seat.node)))
        for seat in seats
    ]
    return RayCrew(stations, builds)


class RayCrew(Crew):
    """Stations on a cluster, for which tasks without a device build.

    Args:
        openers: By the stations' names, what opens them.
        builds: What is told of all work before the stations are.

    Raises:
        FibError: The first station cannot be opened.
    """

    def __init__(self, openers: Iterable[tuple[str, Callable[[], Station]]], builds: Builds) -> None:
        self._builds = builds
        super().__init__(openers)

    def execute(self, parts: Sequence[DefinitionPlan]) -> Iterator[Event]:
        """Run plans, and have built what they need."""
        self._builds.begin(parts)
        yield from super().execute(parts)
        self._builds.check()

    def stop(self) -> None:
        """Finish the evaluations that are under way, and no others; no builds."""
        self._builds.stop()
        super().stop()

    def close(self) -> None:
        """End all stations and builds."""
        super().close()
        self._builds.close()


class RayStation:
    """A station in an actor on a certain node.

    Args:
        node: The node's id.
        opener: Opens the station there.
        is_cuda: Whether it needs a GPU.
        turn_to: Is told of each piece of work, and says what of it is to be done and how, or that nothing is.

    Raises:
        JudgeFailed: The actor does not come up.
        FibError: The station does not.
    """

    def __init__(
        self,
        node: str,
        opener: Callable[[], Station],
        *,
        is_cuda: bool,
        turn_to: Callable[[DefinitionPlan], DefinitionPlan | None] = lambda part: part,
    ) -> None:
        self._turn_to = turn_to
        options: dict[str, Any] = {
            "num_cpus": 0 if is_cuda else 1,
            "num_gpus": 1 if is_cuda else 0,
            "scheduling_strategy": on_node(node),
            "max_restarts": 0,
        }
        self._actor: Any = ray.remote(_Seat).options(**options).remote(opener)
        try:
            self._environment: Environment = ray.get(self._actor.open.remote(), timeout=_OPENING_SECONDS)
        except GetTimeoutError as error:
            self.close()
            raise JudgeFailed(f"node {node[:8]} has had no room for an actor for {_OPENING_SECONDS:g} s") from error
        except RayError as error:
            self.close()
            raise meaning_of(error) from error

    @property
    def environment(self) -> Environment:
        """The hardware and the versions that traces state."""
        return self._environment

    def execute(self, part: DefinitionPlan) -> Iterator[Event]:
        """Run the plan for one definition.

        Raises:
            JudgeFailed: The node, the actor or its judge is gone.
            Exception: What our own code has raised there.
        """
        if (part_now := self._turn_to(part)) is None:
            return
        try:
            for reference in self._actor.execute.options(num_returns="streaming").remote(part_now):
                yield ray.get(reference)
        except RayError as error:
            raise meaning_of(error) from error

    def close(self) -> None:
        """End the actor and its judge."""
        with suppress(RayError):
            ray.get(self._actor.close.remote(), timeout=_CLOSING_SECONDS)
        ray.kill(self._actor)


class _Seat:
    """What the actor is."""

    def __init__(self, opener: Callable[[], Station]) -> None:
        self._opener = opener
        self._station: Station | None = None

    def open(self) -> Environment:
        """Open the station: here and not before, because Ray hides what an actor raises when it is made."""
        self._station = self._opener()
        return self._station.environment

    def execute(self, part: DefinitionPlan) -> Iterator[Event]:
        assert self._station is not None
        yield from self._station.execute(part)

    def close(self) -> None:
        if self._station is not None:
            self._station.close()
