"""Ray cluster: connection, device slots, and translation of errors."""

from __future__ import annotations

import re
import socket
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from ..errors import ClusterUnreachable, JudgeFailed, UnsupportedDevice

try:
    import ray as _ray
    from ray.exceptions import GetTimeoutError, RayError, RayTaskError, TaskUnschedulableError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
except ImportError as error:
    raise UnsupportedDevice("ray", "the Ray executor needs Ray: pip install 'fib-bench[ray]'") from error

__all__ = [
    "DeviceSlot",
    "GetTimeoutError",
    "RayError",
    "TaskUnschedulableError",
    "actor_options",
    "connect",
    "device_slots",
    "on_node",
    "ray",
    "to_local_error",
]
ray: Any = _ray  # its type hints do not match its use


_ADDRESS = re.compile(r"(?:ray://)?(?P<host>[\w.-]+|\[[0-9a-fA-F:.%]+\]):(?P<port>[0-9]{1,5})")
_CONNECT_SECONDS = 5.0
_CREATION = "raised in its creation task"
"""In the first line of the message of an actor that did not start."""


def connect(address: str | None) -> None:
    """Connect to a cluster, or start a local one.

    Raises:
        ClusterUnreachable: Nothing listens at the address.
    """
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
    if (match := _ADDRESS.fullmatch(address)) is None:
        return
    try:
        socket.create_connection((match["host"].strip("[]"), int(match["port"])), _CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ClusterUnreachable(address, getattr(error, "strerror", None) or str(error)) from error


@attrs.frozen
class DeviceSlot:
    """A device of a node: a GPU, or the node as one CPU device."""

    name: str
    node: str
    """The node's id."""
    cpus: int
    """Number of CPUs of the node."""


def device_slots(nodes: Sequence[Mapping[str, Any]], resource: str) -> list[DeviceSlot]:
    """The device slots of all nodes that are alive."""
    slots = []
    for node in nodes:
        count = int(node["Resources"].get(resource, 0)) if node["Alive"] else 0
        cpus = int(node["Resources"].get("CPU", 0))
        for index in range(count if resource == "GPU" else min(count, 1)):
            name = f"{node['NodeManagerHostname']}/{node['NodeID'][:8]}/{resource.lower()}:{index}"
            slots.append(DeviceSlot(name, node["NodeID"], cpus))
    return slots


def actor_options(node: str, *, is_cuda: bool) -> dict[str, Any]:
    """Options of an actor that has one device of a node for itself; a lost one is not restarted."""
    return {
        "num_cpus": 0 if is_cuda else 1,
        "num_gpus": 1 if is_cuda else 0,
        "scheduling_strategy": on_node(node),
        "max_restarts": 0,
    }


def on_node(node: str) -> NodeAffinitySchedulingStrategy:
    """A strategy that schedules on this node only."""
    return NodeAffinitySchedulingStrategy(node, soft=False)


def to_local_error(error: RayError) -> Exception:
    """The exception that fib-bench raised on a node; `JudgeFailed` if the cluster lost the node or a process."""
    if not isinstance(error, RayTaskError):
        return JudgeFailed(_reason(error))
    cause = error.cause
    if isinstance(cause, RayError) and not isinstance(cause, RayTaskError):
        return JudgeFailed(_reason(cause))
    return cause if isinstance(cause, Exception) else error


def _reason(error: RayError) -> str:
    """The first line of a message of Ray, or the last line of the traceback of an actor that did not start."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return f"it did not start on a node: {lines[-1]}" if _CREATION in lines[0] else lines[0]
