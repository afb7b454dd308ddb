"""Counts of what became of calls, and troubles: what went wrong, said once for each kind."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any

import attrs

logger = logging.getLogger("fib_tracer")


@attrs.frozen
class DefinitionStats:
    """What became of the calls of one definition."""

    calls: int
    """All that were seen."""
    kept: int
    """Those that the policy kept and that were copied."""
    stored: int
    """Workloads that were appended to the data set."""
    equal: int
    """Kept calls whose workload was there already."""
    dropped: Mapping[str, int]
    """Calls that the policy would have kept, or was never asked for, by reason."""

    def to_plain(self) -> dict[str, Any]:
        """As plain objects, for JSON."""
        return {**attrs.asdict(self, recurse=False), "dropped": dict(self.dropped)}


class Troubles:
    """What went wrong in tracing: logged when a kind occurs first, and counted."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Begin anew, in a forked process."""
        self._lock = threading.RLock()  # a signal handler may report, in a thread that does
        self._counts: Counter[str] = Counter()

    def report(self, kind: str, problem: object) -> None:
        """Count a trouble.

        Args:
            kind: What is counted: which definition, and what of it.
            problem: An exception, or what to say.
        """
        with self._lock:
            self._counts[kind] += 1
            is_first = self._counts[kind] == 1
        if is_first:
            text = f"{type(problem).__name__}: {problem}" if isinstance(problem, BaseException) else problem
            logger.warning("%s: %s (said once, counted from now on)", kind, text)

    def counts(self) -> dict[str, int]:
        """How often each kind occurred."""
        with self._lock:
            return dict(self._counts)
