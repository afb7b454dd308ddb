"""Counts of calls and of errors, exact across threads and in bounded memory; and the file that keeps them.

A call is counted by its axis sizes and layout. The generated callback (`binding`) increments the counter of calls that
are not wanted any more, which `CallCounts.by_key` holds by the key that the callback computes; all other calls go
through `CallCounts.counter`. Beyond `MAX_SIZES` combinations, calls of further ones are counted together: each call is
counted once, and every count of a combination is exact.

Each process, such as a rank of a tensor-parallel engine, replaces its own file in ``traffic/`` of the data set
(`fib_schema.traffic`) atomically and reads no other. One that is killed leaves its last counts. Readers sum the files.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import attrs
import msgspec
from fib_apply.events import Counter
from fib_schema.files import atomic_write
from fib_schema.strides import Strides
from fib_schema.traffic import FOLDER, VERSION, Layout, layout_key, plain_size

logger = logging.getLogger("fib_tracer")
MAX_SIZES = 65_536
"""Combinations of a definition that are told apart: 42 MiB with their keys, for two variable axes."""
Increment: TypeAlias = Callable[[], object]


# -- calls by size -----------------------------------------------------------------------------------


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


class CallCounts:
    """Counts of the calls of one definition.

    Attributes:
        by_key: Counters of the calls that need not reach the recorder; call sites hold on to this object.
        count_other: Counts a call without a combination: one that does not fit the definition, or comes when the table
            is full.
        count_kept: Counts a call that is kept.
        stored, equal: As in `DefinitionStats`; only the storage thread changes them.
    """

    def __init__(self, axes: tuple[str, ...], on_new: Callable[[], object]) -> None:
        self._axes = axes
        self._on_new = on_new
        self._by_size: dict[tuple[tuple[int, ...], Layout], Counter] = {}
        self._other, self._kept = Counter(), Counter()
        self._dropped: dict[str, Counter] = {}
        self.by_key: dict[Any, Increment] = {}
        self.count_other: Increment = self._other.increment
        self.count_kept: Increment = self._kept.increment
        self.stored = self.equal = 0

    def counter(self, axes: Mapping[str, int], strides: Mapping[str, Strides] | None) -> Increment:
        """The counter of a combination, or that of other calls if no more combinations are counted."""
        size = tuple(axes.values()), None if strides is None else layout_key(strides)
        found = self._by_size.get(size)
        if found is None:
            if len(self._by_size) >= MAX_SIZES:
                return self.count_other
            found = self._by_size.setdefault(size, Counter())  # one step, so that threads agree on the counter
            self._on_new()
        return found.increment

    def skip(self, key: Any, increment: Increment) -> None:
        """Count calls of a key without passing them to the recorder from now on, unless there are too many keys."""
        if len(self.by_key) < MAX_SIZES and increment is not self.count_other:
            self.by_key[key] = increment

    def count_dropped(self, reason: str) -> None:
        """Count a call that is not stored."""
        self._dropped.setdefault(reason, Counter()).increment()

    def stats(self) -> DefinitionStats:
        """The counts so far."""
        calls = sum(map(int, list(self._by_size.values()))) + int(self._other)
        dropped = {reason: int(counter) for reason, counter in list(self._dropped.items())}
        return DefinitionStats(calls, int(self._kept), self.stored, self.equal, dropped)

    def to_plain(self) -> dict[str, Any]:
        """The counts as plain objects, for a file of `fib_schema.traffic`."""
        counted = [(size, int(counter)) for size, counter in list(self._by_size.items())]
        sizes = [
            plain_size(dict(zip(self._axes, axes, strict=True)), layout, calls)
            for (axes, layout), calls in counted
            if calls
        ]
        return {"calls": int(self._other) + sum(calls for _, calls in counted), "sizes": sizes}


class TrafficFile:
    """Saves the counts of a process."""

    def __init__(self, root: Path, counts: Callable[[], Mapping[str, CallCounts]], errors: ErrorLog) -> None:
        self._root = root
        self._counts = counts
        self._errors = errors
        self._path: Path | None = None
        self._saved_calls = 0

    def save(self) -> None:
        """Write the counts if there are new calls; they are durable afterwards unless an error is reported."""
        counts = {name: counted.to_plain() for name, counted in self._counts().items()}
        calls = sum(counted["calls"] for counted in counts.values())
        if calls == self._saved_calls:
            return
        if self._path is None:  # a random part, because pids recur, and on other hosts
            self._path = self._root / FOLDER / f"pid-{os.getpid()}-{os.urandom(6).hex()}.json"
        head = {"host": socket.gethostname(), "pid": os.getpid()}
        try:
            content = msgspec.json.encode({"version": VERSION, **head, "definitions": counts})
            atomic_write(self._path, content + b"\n", durable=True)
        except OSError as error:
            self._errors.report("traffic counts: writing", error)
        else:
            self._saved_calls = calls


# -- errors ------------------------------------------------------------------------------------------


class ErrorLog:
    """Errors of tracing, which are not raised into the engine: the first of each kind is logged, all are counted."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler may report an error in a thread that reports one
        self._counts: dict[str, int] = {}

    def report(self, kind: str, problem: object) -> None:
        """Count an error, and log it if it is the first of its kind."""
        with self._lock:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            is_first = self._counts[kind] == 1
        if is_first:
            text = f"{type(problem).__name__}: {problem}" if isinstance(problem, BaseException) else problem
            logger.warning("%s: %s (logged once; later ones are only counted)", kind, text)

    def counts(self) -> dict[str, int]:
        """The number of errors by kind."""
        with self._lock:
            return dict(self._counts)
