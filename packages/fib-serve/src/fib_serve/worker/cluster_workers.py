"""Device workers of a Ray cluster: a thread for each device of its nodes, in one process.

Nodes may join and leave at any time. The database and the trace files stay on the machine of the service: threads lease
submissions and record results as the workers of local devices do, and only the judges run on the nodes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs
from fib_bench import BenchmarkConfig
from fib_bench.execution.ray_scheduler import DeviceSlot, RayError, connect, device_slots, ray
from fib_schema import FibError
from sqlalchemy.exc import SQLAlchemyError

from ..cluster_address import require_answer
from ..database.engine import Database
from ..errors import ClusterUnreachable, InvalidSetting, IsolationTooWeak
from ..settings import Settings
from .device_table import exclude_device, forget_devices
from .device_worker import DeviceWorker
from .ray_judges import RayJudges

_POLL_SECONDS = 2.0
_DRAIN_POLL_SECONDS = 0.1
_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 5.0, 40.0  # after the first one Ray knows whether the node is lost
_STEADY_SECONDS = 60.0
_LEFT = "its node has left the cluster"
_LOG = logging.getLogger(__name__)


@attrs.define(eq=False)
class _Member:
    """A device of a node with its worker."""

    slot: DeviceSlot
    thread: threading.Thread | None = None
    worker: DeviceWorker | None = None
    started_at: float = 0.0
    next_start: float = 0.0
    pause_seconds: float = _PAUSE_SECONDS / 2
    """Before the next start: it doubles with each early end."""
    has_left: bool = False
    """Whether its node has left the cluster."""
    refusal: FibError | None = None
    """The reason why the device is never used, if it is not."""


class ClusterWorkers:
    """Evaluates submissions on the devices of a cluster.

    Args:
        settings: Of the service.
        database: The database.

    Raises:
        UnsupportedDevice: Ray is not installed.
        InvalidConfig: The settings of evaluations are not valid.
        ClusterUnreachable: The cluster does not answer.
    """

    def __init__(self, settings: Settings, database: Database) -> None:
        self._settings, self._database = settings, database
        (self._device,) = settings.devices
        self._configs: Mapping[Path, BenchmarkConfig] = settings.benchmark_configs(self._device)
        self._members: dict[str, _Member] = {}
        self._lock = threading.Lock()
        self._drains = 0
        self._wake = threading.Event()
        self._has_registered = threading.Event()
        self._crash: BaseException | None = None
        connect_to(settings.address)

    def drain(self) -> None:
        """Finish the running submissions and end; called a second time, return them to the queue and end at once."""
        self._drains += 1
        self._wake.set()

    def run(self) -> None:
        """Evaluate submissions until `drain` is called.

        Raises:
            IsolationTooWeak: All devices give less isolation than the service requires.
            InvalidSetting: No device may be used, because of its version or exposed files.
        """
        kind = "GPU" if self._device.startswith("cuda") else "CPU"
        while not self._drains:
            slots = device_slots(ray.nodes(), kind)
            self._update(slots)
            self._raise_what_ends_the_service()
            self._wake.wait(_POLL_SECONDS)
            self._wake.clear()
        self._end()

    def _update(self, slots: Sequence[DeviceSlot]) -> None:
        """Start the workers of devices that have joined or are to be tried again; exclude those that have left."""
        names = {slot.name for slot in slots}
        for slot in slots:
            member = self._members.setdefault(slot.name, _Member(slot))
            is_due = member.refusal is None and time.monotonic() >= member.next_start
            if member.thread is None and is_due:
                member.started_at = time.monotonic()
                member.thread = threading.Thread(target=self._serve, args=[member], name=slot.name, daemon=True)
                member.thread.start()
        for name in self._members.keys() - names:
            self._remove(self._members[name])

    def _remove(self, member: _Member) -> None:
        """Exclude a device whose node has left; its thread may still be waiting for the node."""
        has_ended = member.thread is None
        if has_ended or not member.has_left:
            member.has_left = True
            self._exclude(member.slot.name, _LEFT)
        if has_ended:
            del self._members[member.slot.name]

    def _raise_what_ends_the_service(self) -> None:
        if self._crash is not None:
            raise self._crash
        refusals = [member.refusal for member in self._members.values()]
        if refusals and not self._has_registered.is_set() and (first := refusals[0]) is not None and all(refusals):
            raise first

    def _end(self) -> None:
        """Let workers finish; a second `drain` reaches them at once. Actors that are starting end with the process."""
        sent = 0
        while workers := self._workers():
            while sent < min(self._drains, 2):
                sent += 1
                for worker in workers:
                    worker.drain()
            time.sleep(_DRAIN_POLL_SECONDS)

    def _workers(self) -> list[DeviceWorker]:
        with self._lock:  # a worker that is made later finds that it must not run
            return [member.worker for member in self._members.values() if member.worker is not None]

    # -- in the threads --------------------------------------------------------------------------

    def _serve(self, member: _Member) -> None:
        """Run the worker of a device until it ends."""
        name = member.slot.name
        try:
            worker = self._open(member)
            if worker is not None:
                worker.run()
        except (IsolationTooWeak, InvalidSetting) as error:
            _LOG.error("device %s is not used: %s", name, error)
            member.refusal = error
            self._exclude(name, _short(error))
        except (FibError, SQLAlchemyError) as error:
            _LOG.error("the worker of %s ended: %s", name, error)
            is_steady = time.monotonic() - member.started_at > _STEADY_SECONDS
            member.pause_seconds = (
                _PAUSE_SECONDS if is_steady else min(2 * member.pause_seconds, _LONGEST_PAUSE_SECONDS)
            )
            member.next_start = time.monotonic() + member.pause_seconds
            self._exclude(name, _short(error))
        except BaseException as error:  # noqa: BLE001 the boundary of the thread: `run` raises it
            self._crash = error
        finally:
            member.worker = member.thread = None
            self._wake.set()

    def _open(self, member: _Member) -> DeviceWorker | None:
        """The worker of a device; None if the service is to end."""
        judges = RayJudges(member.slot, self._configs)
        worker = DeviceWorker(self._settings, member.slot.name, judges, self._database, self._has_registered.set)
        with self._lock:
            if not self._drains:
                member.worker = worker
                return worker
        worker.close()
        return None

    def _exclude(self, name: str, problem: str) -> None:
        try:
            exclude_device(self._database, name, problem)
            forget_devices(self._database, self._members.keys())
        except SQLAlchemyError as error:
            _LOG.error("the state of %s could not be stored: %s", name, error)


def connect_to(address: str | None) -> None:
    """Connect to a cluster, or start one.

    Args:
        address: Of the cluster; None starts one on this machine.

    Raises:
        ClusterUnreachable: It does not answer, or refuses, e.g. because it has another version of Ray.
    """
    require_answer(address)
    try:
        connect(address)
    except (OSError, RuntimeError, ValueError, RayError) as error:
        problem = getattr(error, "strerror", None) or next(iter(str(error).split("\n")), "")
        raise ClusterUnreachable(address or "on this machine", problem or type(error).__name__) from error


def _short(error: Exception) -> str:
    """The text for all readers of the table of devices: without paths of private files, which the log has."""
    if isinstance(error, IsolationTooWeak):
        return f"its sandbox reaches level {error.level}, required is {error.required}"
    if isinstance(error, InvalidSetting) and error.setting not in {"--devices", "--executor"}:
        return "its workers could open private files"
    return next(iter(str(error).splitlines()), type(error).__name__)
