"""Process of a service: a thread for the web server, and one for each device.

The main thread starts and drains the others. A kill at any point loses nothing: judges end with the process, and the
next start makes the database agree with the trace files.
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
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import uvicorn
from fib_bench.errors import ClusterUnreachable
from fib_bench.execution.scheduler import concurrency_of
from fib_schema import FibError
from fib_schema.display import counted

from .contest import Contest, read_catalogs
from .database import Database, iso_time
from .device_worker import DeviceWorker
from .errors import InvalidSetting
from .judges import Judges, RayJudges
from .queue import reconcile
from .settings import Settings, make_state
from .users import local_principal
from .web.app import make_app

_POLL_SECONDS = 0.2
_NODES_SECONDS = 2.0
_DRAIN_SECONDS, _END_SECONDS = 600.0, 15.0
_KEEP_ALIVE_SECONDS, _GRACEFUL_SECONDS = 10, 10
_MAX_CONNECTIONS = 2000
_MAX_HEADER_BYTES = 64 << 10
_LOG = logging.getLogger(__name__)


def run(settings: Settings, listener: socket.socket) -> int:
    """Run a service until a signal comes; returns the exit code.

    Raises:
        FibError: The service cannot be started, or a device cannot be used.
    """
    configure_logs(settings.log_level)
    make_state(Path(settings.state))
    with _locked(Path(settings.state)), closing(Database(settings.database_path)) as database:
        contest = prepare(settings, database)
        os.chdir(settings.work_path)
        _Process(contest, listener).run()
    return 0


def prepare(settings: Settings, database: Database) -> Contest:
    """The database in agreement with the trace files, and the data sets.

    Raises:
        FibError: The settings or the files are not usable.
    """
    catalogs = read_catalogs(settings)
    for problem in catalogs[0].problems:
        _LOG.warning("%s", problem)
    if empty := [name for name, workloads in catalogs[0].workloads.items() if not workloads]:
        _LOG.warning("nothing can be submitted for definitions without workloads: %s", ", ".join(empty))
    if lost := reconcile(database, catalogs):
        _LOG.error("%s have no trace in the data set any more: restore its files", counted(lost, "result"))
    local = None if settings.has_auth else local_principal(database)
    contest = Contest(settings, database, catalogs, local=local, stop=lambda: os.kill(os.getpid(), signal.SIGTERM))
    if settings.hidden is not None and (others := contest.public.definitions.keys() - contest.hidden_definitions):
        _LOG.warning("definitions without hidden workloads rank by public ones: %s", ", ".join(sorted(others)))
    return contest


class _Process:
    def __init__(self, contest: Contest, listener: socket.socket) -> None:
        self._contest, self._listener, self._signals = contest, listener, 0
        self._server = make_server(contest)

    def run(self) -> None:
        settings = self._contest.settings
        devices = DevicePool(self._contest)
        web = threading.Thread(target=self._server.run, args=[[self._listener]], name="web", daemon=True)
        web.start()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        address = f"http://{settings.host}:{self._listener.getsockname()[1]}"
        _LOG.info("serving %s on %s", settings.dataset, address)
        try:
            while not self._signals and web.is_alive():
                devices.update()
                time.sleep(_POLL_SECONDS)
            _LOG.warning("the service stops: its evaluations are finished first")
            self._contest.is_draining = True
            self._drain(devices)
        finally:
            self._contest.is_closed = True
            self._server.should_exit = True
            web.join(_END_SECONDS)

    def _drain(self, devices: DevicePool) -> None:
        """Let workers finish; a second signal, or the end of the time, returns their submissions to the queue."""
        for seconds, most_signals in ((_DRAIN_SECONDS, 2), (_END_SECONDS, sys.maxsize)):
            devices.drain()
            deadline = time.monotonic() + seconds
            while devices.is_running and self._signals < most_signals and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)

    def _on_signal(self, *_: object) -> None:
        self._signals += 1


def make_server(contest: Contest) -> uvicorn.Server:
    """The web server; a reverse proxy in front of it bounds the time of headers."""
    proxy = contest.settings.proxy
    config = uvicorn.Config(
        make_app(contest),
        http="h11",  # the one with a bound on the size of headers
        h11_max_incomplete_event_size=_MAX_HEADER_BYTES,
        loop="asyncio",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=proxy is not None,
        forwarded_allow_ips=proxy,
        limit_concurrency=_MAX_CONNECTIONS,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=_GRACEFUL_SECONDS,
        backlog=2048,
    )
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)  # `web.app` logs errors of routes
    return uvicorn.Server(config)


# -- devices -----------------------------------------------------------------------------------------


class DevicePool:
    """The devices of a service: those of this machine, or of the nodes of a Ray cluster, which come and go.

    Raises:
        ClusterUnreachable: The cluster does not answer.
    """

    def __init__(self, contest: Contest) -> None:
        self._contest = contest
        self._devices: dict[str, DeviceWorker] = {}
        self._next_nodes = 0.0
        settings = contest.settings
        self._is_cluster = settings.executor == "ray"
        if self._is_cluster:
            _connect(settings.address)
            self._configs = contest.configs(settings.devices[0])
            return
        judges = {name: found for device in settings.devices for name, found in self._local(device)}
        for name, found in judges.items():  # all settings are valid
            self._add(name, found)

    @property
    def is_running(self) -> bool:
        """Whether a thread may evaluate a submission."""
        return any(device.is_running for device in self._devices.values())

    def update(self) -> None:
        """Follow the nodes that join and leave.

        Raises:
            FibError: A device of this machine, or all devices of the cluster, cannot be used.
        """
        if self._is_cluster and time.monotonic() >= self._next_nodes:
            self._next_nodes = time.monotonic() + _NODES_SECONDS
            self._update_nodes()
        failures = [device.failure for device in self._devices.values() if device.failure is not None]
        is_unused = len(failures) == len(self._devices) and not self._contest.devices.in_use()
        for failure in failures:
            if is_unused or not self._is_cluster or not isinstance(failure, FibError):
                raise failure

    def drain(self) -> None:
        """Let workers finish; called a second time, they return their submissions to the queue."""
        for device in self._devices.values():
            device.drain()

    def _add(self, name: str, judges: Judges) -> None:
        self._devices[name] = DeviceWorker(self._contest, name, judges)
        self._devices[name].start()

    def _local(self, device: str) -> Iterator[tuple[str, Judges]]:
        """The workers of a device of this machine. The judges of those that share it take turns to time."""
        settings = self._contest.settings
        count = concurrency_of(self._contest.public.config, device, len(settings.devices))
        configs = self._contest.configs(device, count)
        for index in range(count):
            name = device if count == 1 else f"{device} (worker {index + 1} of {count})"
            yield name, Judges(device, configs)

    def _update_nodes(self) -> None:
        from fib_bench.execution.ray_scheduler import device_slots, ray

        kind = "GPU" if self._contest.settings.devices[0].startswith("cuda") else "CPU"
        slots = {slot.name: slot for slot in device_slots(ray.nodes(), kind)}
        for name, slot in slots.items():
            if name not in self._devices:
                self._add(name, RayJudges(slot, self._configs))
        for name in [name for name in self._devices if name not in slots]:
            device = self._devices[name]
            if device.is_running:
                device.drain()
            else:
                _LOG.warning("the node of %s has left the cluster", name)
                del self._devices[name]
                self._contest.devices.remove(name)


def _connect(address: str | None) -> None:
    from fib_bench.execution.ray_scheduler import RayError, connect  # imports Ray, which takes seconds

    try:
        connect(address)
    except ClusterUnreachable:
        raise
    except (OSError, RuntimeError, ValueError, RayError) as error:
        problem = next(iter(str(error).splitlines()), type(error).__name__)
        raise ClusterUnreachable(address or "on this machine", problem) from error


# -- files and logs ----------------------------------------------------------------------------------


@contextmanager
def _locked(state: Path) -> Iterator[None]:
    """Hold the lock of a state folder; `InvalidSetting` if another process holds it."""
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
        fields = {"time": iso_time(record.created), "level": record.levelname.lower(), "logger": record.name}
        return json.dumps({**fields, "message": super().format(record)})  # a traceback belongs to the message


def configure_logs(level: str) -> None:
    """Send all log records to stderr, one JSON object per line."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(True)
