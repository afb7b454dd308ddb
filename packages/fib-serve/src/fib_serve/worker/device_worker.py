"""Loop of a device worker: lease a submission, evaluate it, wait for the next one."""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from pathlib import Path

import fib_bench
from fib_bench import IsolationReport, probe_isolation
from fib_bench.errors import JudgeFailed
from sqlalchemy import delete, insert, select

from ..bells import API, WORKERS, Bell, Ringer
from ..catalog import Catalog
from ..database.engine import Database
from ..database.tables import devices
from ..errors import InvalidSetting, IsolationTooWeak, LeaseLost
from ..identifiers import now
from ..queue.leasing import Lease, claim, expire_of, release
from ..queue.recording import Place, give_up
from ..settings import Settings
from .evaluation import Contest, evaluate
from .judges import Judges
from .monitor import Monitor, report_device

_IDLE_SECONDS = 1.0
_REPORT_EVERY = 10  # idle rounds
_LOG = logging.getLogger(__name__)


class DeviceWorker:
    """Evaluates submissions on one device.

    Args:
        settings: Of the service.
        device: Such as ``cpu`` or ``cuda:0``.
        database: The database.
    """

    def __init__(self, settings: Settings, device: str, database: Database) -> None:
        self._settings, self._device, self._database = settings, device, database
        roots = [(Path(settings.dataset), False)]
        if settings.hidden is not None:
            roots.append((Path(settings.hidden), True))
        catalogs = tuple((Catalog.read(root), Place(root, is_hidden)) for root, is_hidden in roots)
        self._ringer = Ringer(Path(settings.state), API)
        self._contest = Contest(settings, database, catalogs, harness_of(settings), self._ringer.ring)
        self._judges = Judges(settings, device)
        self._must_stop = threading.Event()
        self._is_draining = threading.Event()

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
        """
        report = check_isolation(self._settings, self._device)
        state = Path(self._settings.state)
        try:
            with Bell(state, WORKERS, self._device) as bell:
                self._register(report)
                rounds = 0
                while not self._is_draining.is_set():
                    lease = claim(self._database, self._device, self._settings.lease_seconds)
                    if lease is not None:
                        self._ringer.ring()
                        self._work_on(lease)
                        self._ringer.ring()
                        rounds = 0
                        continue
                    if rounds % _REPORT_EVERY == 0:
                        report_device(self._database, self._device, None)
                    rounds += 1
                    bell.wait(_IDLE_SECONDS)
        finally:
            self._judges.close()
            self._ringer.close()

    def _work_on(self, lease: Lease) -> None:
        self._judges.begin()
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
        with self._database.write() as connection:
            connection.execute(delete(devices).where(devices.c.name == self._device))
            expire_of(connection, self._device)
            others = connection.execute(select(devices.c.name, devices.c.hardware)).tuples()
            for name, other in others:
                if other != hardware:
                    problem = f"{self._device} is {hardware!r} and {name} is {other!r}; run a service for each"
                    raise InvalidSetting("--devices", problem)
            connection.execute(
                insert(devices).values(
                    name=self._device,
                    hardware=hardware,
                    harness=self._contest.harness,
                    isolation=report.level,
                    isolation_text=report.text,
                    seen_at=now(),
                )
            )


def check_isolation(settings: Settings, device: str) -> IsolationReport:
    """Try the sandbox before any code of strangers runs.

    Raises:
        IsolationTooWeak: It is weaker than required.
        InvalidSetting: A worker could open private files.
    """
    report = probe_isolation(device, settings.private_paths)
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
