"""Storage of entries: copies are awaited, policies choose, and records are appended to the data set in batches.

Records that cannot be written, because the disk is full for instance, keep their bytes of the budget. They are written
again after growing pauses and by each flush, and are dropped only when the runtime stops.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterable, Mapping, Sequence

import attrs
import torch
from fib_schema import ConstraintError, Definition, WorkloadLog, constraint_names, evaluate_constraint

from ..capture.copies import ByteBudget
from ..capture.recorder import PendingEntry, Recorder
from ..policies.calls import WorkloadEntry
from ..stats import ErrorLog
from .records import WorkloadRecord, make_record

MAX_BATCH = 256
"""Entries that are appended together."""
_RETRY_SECONDS = 1.0
"""Until records that could not be written are retried; doubled by each failure."""
_MAX_RETRY_SECONDS = 60.0


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


class EntryStore:
    """Stores entries; used by the storage thread alone.

    Args:
        log: Appends to the data set.
        budget: Where the bytes of entries are released.
        errors: Where errors are reported.
    """

    def __init__(self, log: WorkloadLog, budget: ByteBudget, errors: ErrorLog) -> None:
        self._log = log
        self._budget = budget
        self._errors = errors
        self.renew_after_fork()

    def renew_after_fork(self) -> None:
        """Start without batches of the parent process."""
        self.progress = 0
        """Number of entries whose copies are complete, and of batches that were appended."""
        self._unwritten: list[_Batch] = []
        self._retry_seconds = _RETRY_SECONDS
        self._retry_at = 0.0

    @property
    def retry_at(self) -> float | None:
        """The time of `time.monotonic` at which a retry is due; None if nothing is unwritten."""
        return self._retry_at if self._unwritten else None

    def waiting(self) -> int:
        """The number of entries that could not be written yet."""
        return sum(batch.entries for batch in list(self._unwritten))

    def finish(self, pending_entries: Iterable[PendingEntry]) -> None:
        """Wait for copies; store entries of final policies, and pass the others to their policies."""
        final: list[tuple[Recorder, WorkloadEntry]] = []
        for pending in pending_entries:
            recorder = pending.recorder
            try:
                entry = recorder.finish(pending)
                self.progress += 1
                if entry is None:
                    continue
                if recorder.policy.is_final:
                    final.append((recorder, entry))
                else:
                    self._submit(recorder, entry)
            except BaseException as error:  # noqa: BLE001 of the device or of a policy; other entries are stored
                self._drop(recorder, error)
        self._store(final)

    def _submit(self, recorder: Recorder, entry: WorkloadEntry) -> None:
        """Pass an entry to its policy; its bytes are released when nothing refers to it any more."""
        weakref.finalize(entry, self._budget.releaser(entry.size_bytes)).atexit = False
        with recorder.lock:
            recorder.policy.submit(entry)

    def drain(self, recorder: Recorder) -> None:
        """Store the entries that a policy holds."""
        if recorder.policy.is_final:
            return
        with recorder.lock:
            entries = list(recorder.policy.drain())
        self._store([(recorder, attrs.evolve(entry, size_bytes=0)) for entry in entries])

    def _store(self, entries: Sequence[tuple[Recorder, WorkloadEntry]]) -> None:
        """Append the records of entries, `MAX_BATCH` entries together at most."""
        groups: dict[int, list[tuple[Recorder, WorkloadEntry]]] = {}
        for recorder, entry in entries:
            groups.setdefault(id(recorder), []).append((recorder, entry))
        for group in groups.values():
            for start in range(0, len(group), MAX_BATCH):
                self._store_batch(group[0][0], [entry for _, entry in group[start : start + MAX_BATCH]])

    def _store_batch(self, recorder: Recorder, entries: Sequence[WorkloadEntry]) -> None:
        batch = self._batch(recorder, entries)
        if self._write(batch):
            return
        if not self._unwritten:
            self._retry_seconds, self._retry_at = _RETRY_SECONDS, time.monotonic() + _RETRY_SECONDS
        self._unwritten.append(batch)
        recorder.counters.count_waiting(batch.entries)

    def retry(self) -> None:
        """Write unwritten records again."""
        self._retry_seconds = min(2 * self._retry_seconds, _MAX_RETRY_SECONDS)
        self.retry_now()

    def retry_now(self) -> None:
        """Write unwritten records again, without a longer pause until the next retry."""
        waiting, remaining = self._unwritten, []
        for batch in waiting:
            if self._write(batch):
                batch.recorder.counters.count_waiting(-batch.entries)
            else:
                remaining.append(batch)
        self._unwritten = remaining
        self._retry_at = time.monotonic() + self._retry_seconds

    def give_up(self) -> None:
        """Write unwritten records for the last time; those that fail are dropped, which is logged with their number."""
        self.retry_now()
        lost: dict[str, int] = {}
        for batch in self._unwritten:
            counters, name = batch.recorder.counters, batch.recorder.definition.name
            counters.count_waiting(-batch.entries)
            counters.count_dropped("could not be written", batch.entries)
            self._budget.release(batch.size_bytes)
            lost[name] = lost.get(name, 0) + batch.entries
        self._unwritten = []
        for name, entries in lost.items():
            self._errors.report(f"{name}: lost", f"kept calls that could not be written: {entries}")

    def _drop(self, recorder: Recorder, error: BaseException, entries: int = 1) -> None:
        """Count entries that have no record, and report why."""
        recorder.counters.count_dropped("errors", entries)
        self._errors.report(f"{recorder.definition.name}: {type(error).__name__}", error)

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
            self._drop(recorder, error)
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
            self._drop(recorder, error, batch.entries)
        else:
            recorder.counters.count_stored(len(new), batch.entries - len(new))
        self.progress += 1
        self._budget.release(batch.size_bytes)
        return True


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
