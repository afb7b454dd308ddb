"""Storage thread: waits for the copies of entries, appends their records to the data set, and saves counts of calls.

Entries arrive through a queue that any thread and any signal handler may fill. Everything that was queued before a
flush is on the disk when the flush returns, or was dropped and counted, and so are the counts of calls. The end of the
process saves the counts first, and waits for entries for a time that is a setting.
"""

from __future__ import annotations

import functools
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

import attrs
import safetensors.torch  # noqa: F401 imported now: a fork during a later import would leave half a module
import torch
from fib_apply.build_service.executor import use_relaxed_capture_mode
from fib_schema import ConstraintError, Definition, WorkloadLog, constraint_names, evaluate_constraint

from .copies import ByteBudget
from .counts import ErrorLog
from .policies import WorkloadEntry
from .recorder import PendingEntry, Recorder
from .records import Record, make_record

MAX_BATCH = 256
"""Entries that are appended together."""
_GATHER_SECONDS = 0.02
_COUNTS_SECONDS = 60.0
"""Counts that a killed process loses at most. Saving 65,536 sizes takes 0.7 s of the storage thread."""
_ABANDON_SECONDS = 1.0
"""Wait at the end of the process for a thread that has stored nothing for a long time."""


@attrs.frozen(eq=False)
class _Flush:
    """A request to store everything that was queued before it."""

    recorders: tuple[Recorder, ...] = ()
    is_last: bool = False
    """Whether the thread ends afterwards."""
    done: threading.Event = attrs.field(factory=threading.Event)


class Writer:
    """Stores entries in a daemon thread, which starts with the first counted call or entry."""

    def __init__(self, log: WorkloadLog, budget: ByteBudget, errors: ErrorLog, save_counts: Callable[[], None]) -> None:
        self._log = log
        self._budget = budget
        self._errors = errors
        self._save_counts = save_counts
        self._queue: queue.SimpleQueue[PendingEntry | _Flush] = queue.SimpleQueue()
        self._wake = threading.Event()
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._counts_at = time.monotonic() + _COUNTS_SECONDS

    # -- in any thread -------------------------------------------------------------------------------

    def enqueue(self, entry: PendingEntry) -> None:
        """Store an entry."""
        self._queue.put(entry)
        self.start()

    def flush(self, recorders: Iterable[Recorder], timeout_seconds: float | None) -> bool:
        """Wait until everything that was queued, and what policies hold, is stored or dropped."""
        flush = _Flush(tuple(recorders))
        timeout = None if timeout_seconds is None else min(timeout_seconds, threading.TIMEOUT_MAX)
        return self._request(flush) and flush.done.wait(timeout)

    def save_counts_first(self) -> None:
        """Save the counts before the entries that are queued."""
        self._counts_at = 0.0

    def close(self, timeout_seconds: float | None) -> None:
        """End the thread after everything that was queued; a later item starts another one.

        A thread that still runs torch code when the interpreter is finalized would crash the process.
        """
        thread = self._thread
        if thread is not None:
            self._request(_Flush(is_last=True))
            thread.join(timeout_seconds)

    def abandon(self) -> None:
        """Drop everything that is queued and end the thread after the entries that it has taken."""
        thread = self._thread
        with suppress(queue.Empty):
            while True:
                self._queue.get_nowait()
        if thread is not None:
            self._request(_Flush(is_last=True))
            thread.join(_ABANDON_SECONDS)

    def start(self) -> bool:
        """Start the thread if there is none; False if the system refuses, which is reported."""
        if self._thread is not None:
            return True
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="fib-tracer", daemon=True)
                try:
                    self._thread.start()
                except RuntimeError as error:  # the system has no more threads, or the interpreter is ending
                    self._thread = None
                    self._errors.report("storage thread cannot start", error)
                    return False
        return True

    def _request(self, flush: _Flush) -> bool:
        self._queue.put(flush)
        self._wake.set()
        return self.start()

    # -- the loop of the storage thread --------------------------------------------------------------

    def _run(self) -> None:
        is_relaxed = False
        is_last = False
        while not is_last:
            entries, flush = self._next_items()
            is_relaxed = is_relaxed or use_relaxed_capture_mode()
            is_last = flush is not None and flush.is_last
            if is_last or time.monotonic() >= self._counts_at:
                self._save()
            self._guarded(functools.partial(self._finish, entries))
            entries.clear()  # those that policies dropped must be freed before a flush ends
            if flush is not None:
                self._end_flush(flush)
        self._thread = None
        if not self._queue.empty():  # queued before `_thread` was reset
            self.start()

    def _next_items(self) -> tuple[list[PendingEntry], _Flush | None]:
        """The queued entries up to the next flush, and the flush; neither when counts are due.

        It waits a little for more, so that a calling thread need not share the interpreter with this one for each item.
        """
        entries: list[PendingEntry] = []
        with suppress(queue.Empty):
            item = self._queue.get(timeout=max(self._counts_at - time.monotonic(), 0.0))
            if not isinstance(item, _Flush):
                self._wake.wait(_GATHER_SECONDS)
            self._wake.clear()
            while not isinstance(item, _Flush):
                entries.append(item)
                if len(entries) == MAX_BATCH:
                    return entries, None
                item = self._queue.get_nowait()
            return entries, item
        return entries, None

    def _end_flush(self, flush: _Flush) -> None:
        for recorder in flush.recorders:
            self._guarded(functools.partial(self._drain, recorder))
        self._save()
        flush.done.set()

    def _save(self) -> None:
        self._guarded(self._save_counts)
        self._counts_at = time.monotonic() + _COUNTS_SECONDS

    def _guarded(self, step: Callable[[], None]) -> None:
        try:
            step()
        except BaseException as error:  # noqa: BLE001 the thread must survive whatever a custom policy raises
            self._errors.report(f"storage: {type(error).__name__}", error)

    # -- storing entries -----------------------------------------------------------------------------

    def _finish(self, pending_entries: Iterable[PendingEntry]) -> None:
        """Wait for copies; store entries of final policies, and pass the others to their policies."""
        final: dict[Recorder, list[WorkloadEntry]] = {}
        for pending in pending_entries:
            recorder = pending.recorder
            try:
                entry = recorder.finish(pending)
                if entry is None:
                    continue
                if recorder.policy.is_final:
                    final.setdefault(recorder, []).append(entry)
                else:
                    self._submit(recorder, entry)
            except BaseException as error:  # noqa: BLE001 of the device or of a policy; other entries are stored
                self._drop(recorder, error)
        for recorder, entries in final.items():
            self._store(recorder, entries)

    def _submit(self, recorder: Recorder, entry: WorkloadEntry) -> None:
        """Pass an entry to its policy; its bytes are released when nothing refers to it any more."""
        weakref.finalize(entry, self._budget.release, entry.size_bytes).atexit = False
        with recorder.lock:
            recorder.policy.submit(entry)

    def _drain(self, recorder: Recorder) -> None:
        """Store the entries that a policy holds."""
        if recorder.policy.is_final:
            return
        with recorder.lock:
            entries = list(recorder.policy.drain())
        self._store(recorder, [attrs.evolve(entry, size_bytes=0) for entry in entries])

    def _store(self, recorder: Recorder, entries: Sequence[WorkloadEntry]) -> None:
        """Append the records of entries, `MAX_BATCH` entries together at most."""
        for start in range(0, len(entries), MAX_BATCH):
            batch = entries[start : start + MAX_BATCH]
            found = [record for entry in batch if (record := self._record(recorder, entry)) is not None]
            self._append(recorder, found)
            self._budget.release(sum(entry.size_bytes for entry in batch))

    def _append(self, recorder: Recorder, records: Sequence[Record]) -> None:
        """Append records, of which some may be equal; if not all can be written, as many as can."""
        try:
            new = self._log.append(
                recorder.definition,
                {workload.uuid: workload for workload, _ in records},
                {workload.uuid: tensors for workload, tensors in records},
            )
        except Exception as error:  # noqa: BLE001 of the disk, or of a record; later ones and other definitions are stored
            if (half := len(records) // 2) > 0:
                self._append(recorder, records[:half])
                self._append(recorder, records[half:])
                return
            recorder.counts.count_dropped("could not be written")
            self._errors.report(f"{recorder.definition.name}: writing", error)
        else:
            recorder.counts.stored += len(new)
            recorder.counts.equal += len(records) - len(new)

    def _drop(self, recorder: Recorder, error: BaseException) -> None:
        """Count an entry that has no record, and report why."""
        recorder.counts.count_dropped("errors")
        self._errors.report(f"{recorder.definition.name}: {type(error).__name__}", error)

    def _record(self, recorder: Recorder, entry: WorkloadEntry) -> Record | None:
        """An entry's record, or None if it has none, which is reported."""
        try:
            if (problem := _broken_constraint(recorder.definition, entry)) is None:
                return make_record(recorder.definition, entry.axes, entry.inputs, self._log, entry.strides)
            recorder.counts.count_dropped("breaks a constraint")
            self._errors.report(f"{recorder.definition.name}: constraint", problem)
        except Exception as error:  # noqa: BLE001 a policy may put anything into an entry; other entries are stored
            self._drop(recorder, error)
        return None


def _broken_constraint(definition: Definition, entry: WorkloadEntry) -> str | None:
    """A constraint that a workload breaks, as far as its values are known."""
    inputs: Mapping[str, object] = entry.inputs
    known = {name: value for name, value in inputs.items() if isinstance(value, (torch.Tensor, int, float))}
    values = {**definition.const_axes, **entry.axes, **known}
    for constraint in definition.constraints:
        if not constraint_names(constraint) <= values.keys():
            continue
        try:
            if evaluate_constraint(constraint, values):
                continue
        except ConstraintError as error:
            return str(error)
        return f"{constraint!r} does not hold: the call is not of this definition, or its buffers are longer than used"
    return None
