"""Device workers: threads that take submissions, evaluate them through judges, and record the results.

A submission runs on its public workloads, then on all hidden ones. Its judges are interrupted when it takes too long,
is rejected, or the worker has to stop.
"""

from __future__ import annotations

import logging
import math
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from fib_bench import IsolationReport
from fib_bench.errors import JudgeFailed
from fib_bench.events import Evaluated, Skipped
from fib_bench.report import LeaderboardRow, leaderboard
from fib_schema import Definition, Environment, EvaluationStatus, Solution, Trace, TraceSet, Workload
from fib_schema.hardware import Fit, fit_of
from fib_schema.trace_facts import CPU_TIMING
from sqlalchemy.exc import SQLAlchemyError

from . import queue
from .contest import Catalog, Contest, DeviceState
from .errors import InvalidSetting, IsolationTooWeak
from .judges import Judges
from .queue import Claim
from .settings import Settings

_IDLE_SECONDS = 0.2
_WATCH_SECONDS = 1.0  # between looks whether a submission was rejected
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 30.0
_HIDDEN_PROBLEM = "a hidden workload could not be evaluated; the maintainers find the reason in the log of the service"
_LOG = logging.getLogger(__name__)


class DeviceWorker:
    """A thread that evaluates submissions on one device, and begins again after failures."""

    def __init__(self, contest: Contest, name: str, judges: Judges) -> None:
        self.failure: BaseException | None = None
        """The reason why the device is not used any more."""
        self._contest, self._name, self._judges = contest, name, judges
        self._is_draining, self._must_stop = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether the thread may evaluate a submission."""
        return self._thread.is_alive()

    def drain(self) -> None:
        """Finish the running submission and end; called a second time, return it to the queue and end at once."""
        if self._is_draining.is_set():
            self._must_stop.set()
            self._judges.interrupt()
        self._is_draining.set()

    def _serve(self) -> None:
        pause_seconds = _FIRST_PAUSE_SECONDS
        while not self._is_draining.is_set():
            try:
                self.run()
            except (JudgeFailed, SQLAlchemyError, OSError) as error:
                _LOG.error("the worker of %s ended and is started again: %s", self._name, error)
                self._exclude(error)
                self._is_draining.wait(pause_seconds)
                pause_seconds = min(2 * pause_seconds, _LONGEST_PAUSE_SECONDS)
            except BaseException as error:  # noqa: BLE001 the boundary of the thread: `DevicePool.update` raises it
                _LOG.error("device %s is not used: %s", self._name, error)
                self._exclude(error)
                self.failure = error
                return

    def _exclude(self, error: BaseException) -> None:
        self._contest.devices.change(self._name, submission_id=None, problem=_short(error))

    def run(self) -> None:
        """Evaluate submissions until `drain` is called.

        Raises:
            IsolationTooWeak: The machine gives less isolation than the service requires.
            InvalidSetting: The device differs from the other devices of the service, or workers could open its files.
            JudgeFailed: The judge does not start.
            SQLAlchemyError: The database does not answer.
        """
        try:
            self._judges.begin()
            self._register()
            while not self._is_draining.is_set():
                claimed = queue.claim(self._contest.database, self._name, self._contest.settings.max_running)
                if claimed is None:
                    self._is_draining.wait(_IDLE_SECONDS)
                    continue
                self._contest.devices.change(self._name, submission_id=claimed.submission.id)
                self._work_on(claimed)
                self._contest.devices.change(self._name, submission_id=None)
        finally:
            self._judges.interrupt()

    def _register(self) -> None:
        with self._contest.database.write() as connection:
            queue.requeue_running(connection, self._name)  # an earlier run could not return them
        report = check_isolation(self._contest.settings, self._judges)
        hardware = self._judges.environment(self._contest.public.root).hardware
        self._contest.devices.register(DeviceState(name=self._name, hardware=hardware, isolation=report.level))

    def _work_on(self, claimed: Claim) -> None:
        database, identifier = self._contest.database, claimed.submission.id
        try:
            with self._interruptible(identifier):
                if self._must_stop.is_set() or not queue.is_running(database, identifier):
                    self._judges.interrupt()  # before it could be
                evaluate(self._contest, self._judges, claimed)
                return
        except (JudgeFailed, SQLAlchemyError, OSError) as error:
            failure = error
        except IsolationTooWeak:
            queue.release(database, claimed, "its worker had too little isolation")
            raise
        self._judges.interrupt()
        if not queue.is_running(database, identifier):
            _LOG.info("submission %s had ended: its evaluation was interrupted", identifier)
        elif self._must_stop.is_set():
            queue.release(database, claimed)
        else:
            _LOG.error("submission %s: %s", identifier, failure)
            queue.release(database, claimed, str(failure))
            self._judges.begin()
            check_isolation(self._contest.settings, self._judges)  # also whether the device is still there

    @contextmanager
    def _interruptible(self, submission: str) -> Iterator[None]:
        """Interrupt the evaluation of a submission that takes too long, or that a command rejects meanwhile."""
        has_ended = threading.Event()
        self._judges.begin()
        threading.Thread(target=self._watch, args=[submission, has_ended], daemon=True).start()
        try:
            yield
        finally:
            with self._lock:
                has_ended.set()

    def _watch(self, submission: str, has_ended: threading.Event) -> None:
        limit = self._contest.settings.submission_seconds
        deadline = time.monotonic() + limit
        try:
            while queue.is_running(self._contest.database, submission):
                left = deadline - time.monotonic()
                if left <= 0:
                    reason = f"its evaluation took more than {limit:g} s, the limit of this service"
                    queue.give_up(self._contest.database, submission, reason)
                elif has_ended.wait(min(left, _WATCH_SECONDS)):
                    return
        finally:
            with self._lock:
                if not has_ended.is_set():
                    self._judges.interrupt()


def _short(error: BaseException) -> str:
    """The text for all readers of the table of devices: without paths of private files, which the log has."""
    if isinstance(error, IsolationTooWeak):
        return f"its sandbox reaches level {error.level}, required is {error.required}"
    if isinstance(error, InvalidSetting) and error.setting not in {"--devices", "--executor"}:
        return "its workers could open private files"
    return next(iter(str(error).splitlines()), type(error).__name__)


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
        queue.give_up(contest.database, submission.id, problem)
        return
    traces: list[list[Trace]] = []
    problems: list[str] = []
    with _build_cache(judges, claimed.solution) as cache_key:
        for catalog in contest.catalogs:  # the hidden data set last: public logs are complete by then
            definition = catalog.definitions.get(submission.definition)
            workloads = _chosen(claimed, catalog)
            if definition is not None and workloads:
                problems += _run(contest, judges, claimed, catalog, definition, workloads, cache_key)
                traces.append(list(queue.traces_of(catalog, definition, claimed)))
    if problems:
        queue.give_up(contest.database, submission.id, "; ".join(dict.fromkeys(problems)))
        return
    public, *hidden = traces
    known = contest.public.definitions[submission.definition]
    allow_flags = (CPU_TIMING,) if contest.settings.allow_unranked else ()
    standing = _standing_of(known, claimed.solution, public, hidden[0] if hidden else None, allow_flags)
    if hidden and standing["verdict"] != EvaluationStatus.PASSED:
        queue.withdraw(claimed, contest.public, known, public, standing["verdict"])
    standing["is_ranked"] &= submission.workloads is None  # a choice of workloads is for development
    queue.complete(contest.database, claimed, standing | {"hardware": environment.hardware})
    _LOG.info("submission %s of %s: %s", submission.id, submission.user, standing["verdict"])


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
    done = queue.recorded(contest.database, claimed, catalog, definition)
    pending = [workload for workload in workloads if workload.uuid not in done]
    if not pending:
        return []
    queue.keep_solution(catalog, definition, claimed.solution)
    problems = []
    for event in judges.run(catalog.root, definition, claimed.solution, pending, cache_key):
        if isinstance(event, Evaluated):
            _check_isolation(contest.settings, event.trace)
            queue.record(contest.database, claimed, catalog, definition, event.trace)
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


# -- the standing ------------------------------------------------------------------------------------


def _standing_of(
    definition: Definition,
    solution: Solution,
    public: Sequence[Trace],
    hidden: Sequence[Trace] | None,
    allow_flags: Sequence[str],
) -> dict[str, Any]:
    """The columns of a submission that traces decide, by the rules of fib-bench's reports; without hidden ones, None.

    Hidden workloads alone rank. Their part of the summary is an aggregate without axes, uuids, logs and texts, because
    a solution can print its inputs.
    """
    shown = _entry(definition, solution, public, allow_flags)
    deciding = shown if hidden is None else _entry(definition, solution, hidden, allow_flags)
    summary: dict[str, Any] = {"public": None if shown is None else _public(shown)}
    if hidden is not None and deciding is not None:
        summary["hidden"] = {"verdict": _verdict(hidden), "speedup_text": deciding.speedup.text}
    score = deciding.speedup.point if deciding is not None and deciding.is_ranked else None
    passes = all(entry is not None and entry.passed == entry.total for entry in (shown, deciding))
    return {
        "verdict": _verdict([*public, *(hidden or ())]),
        "passed": sum(trace.is_successful() for trace in public),
        "is_ranked": score is not None and passes,
        "score": score if passes else None,
        "summary": summary,
    }


def _entry(
    definition: Definition, solution: Solution, traces: Sequence[Trace], allow_flags: Sequence[str]
) -> LeaderboardRow | None:
    name = definition.name
    trace_set = TraceSet(definitions={name: definition}, solutions={name: [solution]}, traces={name: traces})
    return next(iter(leaderboard(trace_set, allow_flags)), None)


def _public(entry: LeaderboardRow) -> dict[str, Any]:
    latency = entry.latency_ms
    is_known = latency is not None and all(map(math.isfinite, latency))
    return {
        "speedup_text": entry.speedup.text,
        "latency_ms": latency if is_known else None,
        "flags": list(entry.flags),
        "problem": entry.problem,
    }


def _verdict(traces: Sequence[Trace]) -> str:
    """The most serious status, which is the last in the order of their definition."""
    found = [trace.evaluation.status for trace in traces if trace.evaluation is not None]
    return str(max(found, key=list(EvaluationStatus).index, default=""))
