"""Statistics of calls, and the error log: each kind of error is logged once and counted."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any

import attrs
from fib_apply.metrics import Counter as CallCounter

logger = logging.getLogger("fib_tracer")
MAX_KINDS = 1024
"""Kinds of errors that are told apart, so that names that never recur fill neither memory nor the log."""
OTHER_KINDS = "other kinds of errors"


@attrs.frozen
class DefinitionStats:
    """Counts of the calls of one definition."""

    calls: int
    """All calls."""
    kept: int
    """Calls that the policy kept and that were copied."""
    stored: int
    """Workloads that were appended to the data set."""
    equal: int
    """Kept calls whose workload the data set had already."""
    dropped: Mapping[str, int]
    """Calls that were lost, or dropped before the policy was asked, by reason."""
    waiting: int = 0
    """Kept calls that could not be written yet; they are retried, and dropped when the runtime stops."""

    def to_plain(self) -> dict[str, Any]:
        """As plain objects, for JSON."""
        return {**attrs.asdict(self, recurse=False), "dropped": dict(self.dropped)}


class CallCounters:
    """Counters of what became of the calls of one definition, exact across threads."""

    def __init__(self) -> None:
        self._kept = CallCounter()
        self.count_kept = self._kept.increment
        self._stored = self._equal = self._waiting = 0
        self._dropped: dict[str, CallCounter] = {}

    def count_dropped(self, reason: str, calls: int = 1) -> None:
        """Count calls that are not stored."""
        for _ in range(calls):
            self._dropped.setdefault(reason, CallCounter()).increment()

    def count_stored(self, new: int, equal: int) -> None:
        """Count kept calls by whether their workload was new; only the storage thread does so."""
        self._stored += new
        self._equal += equal

    def count_waiting(self, entries: int) -> None:
        """Add to the number of kept calls that could not be written yet; only the storage thread does so."""
        self._waiting += entries

    def stats(self, calls: int) -> DefinitionStats:
        """The counts so far, with the number of all calls."""
        dropped = {reason: int(counter) for reason, counter in list(self._dropped.items())}
        return DefinitionStats(calls, int(self._kept), self._stored, self._equal, dropped, self._waiting)


class ErrorLog:
    """Errors of tracing, which are not raised into the engine: the first of each kind is logged, all are counted."""

    def __init__(self) -> None:
        self.renew_after_fork()

    def renew_after_fork(self) -> None:
        """Start without counts."""
        self._lock = threading.RLock()  # a signal handler may report an error in a thread that reports one
        self._counts: Counter[str] = Counter()

    def report(self, kind: str, problem: object) -> None:
        """Count an error, and log it if it is the first of its kind.

        Args:
            kind: What is counted: a definition and the step that failed.
            problem: An exception or a text.
        """
        with self._lock:
            if kind not in self._counts and len(self._counts) >= MAX_KINDS:
                kind = OTHER_KINDS
            self._counts[kind] += 1
            is_first = self._counts[kind] == 1
        if is_first:
            text = f"{type(problem).__name__}: {problem}" if isinstance(problem, BaseException) else problem
            logger.warning("%s: %s (logged once; later ones are only counted)", kind, text)

    def counts(self) -> dict[str, int]:
        """The number of errors by kind."""
        with self._lock:
            return dict(self._counts)
