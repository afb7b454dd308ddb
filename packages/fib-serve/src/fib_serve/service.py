"""Process of a service: a thread for the web server, and one for each device.

The main thread starts devices, starts those that fail again, and drains them at the end. A kill at any
point loses nothing: judges end with the process, and the next start makes the database agree with the trace files.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import attrs
import uvicorn
from fib_bench import BenchmarkConfig
from fib_bench.errors import ClusterUnreachable, JudgeFailed
from fib_bench.execution.executors import concurrency_of
from fib_schema import FibError
from sqlalchemy.exc import SQLAlchemyError

from .changes import Changes
from .database import Database, iso_time, migrate
from .device_worker import Contest, DeviceTable, DeviceWorker, data_sets
from .errors import InvalidSetting, IsolationTooWeak
from .judges import Judges, RayJudges
from .leases import reconcile
from .settings import Settings, make_state
from .users import local_principal
from .web.access import Service
from .web.app import make_app

_POLL_SECONDS = 0.2
_NODES_SECONDS = 2.0
_LONGEST_PAUSE_SECONDS = 40.0
_STEADY_SECONDS = 60.0
_END_SECONDS = 15.0
_KEEP_ALIVE_SECONDS, _GRACEFUL_SECONDS = 10, 10
_MAX_CONNECTIONS = 2000
_MAX_HEADER_BYTES = 64 << 10
_LOG = logging.getLogger(__name__)


def run(settings: Settings, listener: socket.socket) -> int:
    """Run a service until a signal comes; returns the exit code.

    Args:
        settings: Of the service.
        listener: The socket that accepts connections already; they wait until the server runs.

    Raises:
        FibError: The service cannot be started, or a device cannot be used.
    """
    configure_logs(settings.log_level)
    make_state(Path(settings.state))
    with locked(Path(settings.state)), closing(Database(settings.database_path)) as database:
        contest = prepare(settings, database)
        os.chdir(settings.work_path)
        _Process(contest, listener).run()
    return 0


def prepare(settings: Settings, database: Database) -> Contest:
    """The database of this version in agreement with the trace files, and the data sets.

    Raises:
        FibError: The settings or the files are not usable.
    """
    catalogs = data_sets(settings)
    for problem in catalogs[0][0].problems:
        _LOG.warning("%s", problem)
    migrate(database)
    found = reconcile(database, tuple(place for _, place in catalogs))
    _LOG.info("database and trace files agree: %s", found, extra={"fields": attrs.asdict(found)})
    return Contest(settings, database, catalogs, Changes(), DeviceTable())


class _Process:
    def __init__(self, contest: Contest, listener: socket.socket) -> None:
        self._contest, self._listener, self._signals = contest, listener, 0
        settings = contest.settings
        local = None if settings.has_auth else local_principal(contest.database, settings)
        self._service = Service(contest, local, lambda: os.kill(os.getpid(), signal.SIGTERM))
        self._server = make_server(self._service)

    def run(self) -> None:
        settings = self._contest.settings
        devices = DevicePool(self._contest)
        web = threading.Thread(target=self._server.run, args=[[self._listener]], name="web", daemon=True)
        web.start()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        address = f"http://{settings.host}:{self._listener.getsockname()[1]}"
        fields = {"address": address, "devices": settings.devices, "data_set": settings.dataset}
        _LOG.info("serving %s on %s", settings.dataset, address, extra={"fields": fields})
        try:
            while not self._signals and web.is_alive():
                devices.update()
                time.sleep(_POLL_SECONDS)
            self._service.is_draining = True
            self._drain(devices)
        finally:
            self._contest.changes.end_waiting()
            self._server.should_exit = True
            web.join(_END_SECONDS)

    def _drain(self, devices: DevicePool) -> None:
        """Let workers finish; a second signal, or the end of the time, returns their submissions to the queue."""
        devices.drain()
        deadline = time.monotonic() + self._contest.settings.drain_seconds
        while devices.is_running and self._signals < 2 and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        devices.drain()
        deadline = time.monotonic() + _END_SECONDS
        while devices.is_running and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)

    def _on_signal(self, *_: object) -> None:
        self._signals += 1


def make_server(service: Service) -> uvicorn.Server:
    """The web server; a reverse proxy in front of it bounds the time of headers."""
    settings = service.settings
    config = uvicorn.Config(
        make_app(service),
        http="h11",  # the one with a bound on the size of headers
        h11_max_incomplete_event_size=_MAX_HEADER_BYTES,
        loop="asyncio",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=settings.proxy is not None,
        forwarded_allow_ips=settings.proxy,
        limit_concurrency=_MAX_CONNECTIONS,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=_GRACEFUL_SECONDS,
        backlog=2048,
    )
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)  # `web.app` logs errors of routes
    return uvicorn.Server(config)


# -- devices -----------------------------------------------------------------------------------------


@attrs.define(eq=False)
class _Member:
    """A device with the thread that evaluates submissions on it."""

    make_judges: Callable[[], Judges]
    thread: threading.Thread | None = None
    worker: DeviceWorker | None = None
    started_at: float = 0.0
    next_start: float = 0.0
    pause_seconds: float = 0.5
    """Before the next start: it doubles with each early end."""
    has_left: bool = False
    refusal: FibError | None = None
    """The reason why the device is never used, if it is not."""


class DevicePool:
    """The devices of a service: those of this machine, or of the nodes of a Ray cluster, which come and go.

    Args:
        contest: The contest.

    Raises:
        InvalidConfig: The settings of evaluations are not valid.
        ClusterUnreachable: The cluster does not answer.
    """

    def __init__(self, contest: Contest) -> None:
        self._contest = contest
        self._members: dict[str, _Member] = {}
        self._is_draining = False
        self._crash: BaseException | None = None
        self._next_nodes = 0.0
        settings = contest.settings
        self._is_cluster = settings.executor == "ray"
        if self._is_cluster:
            _connect(settings.address)
            self._configs: Mapping[Path, BenchmarkConfig] = settings.benchmark_configs(settings.devices[0])
        else:
            for device in settings.devices:
                self._add_local(device)

    @property
    def is_running(self) -> bool:
        """Whether a thread evaluates submissions."""
        return any(member.thread is not None for member in self._members.values())

    def update(self) -> None:
        """Start the threads of devices that have joined or are to be tried again.

        Raises:
            FibError: A device of this machine, or all devices of the cluster, cannot be used.
        """
        if self._is_cluster and time.monotonic() >= self._next_nodes:
            self._next_nodes = time.monotonic() + _NODES_SECONDS
            self._update_nodes()
        for name, member in self._members.items():
            is_due = member.refusal is None and not member.has_left and time.monotonic() >= member.next_start
            if member.thread is None and is_due:
                member.started_at = time.monotonic()
                member.thread = threading.Thread(target=self._serve, args=[name, member], name=name, daemon=True)
                member.thread.start()
        self._raise_what_ends_the_service()

    def drain(self) -> None:
        """Let workers finish; called a second time, they return their submissions to the queue."""
        self._is_draining = True
        for member in self._members.values():
            if member.worker is not None:
                member.worker.drain()

    def _add_local(self, device: str) -> None:
        """Add a device of this machine. The judges of those that share a device take turns to time."""
        settings = self._contest.settings
        count = concurrency_of(BenchmarkConfig(concurrency=settings.concurrency), device, len(settings.devices))
        configs = attrs.evolve(settings, concurrency=count).benchmark_configs(device)
        for index in range(count):
            name = device if count == 1 else f"{device} (worker {index + 1} of {count})"
            self._members[name] = _Member(partial(Judges, device, configs))

    def _update_nodes(self) -> None:
        from fib_bench.execution.ray_scheduler import device_slots, ray

        kind = "GPU" if self._contest.settings.devices[0].startswith("cuda") else "CPU"
        slots = {slot.name: slot for slot in device_slots(ray.nodes(), kind)}
        for name, slot in slots.items():
            if name not in self._members:
                self._members[name] = _Member(partial(RayJudges, slot, self._configs))
        for name in [name for name in self._members if name not in slots]:
            member = self._members[name]
            if member.thread is None:
                del self._members[name]
                self._contest.devices.remove(name)
            elif not member.has_left:
                _LOG.warning("the node of %s has left the cluster", name)
                member.has_left = True
                if member.worker is not None:
                    member.worker.drain()

    def _raise_what_ends_the_service(self) -> None:
        if self._crash is not None:
            raise self._crash
        refusals = [member.refusal for member in self._members.values() if member.refusal is not None]
        is_unused = len(refusals) == len(self._members) and not self._contest.devices.in_use()
        if refusals and (is_unused or not self._is_cluster):
            raise refusals[0]

    def _serve(self, name: str, member: _Member) -> None:
        """Run the worker of a device, in its thread."""
        try:
            member.worker = DeviceWorker(self._contest, name, member.make_judges())
            if self._is_draining:  # it began while the others were told
                member.worker.drain()
            member.worker.run()
        except (JudgeFailed, SQLAlchemyError, OSError) as error:
            is_steady = time.monotonic() - member.started_at > _STEADY_SECONDS
            member.pause_seconds = 1.0 if is_steady else min(2 * member.pause_seconds, _LONGEST_PAUSE_SECONDS)
            member.next_start = time.monotonic() + member.pause_seconds
            _LOG.error("the worker of %s ended and is started again: %s", name, error)
            self._contest.devices.exclude(name, _short(error))
        except FibError as error:
            _LOG.error("device %s is not used: %s", name, error)
            self._contest.devices.exclude(name, _short(error))
            member.refusal = error
        except BaseException as error:  # noqa: BLE001 the boundary of the thread: `update` raises it
            self._crash = error
        finally:
            member.worker = member.thread = None


def _connect(address: str | None) -> None:
    from fib_bench.execution.ray_scheduler import RayError, connect  # imports Ray, which takes seconds

    try:
        connect(address)
    except (OSError, RuntimeError, ValueError, RayError) as error:
        if isinstance(error, ClusterUnreachable):
            raise
        problem = next(iter(str(error).splitlines()), type(error).__name__)
        raise ClusterUnreachable(address or "on this machine", problem) from error


def _short(error: Exception) -> str:
    """The text for all readers of the table of devices: without paths of private files, which the log has."""
    if isinstance(error, IsolationTooWeak):
        return f"its sandbox reaches level {error.level}, required is {error.required}"
    if isinstance(error, InvalidSetting) and error.setting not in {"--devices", "--executor"}:
        return "its workers could open private files"
    return next(iter(str(error).splitlines()), type(error).__name__)


# -- files, socket, logs -----------------------------------------------------------------------------


@contextmanager
def locked(state: Path) -> Iterator[None]:
    """Hold the lock of a state folder.

    Raises:
        InvalidSetting: Another process holds it.
    """
    descriptor = os.open(state / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise InvalidSetting("--state", f"a service is running on {state}; stop it first") from error
    finally:
        os.close(descriptor)


class _JsonFormatter(logging.Formatter):
    """Formats a record as one line of ASCII JSON, which escapes control characters of strangers' text."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        fields = {
            "time": iso_time(record.created),
            "level": record.levelname.lower(),
            "thread": record.threadName,
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields)


def configure_logs(level: str) -> None:
    """Send all log records to stderr, one JSON object per line."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(True)
