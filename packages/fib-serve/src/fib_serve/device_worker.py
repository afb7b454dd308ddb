"""Device workers: threads that lease submissions, evaluate them through judges, and record the results.

A submission runs on its public workloads, then on all hidden ones. A monitor renews its lease meanwhile, and ends the
evaluation when it was cancelled, takes too long, or the worker has to stop.
"""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import attrs
import fib_bench
from fib_bench import IsolationReport
from fib_bench.errors import JudgeFailed
from fib_bench.events import Evaluated, Skipped
from fib_schema import Definition, Environment, Solution, Trace, Workload
from fib_schema.hardware import Fit, fit_of
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from .catalog import Catalog
from .changes import Changes
from .database import Database, submissions
from .errors import InvalidSetting, IsolationTooWeak, LeaseLost
from .judges import Judges
from .leases import (
    Lease,
    Place,
    claim,
    complete,
    give_up,
    heartbeat,
    indexed,
    keep_solution,
    record,
    recover,
    release,
    traces_of,
)
from .settings import Settings
from .standings import standing_of
from .submissions import State

_IDLE_SECONDS = 1.0
_POLL_SECONDS = 0.5
_RENEWALS_PER_LEASE = 6
_HIDDEN_PROBLEM = "a hidden workload could not be evaluated; the maintainers find the reason in the log of the service"
_LOG = logging.getLogger(__name__)


@attrs.frozen(kw_only=True)
class DeviceState:
    """A device of the service."""

    name: str
    hardware: str = ""
    harness: str = ""
    isolation: int = 0
    isolation_text: str = ""
    submission_id: str | None = None
    problem: str | None = None
    """The reason why the device is not used, if it is not."""


class DeviceTable:
    """The devices of the service, as the pages and the API show them."""

    def __init__(self) -> None:
        self._states: dict[str, DeviceState] = {}
        self._lock = threading.Lock()

    def register(self, state: DeviceState) -> None:
        """Add a device, in place of an earlier state.

        Raises:
            InvalidSetting: A device in use has other hardware.
        """
        with self._lock:
            for other in self._states.values():
                is_other = other.name != state.name and other.problem is None
                if is_other and other.hardware != state.hardware:
                    one, two = f"{state.name} is {state.hardware!r}", f"{other.name} is {other.hardware!r}"
                    raise InvalidSetting("--devices", f"{one} and {two}; run a service for each")
            self._states[state.name] = state

    def report(self, name: str, submission_id: str | None) -> None:
        """Show what a device evaluates."""
        with self._lock:
            self._states[name] = attrs.evolve(self._states[name], submission_id=submission_id)

    def exclude(self, name: str, problem: str) -> None:
        """Show why a device is not used, until it is registered again."""
        with self._lock:
            known = self._states.get(name, DeviceState(name=name))
            self._states[name] = attrs.evolve(known, submission_id=None, problem=problem)

    def remove(self, name: str) -> None:
        """Forget a device."""
        with self._lock:
            self._states.pop(name, None)

    def all(self) -> list[DeviceState]:
        """The devices by name."""
        with self._lock:
            return [self._states[name] for name in sorted(self._states)]

    def in_use(self) -> list[DeviceState]:
        """The devices that evaluate submissions."""
        return [state for state in self.all() if state.problem is None]


@attrs.frozen
class Contest:
    """Data sets, settings and shared objects for the evaluation of submissions."""

    settings: Settings
    database: Database
    catalogs: tuple[tuple[Catalog, Place], ...]
    """The public data set, then the hidden one if there is one."""
    changes: Changes
    devices: DeviceTable

    @property
    def harness(self) -> str:
        """The version of the harness and a hash of its settings: results of different ones are not compared."""
        name = f"fib-bench {fib_bench.__version__}"
        if not self.settings.evaluation:
            return name
        text = json.dumps(dict(self.settings.evaluation), sort_keys=True)
        return f"{name}, settings {hashlib.sha256(text.encode()).hexdigest()[:8]}"


class DeviceWorker:
    """Evaluates submissions on one device.

    Args:
        contest: The contest.
        name: Name of the worker, and of its device in the table of devices.
        judges: Judges of the device.
    """

    def __init__(self, contest: Contest, name: str, judges: Judges) -> None:
        self._contest, self._name, self._judges = contest, name, judges
        self._must_stop = threading.Event()
        self._is_draining = threading.Event()

    def drain(self) -> None:
        """Finish the running submission and end; called a second time, return it to the queue and end at once."""
        if self._is_draining.is_set():
            self._must_stop.set()
        self._is_draining.set()
        self._contest.changes.announce()

    def run(self) -> None:
        """Evaluate submissions until `drain` is called.

        Raises:
            IsolationTooWeak: The machine gives less isolation than the service requires.
            InvalidSetting: The device differs from the other devices of the service, or workers could open its files.
            JudgeFailed: The judge does not start.
        """
        try:
            self._register()
            while not self._is_draining.is_set():
                count = self._contest.changes.count()
                lease = self._claim()
                if lease is None:
                    self._contest.changes.wait_in_thread(count, _IDLE_SECONDS)
                    continue
                self._contest.devices.report(self._name, lease.submission.id)
                self._contest.changes.announce()
                self._work_on(lease)
                self._contest.devices.report(self._name, None)
                self._contest.changes.announce()
        finally:
            self._judges.close()

    def _register(self) -> None:
        report = check_isolation(self._contest.settings, self._judges)
        hardware = self._judges.environment(self._contest.catalogs[0][0].root).hardware
        state = DeviceState(
            name=self._name,
            hardware=hardware,
            harness=self._contest.harness,
            isolation=report.level,
            isolation_text=report.text,
        )
        self._contest.devices.register(state)

    def _claim(self) -> Lease | None:
        try:
            return claim(self._contest.database, self._name, self._contest.settings.lease_seconds)
        except SQLAlchemyError as error:  # the disk may be full, or a command may hold the write lock
            _LOG.warning("no submission could be leased: %s", error)
            return None

    def _work_on(self, lease: Lease) -> None:
        database = self._contest.database
        self._judges.begin()
        with Monitor(self._contest, lease, self._judges, self._must_stop) as monitor:
            try:
                evaluate(self._contest, self._judges, lease)
                return
            except LeaseLost as error:
                _LOG.warning("%s", error)
                self._judges.interrupt()
                return
            except (JudgeFailed, SQLAlchemyError, OSError) as error:
                failure = error
            except IsolationTooWeak:
                release(database, lease, "its worker had too little isolation")
                raise
        self._judges.interrupt()
        if monitor.outcome is not None:
            give_up(database, lease, *monitor.outcome)
        elif monitor.is_lost:
            release(database, lease)
        else:
            _LOG.error("submission %s: %s", lease.submission.id, failure)
            release(database, lease, str(failure))
            self._judges.begin()
            check_isolation(self._contest.settings, self._judges)  # also whether the device is still there


class Monitor:
    """A thread that renews the lease of an evaluation, and interrupts the judges when it must end.

    Args:
        contest: The contest.
        lease: Of the submission that is evaluated.
        judges: Interrupted when the evaluation must end.
        stop: Set when the worker must stop at once.
    """

    def __init__(self, contest: Contest, lease: Lease, judges: Judges, stop: threading.Event) -> None:
        self.outcome: tuple[State, str] | None = None
        """The final state and its reason, if the monitor has ended the evaluation."""
        self.is_lost = False
        """Whether the lease was lost, or has to be returned."""
        self._database, self._settings, self._lease = contest.database, contest.settings, lease
        self._judges, self._stop = judges, stop
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="monitor", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        begin = renewed = time.monotonic()
        lease_seconds = self._settings.lease_seconds
        while not self._ended.wait(_POLL_SECONDS):
            try:
                if self._stop.is_set():
                    self.is_lost = True
                elif time.monotonic() - begin > self._settings.submission_seconds:
                    limit = f"{self._settings.submission_seconds:g} s"
                    self.outcome = State.FAILED, f"its evaluation took more than {limit}, the limit of this service"
                elif self._is_cancelling():
                    self.outcome = State.CANCELLED, "cancelled while it was evaluated"
                elif time.monotonic() - renewed > lease_seconds / _RENEWALS_PER_LEASE:
                    self.is_lost = not heartbeat(self._database, self._lease, lease_seconds)
                    renewed = time.monotonic()
            except SQLAlchemyError as error:
                _LOG.warning("the lease of %s could not be renewed: %s", self._lease.submission.id, error)
                self.is_lost = time.monotonic() - renewed > lease_seconds
            if self.is_lost or self.outcome is not None:
                self._judges.interrupt()
                return

    def _is_cancelling(self) -> bool:
        with self._database.read() as connection:
            query = select(submissions.c.is_cancelling).where(submissions.c.id == self._lease.submission.id)
            return bool(connection.execute(query).scalar_one())


def check_isolation(settings: Settings, judges: Judges) -> IsolationReport:
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


# -- one submission ----------------------------------------------------------------------------------


def evaluate(contest: Contest, judges: Judges, lease: Lease) -> None:
    """Evaluate a submission and record the results, without those that an earlier attempt has recorded.

    Raises:
        LeaseLost: Another worker has the submission.
        JudgeFailed: A judge has died, or was interrupted.
        IsolationTooWeak: A worker had less isolation than the service requires; the result was discarded.
    """
    submission = lease.submission
    environment = judges.environment(contest.catalogs[0][0].root)
    problem = _unfit(lease, environment) or _unknown(contest, lease)
    if problem:
        give_up(contest.database, lease, State.FAILED, problem)
        return
    traces: list[list[Trace]] = []
    problems: list[str] = []
    with _build_cache(judges, lease.solution) as cache_key:
        for catalog, place in contest.catalogs:  # the hidden data set last: public logs are complete by then
            definition = catalog.definitions.get(submission.definition)
            workloads = _chosen(lease, catalog, place)
            if definition is not None and workloads:
                problems += _run(contest, judges, lease, place, definition, workloads, cache_key)
                path = place.traces_file(definition, lease.solution.author)
                traces.append(list(traces_of(path, submission.id)))
    if problems:
        give_up(contest.database, lease, State.FAILED, "; ".join(dict.fromkeys(problems)))
        return
    public, *hidden = traces
    standing = standing_of(
        contest.catalogs[0][0].definitions[submission.definition],
        lease.solution,
        public,
        hidden[0] if hidden else None,
        allow_unranked=contest.settings.allow_unranked,
    )
    is_ranked = standing.is_ranked and submission.workloads is None  # a choice of workloads is for development
    device = {"hardware": environment.hardware, "harness": contest.harness}
    complete(contest.database, lease, {**attrs.asdict(standing), **device, "is_ranked": is_ranked})


@contextmanager
def _build_cache(judges: Judges, solution: Solution) -> Iterator[str]:
    """The key of a build cache for one attempt, which is removed at the end.

    A solution can write into its build cache. A later attempt or submission of the same sources could otherwise
    print there what this one has seen of hidden workloads, or return outputs that this one has stored.
    """
    cache_key = secrets.token_hex(16)
    try:
        yield cache_key
    finally:
        judges.forget(solution, cache_key)


def _unfit(lease: Lease, environment: Environment) -> str:
    targets = lease.solution.spec.target_hardware
    if fit_of(targets, environment.hardware) in (Fit.NAMED, Fit.SAME_ARCHITECTURE):
        return ""
    return f"it is made for {', '.join(targets)}; this device is {environment.hardware!r}"


def _unknown(contest: Contest, lease: Lease) -> str:
    catalog, place = contest.catalogs[0]
    if lease.submission.definition not in catalog.definitions:
        return f"definition {lease.submission.definition!r} was removed from the data set"
    return "" if _chosen(lease, catalog, place) else "its workloads were removed from the data set"


def _chosen(lease: Lease, catalog: Catalog, place: Place) -> tuple[Workload, ...]:
    workloads = catalog.workloads.get(lease.submission.definition, ())
    chosen = lease.submission.workloads
    if chosen is None or place.is_hidden:
        return workloads
    return tuple(workload for workload in workloads if workload.uuid in chosen)


def _run(
    contest: Contest,
    judges: Judges,
    lease: Lease,
    place: Place,
    definition: Definition,
    workloads: Sequence[Workload],
    cache_key: str,
) -> list[str]:
    """Run what is left to run; returns the reasons for workloads that could not be evaluated."""
    if lease.submission.attempts > 1:
        recover(contest.database, lease, place, definition)
    with contest.database.read() as connection:
        done = indexed(connection, lease.submission.id, is_hidden=place.is_hidden)
    pending = [workload for workload in workloads if workload.uuid not in done]
    if not pending:
        return []
    keep_solution(place, definition, lease.solution)
    problems = []
    for event in judges.run(place.root, definition, lease.solution, pending, cache_key):
        if isinstance(event, Evaluated):
            _check_isolation(contest.settings, event.trace)
            record(contest.database, lease, place, definition, event.trace)
            if not place.is_hidden:
                contest.changes.announce()
        elif isinstance(event, Skipped):
            if event.skip.is_crash:
                raise JudgeFailed(event.skip.reason)  # the service tries the missing pairs again
            _LOG.warning("submission %s: %s", lease.submission.id, event.skip)
            problems.append(_HIDDEN_PROBLEM if place.is_hidden else event.skip.reason)
    return problems


def _check_isolation(settings: Settings, trace: Trace) -> None:
    """Reject a trace of a worker with too little isolation; a solution that failed before any worker has none."""
    extra = trace.evaluation.extra if trace.evaluation is not None else None
    isolation = None if extra is None else extra.get("isolation")
    if isolation is not None and isolation["level"] < settings.required_isolation:
        report = f"measures in force: {', '.join(isolation['measures'])}"
        raise IsolationTooWeak(isolation["level"], settings.required_isolation, report)


def data_sets(settings: Settings) -> tuple[tuple[Catalog, Place], ...]:
    """The catalogs of a service, read once: the public one, then the hidden one if there is one.

    Raises:
        DataSetNotFound: There is no such folder.
        InvalidSetting: Hidden workloads cannot be used.
    """
    public = Catalog.read(Path(settings.dataset))
    found = [(public, Place(public.root, is_hidden=False))]
    if settings.hidden is not None:
        hidden = Catalog.read(Path(settings.hidden))
        hidden.check_beside(public)
        found.append((hidden, Place(hidden.root, is_hidden=True)))
    return tuple(found)
