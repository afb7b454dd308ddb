"""Device workers: threads that take submissions, evaluate them through judges, and record the results.

A submission runs on its public workloads, then on all hidden ones. A monitor ends the evaluation when it was cancelled,
takes too long, or the worker has to stop.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Self

import attrs
from fib_bench import IsolationReport
from fib_bench.errors import JudgeFailed
from fib_bench.events import Evaluated, Skipped
from fib_schema import Definition, Environment, Solution, Trace, Workload
from fib_schema.hardware import Fit, fit_of
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from .contest import Catalog, Contest, DeviceState
from .database import submissions
from .errors import InvalidSetting, IsolationTooWeak
from .judges import Judges
from .queue import (
    Claim,
    claim,
    complete,
    give_up,
    indexed,
    keep_solution,
    record,
    recover,
    release,
    requeue_running,
    traces_of,
)
from .settings import Settings
from .standings import standing_of
from .submissions import State

_IDLE_SECONDS = 0.2
_POLL_SECONDS = 0.5
_HIDDEN_PROBLEM = "a hidden workload could not be evaluated; the maintainers find the reason in the log of the service"
_LOG = logging.getLogger(__name__)


class DeviceWorker:
    """Evaluates submissions on one device."""

    def __init__(self, contest: Contest, name: str, judges: Judges) -> None:
        self._contest, self._name, self._judges = contest, name, judges
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
            InvalidSetting: The device differs from the other devices of the service, or workers could open its files.
            JudgeFailed: The judge does not start.
            SQLAlchemyError: The database does not answer.
        """
        try:
            self._register()
            while not self._is_draining.is_set():
                claimed = claim(self._contest.database, self._name)
                if claimed is None:
                    self._is_draining.wait(_IDLE_SECONDS)
                    continue
                self._report(claimed.submission.id)
                self._work_on(claimed)
                self._report(None)
        finally:
            self._judges.close()

    def _register(self) -> None:
        with self._contest.database.write() as connection:
            requeue_running(connection, self._name)  # an earlier run could not return them
        report = check_isolation(self._contest.settings, self._judges)
        hardware = self._judges.environment(self._contest.public.root).hardware
        state = DeviceState(
            name=self._name,
            hardware=hardware,
            harness=self._contest.harness,
            isolation=report.level,
            isolation_text=report.text,
        )
        self._contest.devices.register(state)

    def _report(self, submission: str | None) -> None:
        self._contest.devices.report(self._name, submission)
        self._contest.changes.announce()

    def _work_on(self, claimed: Claim) -> None:
        database, identifier = self._contest.database, claimed.submission.id
        self._judges.begin()
        with Monitor(self._contest, claimed, self._judges, self._must_stop) as monitor:
            try:
                evaluate(self._contest, self._judges, claimed)
                return
            except (JudgeFailed, SQLAlchemyError, OSError) as error:
                failure = error
            except IsolationTooWeak:
                release(database, claimed, "its worker had too little isolation")
                raise
        self._judges.interrupt()
        if monitor.outcome is not None:
            give_up(database, claimed, *monitor.outcome)
        elif self._must_stop.is_set():
            release(database, claimed)
        else:
            _LOG.error("submission %s: %s", identifier, failure)
            release(database, claimed, str(failure))
            self._judges.begin()
            check_isolation(self._contest.settings, self._judges)  # also whether the device is still there


class Monitor:
    """A thread that interrupts the judges when an evaluation must end."""

    def __init__(self, contest: Contest, claimed: Claim, judges: Judges, stop: threading.Event) -> None:
        self.outcome: tuple[State, str] | None = None
        """The final state and its reason, if the monitor has ended the evaluation."""
        self._database, self._submission = contest.database, claimed.submission.id
        self._limit_seconds = contest.settings.submission_seconds
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
        begin = time.monotonic()
        while not self._ended.wait(_POLL_SECONDS):
            if time.monotonic() - begin > self._limit_seconds:
                limit = f"{self._limit_seconds:g} s"
                self.outcome = State.FAILED, f"its evaluation took more than {limit}, the limit of this service"
            elif self._is_cancelling():
                self.outcome = State.CANCELLED, "cancelled while it was evaluated"
            if self.outcome is not None or self._stop.is_set():
                self._judges.interrupt()
                return

    def _is_cancelling(self) -> bool:
        query = select(submissions.c.is_cancelling).where(submissions.c.id == self._submission)
        try:
            with self._database.read() as connection:
                return bool(connection.execute(query).scalar_one())
        except SQLAlchemyError as error:
            _LOG.warning("whether %s was cancelled could not be read, and is read again: %s", self._submission, error)
            return False


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


def evaluate(contest: Contest, judges: Judges, claimed: Claim) -> None:
    """Evaluate a submission and record the results, without those that an earlier attempt has recorded.

    Raises:
        JudgeFailed: A judge has died, or was interrupted.
        IsolationTooWeak: A worker had less isolation than the service requires; the result was discarded.
    """
    submission = claimed.submission
    environment = judges.environment(contest.public.root)
    problem = _unfit(claimed, environment) or _unknown(contest, claimed)
    if problem:
        give_up(contest.database, claimed, State.FAILED, problem)
        return
    traces: list[list[Trace]] = []
    problems: list[str] = []
    with _build_cache(judges, claimed.solution) as cache_key:
        for catalog in contest.catalogs:  # the hidden data set last: public logs are complete by then
            definition = catalog.definitions.get(submission.definition)
            workloads = _chosen(claimed, catalog)
            if definition is not None and workloads:
                problems += _run(contest, judges, claimed, catalog, definition, workloads, cache_key)
                traces.append(list(traces_of(catalog, definition, claimed)))
    if problems:
        give_up(contest.database, claimed, State.FAILED, "; ".join(dict.fromkeys(problems)))
        return
    public, *hidden = traces
    standing = standing_of(
        contest.public.definitions[submission.definition],
        claimed.solution,
        public,
        hidden[0] if hidden else None,
        allow_unranked=contest.settings.allow_unranked,
    )
    is_ranked = standing.is_ranked and submission.workloads is None  # a choice of workloads is for development
    device = {"hardware": environment.hardware, "harness": contest.harness}
    complete(contest.database, claimed, {**attrs.asdict(standing), **device, "is_ranked": is_ranked})


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


def _unfit(claimed: Claim, environment: Environment) -> str:
    targets = claimed.solution.spec.target_hardware
    if fit_of(targets, environment.hardware) in (Fit.NAMED, Fit.SAME_ARCHITECTURE):
        return ""
    return f"it is made for {', '.join(targets)}; this device is {environment.hardware!r}"


def _unknown(contest: Contest, claimed: Claim) -> str:
    if claimed.submission.definition not in contest.public.definitions:
        return f"definition {claimed.submission.definition!r} was removed from the data set"
    return "" if _chosen(claimed, contest.public) else "its workloads were removed from the data set"


def _chosen(claimed: Claim, catalog: Catalog) -> tuple[Workload, ...]:
    workloads = catalog.workloads.get(claimed.submission.definition, ())
    chosen = claimed.submission.workloads
    if chosen is None or catalog.is_hidden:
        return workloads
    return tuple(workload for workload in workloads if workload.uuid in chosen)


def _run(
    contest: Contest,
    judges: Judges,
    claimed: Claim,
    catalog: Catalog,
    definition: Definition,
    workloads: Sequence[Workload],
    cache_key: str,
) -> list[str]:
    """Run what is left to run; returns the reasons for workloads that could not be evaluated."""
    if claimed.submission.attempts > 1:
        recover(contest.database, claimed, catalog, definition)
    with contest.database.read() as connection:
        done = indexed(connection, claimed.submission.id, is_hidden=catalog.is_hidden)
    pending = [workload for workload in workloads if workload.uuid not in done]
    if not pending:
        return []
    keep_solution(catalog, definition, claimed.solution)
    problems = []
    for event in judges.run(catalog.root, definition, claimed.solution, pending, cache_key):
        if isinstance(event, Evaluated):
            _check_isolation(contest.settings, event.trace)
            record(contest.database, claimed, catalog, definition, event.trace)
            if not catalog.is_hidden:  # times of hidden workloads would tell what a solution encodes in them
                contest.changes.announce()
        elif isinstance(event, Skipped):
            if event.skip.is_crash:
                raise JudgeFailed(event.skip.reason)  # the service tries the missing pairs again
            _LOG.warning("submission %s: %s", claimed.submission.id, event.skip)
            problems.append(_HIDDEN_PROBLEM if catalog.is_hidden else event.skip.reason)
    return problems


def _check_isolation(settings: Settings, trace: Trace) -> None:
    """Reject a trace of a worker with too little isolation; a solution that failed before any worker has none."""
    extra = trace.evaluation.extra if trace.evaluation is not None else None
    isolation = None if extra is None else extra.get("isolation")
    if isolation is not None and isolation["level"] < settings.required_isolation:
        report = f"measures in force: {', '.join(isolation['measures'])}"
        raise IsolationTooWeak(isolation["level"], settings.required_isolation, report)
