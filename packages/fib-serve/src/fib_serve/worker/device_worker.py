"""Loop of a device worker: lease a submission, evaluate it, wait for the next one."""

from __future__ import annotations

import gc
import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

import fib_bench
from fib_bench import IsolationReport
from fib_bench.errors import JudgeFailed
from sqlalchemy.exc import OperationalError

from ..bells import API, WORKERS, Bell, Ringer
from ..catalog import Catalog
from ..database.engine import Database
from ..errors import InvalidSetting, IsolationTooWeak, LeaseLost
from ..processes import freeze_objects
from ..queue.leasing import Lease, claim, release
from ..queue.recording import Place, give_up
from ..settings import Settings
from .device_table import register_device, report_device
from .evaluation import Contest, evaluate
from .judges import DeviceJudges, Judges
from .monitor import Monitor

_IDLE_SECONDS = 1.0
_REPORT_SECONDS = 10.0
_LOG = logging.getLogger(__name__)


class DeviceWorker:
    """Evaluates submissions on one device.

    Args:
        settings: Settings of the service.
        name: Name of the worker, and of its device in the table of devices.
        judges: Judges of the device.
        database: The database.
        on_ready: Called when the device is registered.
    """

    def __init__(
        self,
        settings: Settings,
        name: str,
        judges: DeviceJudges,
        database: Database,
        on_ready: Callable[[], None] = lambda: None,
    ) -> None:
        self._settings, self._name, self._judges, self._database = settings, name, judges, database
        self._on_ready = on_ready
        roots = [(Path(settings.dataset), False)]
        if settings.hidden is not None:
            roots.append((Path(settings.hidden), True))
        catalogs = tuple((Catalog.read(root), Place(root, is_hidden)) for root, is_hidden in roots)
        self._ringer = Ringer(Path(settings.state), API)
        self._contest = Contest(settings, database, catalogs, harness_of(settings), self._ringer.ring)
        self._must_stop = threading.Event()
        self._is_draining = threading.Event()
        self._reported_at = -_REPORT_SECONDS

    def drain(self) -> None:
        """Finish the running submission and end; called a second time, return it to the queue and end at once."""
        if self._is_draining.is_set():
            self._must_stop.set()
        self._is_draining.set()

    def run(self) -> None:
        """Evaluate submissions until `drain` is called.

        Raises:
            IsolationTooWeak: The machine gives less isolation than the service requires.
            InvalidSetting: The device differs from the other devices of the service.
            JudgeFailed: The judge does not start.
            DeviceLost: The device has left the cluster.
        """
        state = Path(self._settings.state)
        try:
            report = check_isolation(self._settings, self._judges)
            with Bell(state, WORKERS, self._name) as bell:
                self._register(report)
                self._on_ready()
                freeze_objects()
                while not self._is_draining.is_set():
                    self._judges.check()
                    self.report_when_due()
                    lease = self._claim()
                    if lease is None:
                        bell.wait(_IDLE_SECONDS)
                        continue
                    self._ringer.ring()
                    self._work_on(lease)
                    self._ringer.ring()
                    gc.collect()  # less than 1 ms without the frozen objects
        finally:
            self.close()

    def close(self) -> None:
        """Terminate the judges."""
        self._judges.close()
        self._ringer.close()

    def _claim(self) -> Lease | None:
        try:
            return claim(self._database, self._name, self._settings.lease_seconds)
        except OperationalError as error:  # of a server that restarts
            _LOG.warning("no submission could be leased: %s", error.orig)
            return None

    def report_when_due(self) -> None:
        """Report that the worker is alive if the last report is old: a busy one reports too."""
        if time.monotonic() - self._reported_at < _REPORT_SECONDS:
            return
        try:
            report_device(self._database, self._name, None)
            self._reported_at = time.monotonic()
        except OperationalError as error:
            _LOG.warning("the state of the device could not be reported: %s", error.orig)

    def _work_on(self, lease: Lease) -> None:
        try:
            self._judges.begin()
        except JudgeFailed as error:
            _LOG.warning("submission %s: %s", lease.submission.id, error)
            release(self._database, lease)  # does not count as an attempt, because the evaluation has not begun
            return
        with Monitor(self._database, lease, self._judges, self._settings, self._must_stop) as monitor:
            try:
                evaluate(self._contest, self._judges, lease)
                return
            except LeaseLost as error:
                _LOG.warning("%s", error)
                self._judges.interrupt()
                return
            except JudgeFailed as error:
                failure = error
            except IsolationTooWeak:
                release(self._database, lease, "its worker had too little isolation")
                raise
        self._judges.interrupt()
        if monitor.outcome is not None:
            give_up(self._database, lease, *monitor.outcome)
        elif monitor.is_lost:
            release(self._database, lease)
        else:
            _LOG.error("submission %s: %s", lease.submission.id, failure)
            release(self._database, lease, str(failure))

    def _register(self, report: IsolationReport) -> None:
        """Add the device to the database.

        Raises:
            InvalidSetting: Another device has other hardware.
        """
        hardware = self._judges.environment(Path(self._settings.dataset)).hardware
        register_device(self._database, self._name, hardware, self._contest.harness, report)


def local_worker(settings: Settings, device: str, name: str, database: Database) -> DeviceWorker:
    """The worker of a device of this machine.

    Args:
        settings: Settings of the service.
        device: Such as ``cpu`` or ``cuda:0``.
        name: Name of the worker; several may share the device.
        database: The database.

    Raises:
        InvalidConfig: The settings of evaluations are not valid.
    """
    return DeviceWorker(settings, name, Judges(device, settings.benchmark_configs(device)), database)


def check_isolation(settings: Settings, judges: DeviceJudges) -> IsolationReport:
    """Try the sandbox before any code of strangers runs.

    Raises:
        IsolationTooWeak: It is weaker than required.
        InvalidSetting: A worker could open private files.
    """
    report = judges.probe(settings.private_paths)
    if report.level < settings.required_isolation:
        raise IsolationTooWeak(report.level, settings.required_isolation, report.text)
    if report.exposed and settings.required_isolation >= 2:  # below, fib-bench promises nothing about files
        exposed = ", ".join(map(str, report.exposed))
        problem = f"workers could open {exposed}; move it out of the folders of the system and of Python"
        raise InvalidSetting("--state, --hidden or the data set", problem)
    return report


def harness_of(settings: Settings) -> str:
    """The version of the harness and a hash of its settings: results of different ones are not compared."""
    name = f"fib-bench {fib_bench.__version__}"
    if not settings.evaluation:
        return name
    text = json.dumps(dict(settings.evaluation), sort_keys=True)
    return f"{name}, settings {hashlib.sha256(text.encode()).hexdigest()[:8]}"
