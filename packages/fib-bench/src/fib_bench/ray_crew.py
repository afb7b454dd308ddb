"""Stations on the nodes of a Ray cluster: an actor for each device.

The driver hands out work, receives what happens as it happens, and records it; an actor runs the
same judge's process as a run on one machine. Only what the cluster itself loses is repeated. The
data set must be at the same path on every node that is to read blobs from it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import attrs
from fib_schema import Environment, Solution

from .config import BenchmarkConfig
from .crew import Crew, Station
from .errors import JudgeFailed, UnsupportedDevice
from .events import Event
from .judge_process import JudgeProcess
from .plan import DefinitionPlan

try:
    import ray as _ray
    from ray.exceptions import RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
except ImportError as error:
    raise UnsupportedDevice("ray", "the executor needs Ray: pip install 'fib-bench[ray]'") from error

ray: Any = _ray  # what it says of its types does not fit how it is used
_OPENING_SECONDS = 120.0
_CLOSING_SECONDS = 10.0


def ray_crew(config: BenchmarkConfig, root: Path | None, baselines: Mapping[str, Solution]) -> Crew:
    """What carries out plans on the devices of a cluster, of the kind that the configuration names.

    Raises:
        UnsupportedDevice: The cluster has no such device.
        JudgeFailed: A judge did not start.
    """
    _connect(config.address)
    is_cuda = config.device.startswith("cuda")
    device = "cuda:0" if is_cuda else config.device  # Ray shows an actor its own devices only
    settings = attrs.evolve(config, device=device, devices=None)
    opener = partial(JudgeProcess, settings, None if root is None else root.absolute(), baselines)
    seats = seats_of(ray.nodes(), "GPU" if is_cuda else "CPU")
    if not seats:
        raise UnsupportedDevice(config.device, "no node of the Ray cluster has one")
    return Crew((name, partial(RayStation, node, opener, is_cuda=is_cuda)) for name, node in seats)


def _connect(address: str | None) -> None:
    """Join a cluster, or start one of this machine's own."""
    if ray.is_initialized():
        return
    quiet: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about what later versions will do
        if address is None:
            ray.init(_node_ip_address="127.0.0.1", include_dashboard=False, **quiet)
        else:
            ray.init(address=address, **quiet)


def seats_of(nodes: Sequence[Mapping[str, Any]], resource: str) -> list[tuple[str, str]]:
    """Names and node ids of the devices that nodes have: each GPU, or each node as one CPU device."""
    seats = []
    for node in nodes:
        count = int(node["Resources"].get(resource, 0)) if node["Alive"] else 0
        for index in range(count if resource == "GPU" else min(count, 1)):
            seats.append(
                (f"{node['NodeManagerHostname']}/{node['NodeID'][:8]}/{resource.lower()}:{index}", node["NodeID"])
            )
    return seats


class RayStation:
    """A station in an actor on a certain node.

    Args:
        node: The node's id.
        opener: Opens the station there.
        is_cuda: Whether it needs a GPU.

    Raises:
        JudgeFailed: The actor or the station does not come up.
    """

    def __init__(self, node: str, opener: Callable[[], Station], *, is_cuda: bool) -> None:
        options: dict[str, Any] = {
            "num_cpus": 0 if is_cuda else 1,
            "num_gpus": 1 if is_cuda else 0,
            "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False),
            "max_restarts": 0,
        }
        self._actor: Any = ray.remote(_Seat).options(**options).remote(opener)
        try:
            self._environment: Environment = ray.get(self._actor.environment.remote(), timeout=_OPENING_SECONDS)
        except RayError as error:
            self.close()
            raise JudgeFailed(f"no judge on node {node[:8]}: {_first_line(error)}") from error

    @property
    def environment(self) -> Environment:
        """The hardware and the versions that traces state."""
        return self._environment

    def execute(self, part: DefinitionPlan) -> Iterator[Event]:
        """Run the plan for one definition.

        Raises:
            JudgeFailed: The node, the actor or its judge is gone.
        """
        try:
            for reference in self._actor.execute.options(num_returns="streaming").remote(part):
                yield ray.get(reference)
        except RayError as error:
            raise JudgeFailed(_first_line(error)) from error

    def close(self) -> None:
        """End the actor and its judge."""
        with suppress(RayError):
            ray.get(self._actor.close.remote(), timeout=_CLOSING_SECONDS)
        ray.kill(self._actor)


class _Seat:
    """What the actor is."""

    def __init__(self, opener: Callable[[], Station]) -> None:
        self._station = opener()

    def environment(self) -> Environment:
        return self._station.environment

    def execute(self, part: DefinitionPlan) -> Iterator[Event]:
        yield from self._station.execute(part)

    def close(self) -> None:
        self._station.close()


def _first_line(error: RayError) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
