"""Evaluation of one leased submission: on its public workloads, then on all hidden ones."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import attrs
from fib_bench.errors import JudgeFailed
from fib_bench.events import Evaluated, Skipped
from fib_schema import Definition, Environment, Solution, Trace, Workload
from fib_schema.hardware import Fit, fit_of

from ..catalog import Catalog
from ..database.engine import Database
from ..errors import IsolationTooWeak
from ..queue.leasing import Lease
from ..queue.recording import Place, complete, give_up, indexed, keep_solution, record, recover, traces_of
from ..queue.submission import State
from ..settings import Settings
from ..standings import standing_of
from .judges import DeviceJudges

_HIDDEN_PROBLEM = "a hidden workload could not be evaluated; the maintainers find the reason in the log of the service"
_LOG = logging.getLogger(__name__)


@attrs.frozen
class Contest:
    """Data sets and settings for the evaluation of submissions."""

    settings: Settings
    database: Database
    catalogs: tuple[tuple[Catalog, Place], ...]
    """The public data set, then the hidden one if there is one."""
    harness: str
    notify: Callable[[], None] = lambda: None
    """Called after each recorded public trace."""


def evaluate(contest: Contest, judges: DeviceJudges, lease: Lease) -> None:
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
    definition = contest.catalogs[0][0].definitions[submission.definition]
    allow_unranked = contest.settings.allow_unranked
    standing = standing_of(
        definition, lease.solution, public, hidden[0] if hidden else None, allow_unranked=allow_unranked
    )
    place_values = {"hardware": environment.hardware, "harness": contest.harness}
    is_partial = submission.workloads is not None  # a choice of workloads is for development
    values = {**attrs.asdict(standing), **place_values, "is_ranked": standing.is_ranked and not is_partial}
    complete(contest.database, lease, values)


@contextmanager
def _build_cache(judges: DeviceJudges, solution: Solution) -> Iterator[str]:
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
    judges: DeviceJudges,
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
                contest.notify()
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
