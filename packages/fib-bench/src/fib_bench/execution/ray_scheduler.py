"""Device workers on a Ray cluster, an actor for each device.

The driver distributes work, receives events and records them; an actor runs the same judge process as a local
run. Work is repeated only if the cluster loses it. The data set must have the same path on every node that reads
blobs from it.
"""

from __future__ import annotations

import socket
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import attrs
from fib_schema import Environment, Solution

from ..config.model import BenchmarkConfig
from ..errors import ClusterUnreachable, JudgeFailed, UnsupportedDevice
from ..events import Event
from ..plan import DefinitionPlan
from .judge_process import JudgeProcess

try:
    import ray as _ray
    from ray.exceptions import GetTimeoutError, RayError, RayTaskError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
except ImportError as error:
    raise UnsupportedDevice("ray", "the Ray executor needs Ray: pip install 'fib-bench[ray]'") from error

__all__ = ["DeviceSlot", "RayDeviceWorker", "RayError", "connect", "device_slots", "ray", "worker_factories"]
ray: Any = _ray  # its type hints do not match its use


_CONNECT_SECONDS = 5.0


def connect(address: str | None) -> None:
    """Connect to a cluster, or start a local one; `ClusterUnreachable` if nothing listens at the address."""
    if ray.is_initialized():
        return
    _require_answer(address or "")
    quiet: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about changes in later versions
        if address is None:
            # Not the default address: it joins the last cluster of this machine, even one that has ended.
            ray.init(address="local", _node_ip_address="127.0.0.1", include_dashboard=False, **quiet)
        else:
            ray.init(address=address, **quiet)


def _require_answer(address: str) -> None:
    """Check that something listens at an address with a port; Ray itself waits for minutes."""
    parts = urlsplit(address if "://" in address else f"//{address}")
    try:
        if parts.port is not None:
            socket.create_connection((parts.hostname or "", parts.port), _CONNECT_SECONDS).close()
    except (OSError, ValueError) as error:  # also a port that is no number or too large
        raise ClusterUnreachable(address, getattr(error, "strerror", None) or str(error)) from error


@attrs.frozen
class DeviceSlot:
    """A device of a node: a GPU, or the node as one CPU device."""

    name: str
    node: str


def device_slots(nodes: Sequence[Mapping[str, Any]], resource: str) -> list[DeviceSlot]:
    """The device slots of all nodes that are alive."""
    slots = []
    for node in nodes:
        count = int(node["Resources"].get(resource, 0)) if node["Alive"] else 0
        for index in range(count if resource == "GPU" else min(count, 1)):
            name = f"{node['NodeManagerHostname']}/{node['NodeID'][:8]}/{resource.lower()}:{index}"
            slots.append(DeviceSlot(name, node["NodeID"]))
    return slots


def to_local_error(error: RayError) -> Exception:
    """The exception that fib-bench raised on a node; `JudgeFailed` if the cluster lost the node or a process."""
    if not isinstance(error, RayTaskError):
        return JudgeFailed(_first_line(error))
    cause = error.cause
    if isinstance(cause, RayError) and not isinstance(cause, RayTaskError):
        return JudgeFailed(_first_line(cause))
    return cause if isinstance(cause, Exception) else error


def _first_line(error: RayError) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


_OPEN_TIMEOUT_SECONDS = 120.0
_CLOSE_TIMEOUT_SECONDS = 10.0


def worker_factories(
    config: BenchmarkConfig, root: Path | None, baselines: Mapping[str, Solution]
) -> list[tuple[str, Callable[[], RayDeviceWorker]]]:
    """The workers for all devices of the named kind in a cluster, by name; `UnsupportedDevice` if there is none."""
    connect(config.address)
    is_cuda = config.device.startswith("cuda")
    device = "cuda:0" if is_cuda else config.device  # an actor sees its own device only
    settings = config.with_fields(device=device, devices=None)
    root = None if root is None else root.absolute()
    slots = device_slots(ray.nodes(), "GPU" if is_cuda else "CPU")
    if not slots:
        raise UnsupportedDevice(config.device, "no node of the Ray cluster has one")
    factory = partial(JudgeProcess, settings, root, baselines)
    start = partial(RayDeviceWorker, factory=factory, is_cuda=is_cuda)
    return [(slot.name, partial(start, slot.node)) for slot in slots]


class RayDeviceWorker:
    """A device worker in an actor on the node of an id, where a factory starts it; `JudgeFailed` if no actor starts."""

    def __init__(self, node: str, factory: Callable[[], JudgeProcess], *, is_cuda: bool) -> None:
        actor = ray.remote(_DeviceActor).options(
            num_cpus=0 if is_cuda else 1,
            num_gpus=1 if is_cuda else 0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
            max_restarts=0,
        )
        self._actor: Any = actor.remote(factory)
        try:
            self._environment: Environment = ray.get(self._actor.open.remote(), timeout=_OPEN_TIMEOUT_SECONDS)
        except GetTimeoutError as error:
            self.close()
            raise JudgeFailed(f"node {node[:8]} had no room for an actor for {_OPEN_TIMEOUT_SECONDS:g} s") from error
        except RayError as error:
            self.close()
            raise to_local_error(error) from error

    @property
    def environment(self) -> Environment:
        """The hardware and the versions that traces state."""
        return self._environment

    def execute(self, part: DefinitionPlan) -> Iterator[Event]:
        """Run the plan for one definition; `JudgeFailed` if the cluster lost the judge, else what was raised there."""
        try:
            for reference in self._actor.execute.options(num_returns="streaming").remote(part):
                yield ray.get(reference)
        except RayError as error:
            raise to_local_error(error) from error

    def close(self) -> None:
        """Terminate the actor and its judge."""
        with suppress(RayError):
            ray.get(self._actor.close.remote(), timeout=_CLOSE_TIMEOUT_SECONDS)
        ray.kill(self._actor)


class _DeviceActor:
    def __init__(self, factory: Callable[[], JudgeProcess]) -> None:
        self._factory = factory
        self._worker: JudgeProcess | None = None

    def open(self) -> Environment:
        """Start the worker; not in the constructor, because Ray hides exceptions of an actor's constructor."""
        self._worker = self._factory()
        return self._worker.environment

    def execute(self, part: DefinitionPlan) -> Iterator[Event]:
        assert self._worker is not None
        yield from self._worker.execute(part)

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()
