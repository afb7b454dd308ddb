"""A Ray cluster: joining it, its devices, and what its errors mean to us."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from ..errors import JudgeFailed, UnsupportedDevice

try:
    import ray as _ray
    from ray.exceptions import GetTimeoutError, RayError, RayTaskError, TaskUnschedulableError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
except ImportError as error:
    raise UnsupportedDevice("ray", "the executor needs Ray: pip install 'fib-bench[ray]'") from error

__all__ = [
    "GetTimeoutError",
    "RayError",
    "Seat",
    "TaskUnschedulableError",
    "connect",
    "meaning_of",
    "on_node",
    "ray",
    "seats_of",
]
ray: Any = _ray  # what it says of its types does not fit how it is used


def connect(address: str | None) -> None:
    """Join a cluster, or start one of this machine's own."""
    if ray.is_initialized():
        return
    quiet: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about what later versions will do
        if address is None:
            # Not the default address, which joins whatever cluster was started last here, even one that is no more.
            ray.init(address="local", _node_ip_address="127.0.0.1", include_dashboard=False, **quiet)
        else:
            ray.init(address=address, **quiet)


@attrs.frozen
class Seat:
    """A device of a node: a GPU, or the node as one CPU device."""

    name: str
    node: str
    """The node's id."""
    cpus: int
    """How many the node has."""


def seats_of(nodes: Sequence[Mapping[str, Any]], resource: str) -> list[Seat]:
    """The devices that nodes have."""
    seats = []
    for node in nodes:
        count = int(node["Resources"].get(resource, 0)) if node["Alive"] else 0
        cpus = int(node["Resources"].get("CPU", 0))
        for index in range(count if resource == "GPU" else min(count, 1)):
            name = f"{node['NodeManagerHostname']}/{node['NodeID'][:8]}/{resource.lower()}:{index}"
            seats.append(Seat(name, node["NodeID"], cpus))
    return seats


def on_node(node: str) -> NodeAffinitySchedulingStrategy:
    """On this node or not at all."""
    return NodeAffinitySchedulingStrategy(node, soft=False)


def meaning_of(error: RayError) -> Exception:
    """What our own code raised on a node; `JudgeFailed` where the cluster has lost the node or a process."""
    if not isinstance(error, RayTaskError):
        return JudgeFailed(_first_line(error))
    cause = error.cause
    if isinstance(cause, RayError) and not isinstance(cause, RayTaskError):
        return JudgeFailed(_first_line(cause))
    return cause if isinstance(cause, Exception) else error


def _first_line(error: RayError) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
