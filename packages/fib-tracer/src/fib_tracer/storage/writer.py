"""Storage thread: waits for copies and appends workloads to the data set, in batches.

Entries arrive through a queue that any thread and any signal handler may fill. Everything that was queued before a
flush is on the disk when the flush returns, and so are the counts of calls. Records that cannot be written, because
the disk is full for instance, keep their bytes of the budget; they are retried after growing pauses, and for the last
time by a flush.
"""

from __future__ import annotations

import functools
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

import attrs
import safetensors.torch  # noqa: F401 imported now: a fork during a later import would leave half a module
import torch
from fib_apply.build_service.executor import use_relaxed_capture_mode
from fib_schema import ConstraintError, Definition, WorkloadLog, constraint_names, evaluate_constraint

from ..capture.copies import ByteBudget
from ..capture.recorder import PendingEntry, Recorder
from ..policies.calls import WorkloadEntry
from ..stats import ErrorLog
from .records import WorkloadRecord, make_record

_MAX_BATCH = 256
_GATHER_SECONDS = 0.02
_RETRY_SECONDS = 1.0
"""Until records that could not be written are retried; doubled by each failure."""
_MAX_RETRY_SECONDS = 60.0
_COUNTS_SECONDS = 60.0
"""Counts that a killed process loses at most. Saving 65,536 sizes takes 0.7 s of the storage thread."""


@attrs.frozen(eq=False)
class _Flush:
    """A request to store everything that was queued before it."""

    recorders: tuple[Recorder, ...]
    done: threading.Event = attrs.field(factory=threading.Event)


@attrs.frozen(eq=False)
class _Batch:
    """Records of one definition that are appended together."""

    recorder: Recorder
    records: Mapping[str, WorkloadRecord]
    """Records by uuid."""
    entries: int
    """Number of entries that have a record; equal ones share it."""
    size_bytes: int
    """Bytes of the budget that the entries hold."""


Job: TypeAlias = Callable[[], None]
_Item: TypeAlias = "PendingEntry | _Flush | Job"


def _END() -> None:  # noqa: N802 a job that does nothing and marks the end
    """The last job of a thread."""


class Writer:
    """Stores entries in a daemon thread, which starts with the first item.

    Args:
        log: Appends to the data set.
        budget: Where the bytes of entries are released.
        errors: Where errors are reported.
        save_counts: Saves the counts of calls; called by each flush, and every `_COUNTS_SECONDS` while the thread runs.
    """

    def __init__(self, log: WorkloadLog, budget: ByteBudget, errors: ErrorLog, save_counts: Job) -> None:
        self._log = log
        self._save_counts = save_counts
        self._budget = budget
        self._errors = errors
        self.renew_after_fork()

    def renew_after_fork(self) -> None:
        """Start without items, and without the thread, which only the parent process has."""
        self._queue: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        self._wake = threading.Event()
        self._starting = threading.RLock()  # a signal handler may run in between, in the same thread
        self._thread: threading.Thread | None = None
        self._unwritten: list[_Batch] = []
        self._retry_seconds = _RETRY_SECONDS
        self._retry_at = 0.0
        self._counts_at = time.monotonic() + _COUNTS_SECONDS

    def enqueue(self, item: PendingEntry | Job) -> None:
        """Store an entry, or run a job, in the thread."""
        self._queue.put(item)
        if self._thread is None:
            self._start()

    def request_flush(self) -> None:
        """Process queued items now, without waiting for more."""
        self._wake.set()

    def flush(self, recorders: Iterable[Recorder], timeout_seconds: float | None) -> bool:
        """Wait until everything that was queued, and what policies hold, is stored.

        Args:
            recorders: Whose policies are drained.
            timeout_seconds: How long to wait; None for as long as it takes.

        Returns:
            Whether it was done in time.
        """
        flush = _Flush(tuple(recorders))
        self._queue.put(flush)
        self._wake.set()
        if self._thread is None and not self._start():
            return False
        return flush.done.wait(timeout_seconds)

    def close(self, timeout_seconds: float | None) -> None:
        """End the thread after everything that was queued; a later item starts another one.

        A thread that still runs torch code when the interpreter is finalized would crash the process.
        """
        thread = self._thread
        if thread is not None:
            self._queue.put(_END)
            self._wake.set()
            thread.join(timeout_seconds)

    def _start(self) -> bool:
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="fib-tracer", daemon=True)
                try:
                    self._thread.start()
                except RuntimeError as error:  # the system has no more threads, or the interpreter is ending
                    self._thread = None
                    self._errors.report("storage thread cannot start", error)
                    return False
        return True

    # -- in the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        is_relaxed = False
        is_ending = False
        while not is_ending:
            items = self._next_items()
            is_relaxed = is_relaxed or use_relaxed_capture_mode()
            is_ending = bool(items) and items[-1] is _END
            self._process(items)
            if time.monotonic() >= self._counts_at:
                self._save()
            if is_ending or (self._unwritten and time.monotonic() >= self._retry_at):
                self._guarded(functools.partial(self._retry, is_last=is_ending))
        self._thread = None
        if not self._queue.empty():  # queued before `_thread` was reset
            self._start()

    def _next_items(self) -> list[_Item]:
        """The queued items up to one flush or job, which comes last; none when counts or a retry are due.

        It waits a little for more, so that a calling thread need not share the interpreter with this one for each item.
        """
        due = min(self._retry_at, self._counts_at) if self._unwritten else self._counts_at
        try:
            items = [self._queue.get(timeout=max(due - time.monotonic(), 0.0))]
        except queue.Empty:
            return []
        if isinstance(items[0], PendingEntry):
            self._wake.wait(_GATHER_SECONDS)
        self._wake.clear()
        while isinstance(items[-1], PendingEntry) and len(items) < _MAX_BATCH:
            try:
                items.append(self._queue.get_nowait())
            except queue.Empty:
                break
        return items

    def _process(self, items: list[_Item]) -> None:
        entries = [item for item in items if isinstance(item, PendingEntry)]
        others = [item for item in items if not isinstance(item, PendingEntry)]
        items[:] = others  # entries that policies dropped must be freed before a flush ends
        self._guarded(functools.partial(self._finish, entries))
        entries.clear()
        for item in others:
            if isinstance(item, _Flush):
                for recorder in item.recorders:
                    self._guarded(functools.partial(self._drain, recorder))
                self._guarded(functools.partial(self._retry, is_last=True))
                self._save()
                item.done.set()
            else:
                self._guarded(item)

    def _save(self) -> None:
        self._guarded(self._save_counts)
        self._counts_at = time.monotonic() + _COUNTS_SECONDS

    def _guarded(self, job: Job) -> None:
        try:
            job()
        except BaseException as error:  # noqa: BLE001 the thread must survive whatever a custom policy raises
            self._errors.report(f"storage: {type(error).__name__}", error)

    def _finish(self, pending_entries: Iterable[PendingEntry]) -> None:
        """Wait for copies; store entries of final policies, and pass the others to their policies."""
        final: list[tuple[Recorder, WorkloadEntry]] = []
        for pending in pending_entries:
            recorder = pending.recorder
            try:
                entry = recorder.finish(pending)
                if entry is None:
                    continue
                if recorder.policy.is_final:
                    final.append((recorder, entry))
                else:
                    self._submit(recorder, entry)
            except BaseException as error:  # noqa: BLE001 of the device or of a policy; other entries are stored
                self._lose(recorder, error)
        self._store(final)

    def _submit(self, recorder: Recorder, entry: WorkloadEntry) -> None:
        """Pass an entry to its policy; its bytes are released when nothing refers to it any more."""
        weakref.finalize(entry, self._budget.releaser(entry.size_bytes)).atexit = False
        with recorder.lock:
            recorder.policy.submit(entry)

    def _drain(self, recorder: Recorder) -> None:
        """Store what a policy holds."""
        if recorder.policy.is_final:
            return
        with recorder.lock:
            entries = list(recorder.policy.drain())
        self._store([(recorder, attrs.evolve(entry, size_bytes=0)) for entry in entries])

    def _store(self, entries: list[tuple[Recorder, WorkloadEntry]]) -> None:
        groups: dict[int, list[tuple[Recorder, WorkloadEntry]]] = {}
        for recorder, entry in entries:
            groups.setdefault(id(recorder), []).append((recorder, entry))
        for group in groups.values():
            batch = self._batch(group[0][0], [entry for _, entry in group])
            if self._write(batch):
                continue
            if not self._unwritten:
                self._retry_seconds, self._retry_at = _RETRY_SECONDS, time.monotonic() + _RETRY_SECONDS
            self._unwritten.append(batch)

    def _batch(self, recorder: Recorder, entries: Sequence[WorkloadEntry]) -> _Batch:
        records = [record for entry in entries if (record := self._record(recorder, entry)) is not None]
        size_bytes = sum(entry.size_bytes for entry in entries)
        return _Batch(recorder, {record.workload.uuid: record for record in records}, len(records), size_bytes)

    def _record(self, recorder: Recorder, entry: WorkloadEntry) -> WorkloadRecord | None:
        """An entry's record, or None if it has none, which is reported."""
        try:
            if (problem := _broken_constraint(recorder.definition, entry)) is None:
                return make_record(recorder.definition, entry.axes, entry.inputs, self._log, entry.strides)
            recorder.counters.count_dropped("breaks a constraint")
            self._errors.report(f"{recorder.definition.name}: constraint", problem)
        except Exception as error:  # noqa: BLE001 a policy may put anything into an entry; other entries are stored
            self._lose(recorder, error)
        return None

    def _write(self, batch: _Batch) -> bool:
        """Append records; False if a retry may succeed."""
        recorder, records = batch.recorder, batch.records
        try:
            new = self._log.append(
                recorder.definition,
                {uuid: record.workload for uuid, record in records.items()},
                {uuid: record.tensors for uuid, record in records.items()},
            )
        except OSError as error:
            self._errors.report(f"{recorder.definition.name}: writing", error)
            return False
        except Exception as error:  # noqa: BLE001 a record that cannot be written; other definitions are stored
            self._lose(recorder, error, batch.entries)
        else:
            recorder.counters.count_stored(len(new), batch.entries - len(new))
        self._budget.release(batch.size_bytes)
        return True

    def _lose(self, recorder: Recorder, error: BaseException, entries: int = 1) -> None:
        recorder.counters.count_dropped("errors", entries)
        self._errors.report(f"{recorder.definition.name}: {type(error).__name__}", error)

    def _retry(self, *, is_last: bool) -> None:
        """Write unwritten records again; those that fail are lost if this is the last time."""
        waiting, self._unwritten = self._unwritten, []
        self._unwritten = [batch for batch in waiting if not self._write(batch)]
        self._retry_seconds = min(2 * self._retry_seconds, _MAX_RETRY_SECONDS)
        self._retry_at = time.monotonic() + self._retry_seconds
        if is_last:
            for batch in self._unwritten:
                batch.recorder.counters.count_dropped("could not be written", batch.entries)
                self._budget.release(batch.size_bytes)
            self._unwritten = []


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
