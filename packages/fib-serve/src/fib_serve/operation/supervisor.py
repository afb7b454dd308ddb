"""Supervisor: starts the processes of a service, restarts those that die, and drains them at the end.

It holds the lock of the state folder and the listening socket, so that a restarted server loses no connection.
"""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import attrs
from sqlalchemy import delete

from ..catalog import Catalog, check_hidden
from ..cluster_address import require_answer
from ..database import migrate, open_database
from ..database.tables import devices
from ..errors import ClusterUnreachable, DatabaseUnreachable, InvalidSetting
from ..logs import configure_logs
from ..processes import REFUSED, SUPERVISOR_VARIABLE
from ..queue.reconciliation import reconcile
from ..queue.recording import Place
from ..settings import DATABASE_VARIABLE, Settings, make_state

_LONGEST_PAUSE_SECONDS = 30.0
_STEADY_SECONDS = 60.0
_POLL_SECONDS = 0.1
_API_SECONDS = 15.0
_ANSWER_SECONDS = 30.0  # a database server or a cluster may start together with the service
_LOCK_SECONDS = 3.0  # a child of a killed supervisor holds the lock until it has executed its program
_LOG = logging.getLogger(__name__)
Opened = TypeVar("Opened")


@attrs.define(eq=False)
class Child:
    """One process of the service."""

    name: str
    command: list[str]
    descriptors: tuple[int, ...] = ()
    process: subprocess.Popen[bytes] | None = None
    pause_seconds: float = 0.0
    """Before the next start: it doubles with each early death."""
    started_at: float = 0.0
    next_start: float = 0.0

    def start(self, settings: Settings) -> None:
        """Start it, in the empty folder."""
        self.started_at = time.monotonic()
        database = {} if settings.database is None else {DATABASE_VARIABLE: settings.database}
        self.process = subprocess.Popen(
            [sys.executable, "-m", *self.command],
            cwd=settings.work_path,
            pass_fds=self.descriptors,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **database, SUPERVISOR_VARIABLE: str(os.getpid())},
        )

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal if it runs."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def wait(self, seconds: float) -> None:
        """Wait for its end, and kill it afterwards."""
        if self.process is None:
            return
        try:
            self.process.wait(max(seconds, 0.0))
        except subprocess.TimeoutExpired:
            _LOG.warning("%s did not end in time and is killed", self.name)
            self.process.kill()
            self.process.wait()


class Supervisor:
    """Runs a service until a signal comes.

    Args:
        settings: Of the service.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._signals = 0
        self._wake = threading.Event()
        self._refused = ""

    def run(self) -> int:
        """Run; returns the exit code.

        Raises:
            FibError: The service cannot be started.
        """
        settings = self._settings
        configure_logs(settings.log_level, "supervisor")
        with prepared(settings), listening(settings) as listener:
            port = listener.getsockname()[1]
            command = ["fib_serve.web.process", settings.to_json(), str(listener.fileno())]
            api = Child("api", command, (listener.fileno(),))
            workers = list(workers_of(settings))
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, self._on_signal)
            address = f"http://{settings.host}:{port}"
            fields = {"address": address, "devices": settings.devices, "data_set": settings.dataset}
            _LOG.info("serving %s on %s", settings.dataset, address, extra={"fields": fields})
            self._watch([api, *workers])
            self._drain(api, workers)
        return 2 if self._refused else 0

    def _watch(self, children: list[Child]) -> None:
        """Start children, and restart those that die, until a signal comes or one refuses to run."""
        while not self._signals and not self._refused:
            for child in children:
                self._look_after(child)
            self._wake.wait(_POLL_SECONDS)

    def _look_after(self, child: Child) -> None:
        time_now = time.monotonic()
        if child.process is not None and child.process.poll() is not None:
            code, child.process = child.process.returncode, None
            if code == REFUSED:
                self._refused = child.name
                return
            is_steady = time_now - child.started_at > _STEADY_SECONDS
            child.pause_seconds = 0.0 if is_steady else min(2 * child.pause_seconds + 0.2, _LONGEST_PAUSE_SECONDS)
            child.next_start = time_now + child.pause_seconds
            _LOG.error("%s ended with status %s; it is restarted in %.1f s", child.name, code, child.pause_seconds)
        if child.process is None and time_now >= child.next_start:
            child.start(self._settings)

    def _drain(self, api: Child, workers: list[Child]) -> None:
        """Let workers finish; a second signal ends them at once."""
        api.signal(signal.SIGUSR1)
        for worker in workers:
            worker.signal(signal.SIGTERM)
        deadline = time.monotonic() + self._settings.drain_seconds
        running = [worker.process for worker in workers if worker.process is not None]
        while time.monotonic() < deadline and any(process.poll() is None for process in running):
            if self._signals > 1:
                deadline = time.monotonic()
            self._wake.clear()
            self._wake.wait(_POLL_SECONDS)
        for worker in workers:
            worker.signal(signal.SIGTERM)  # the second one: it returns its submission to the queue
        for worker in workers:
            worker.wait(_API_SECONDS)
        api.signal(signal.SIGTERM)
        api.wait(_API_SECONDS)

    def _on_signal(self, *_: object) -> None:
        self._signals += 1
        self._wake.set()


def workers_of(settings: Settings) -> Iterator[Child]:
    """The workers of all devices. The judges of those that share a device take turns to time.

    With Ray one process serves the devices of all nodes: they come and go while it runs.
    """
    if settings.executor == "ray":
        yield Child("worker ray", ["fib_serve.worker.process", settings.to_json()])
        return
    from fib_bench import BenchmarkConfig
    from fib_bench.execution.executors import concurrency_of

    config = BenchmarkConfig(concurrency=settings.concurrency)
    for device in settings.devices:
        count = concurrency_of(config, device, len(settings.devices))
        text = attrs.evolve(settings, concurrency=count).to_json()
        for index in range(count):
            name = device if count == 1 else f"{device} (worker {index + 1} of {count})"
            yield Child(f"worker {name}", ["fib_serve.worker.process", text, device, name])


@contextmanager
def prepared(settings: Settings) -> Iterator[None]:
    """The state folder, locked; the database of this version, in agreement with the trace files.

    Raises:
        FibError: The settings or the files are not usable.
    """
    make_state(Path(settings.state))
    with locked(Path(settings.state)):
        public = Catalog.read(Path(settings.dataset))
        places = [Place(public.root, is_hidden=False)]
        if settings.hidden is not None:
            hidden = Catalog.read(Path(settings.hidden))
            check_hidden(public, hidden)
            places.append(Place(hidden.root, is_hidden=True))
        for problem in public.problems:
            _LOG.warning("%s", problem)
        if settings.executor == "ray":
            reached(lambda: require_answer(settings.address))
        database = reached(lambda: open_database(settings))
        migrate(database)
        found = reconcile(database, tuple(places))
        _LOG.info("database and trace files agree: %s", found, extra={"fields": attrs.asdict(found)})
        with database.write() as connection:
            connection.execute(delete(devices))
        database.close()
        yield


def reached(open_it: Callable[[], Opened]) -> Opened:
    """The database or cluster, when it answers.

    Raises:
        DatabaseUnreachable: Its server does not answer in time.
        DatabaseUnusable: It cannot be opened.
        ClusterUnreachable: It does not answer in time.
    """
    deadline = time.monotonic() + _ANSWER_SECONDS
    while True:
        try:
            return open_it()
        except (DatabaseUnreachable, ClusterUnreachable) as error:
            if time.monotonic() > deadline:
                raise
            _LOG.warning("%s", error)
            time.sleep(1.0)


@contextmanager
def locked(state: Path) -> Iterator[None]:
    """Hold the lock of a state folder.

    Raises:
        InvalidSetting: Another process holds it.
    """
    descriptor = os.open(state / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + _LOCK_SECONDS
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise InvalidSetting("--state", f"a service is running on {state}; stop it first") from error
                time.sleep(_POLL_SECONDS)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def listening(settings: Settings) -> Iterator[socket.socket]:
    """The listening socket.

    Raises:
        InvalidSetting: The address cannot be used.
    """
    try:
        listener = socket.create_server(
            (settings.host, settings.port),
            family=socket.AF_INET6 if ":" in settings.host else socket.AF_INET,
            backlog=2048,
        )
    except OSError as error:
        problem = (
            f"{settings.host}:{settings.port} cannot be used: {error.strerror}; choose another port or stop its user"
        )
        raise InvalidSetting("--host and --port", problem) from error
    with listener:
        yield listener
