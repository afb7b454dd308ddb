"""Writer: one daemon thread that waits for copies and appends workloads to the data set.

Entries come in through a queue that may be filled from anywhere, a signal handler included, and are
stored a batch at a time. What `flush` has waited for is on the disk. What cannot be written, because the disk
is full for instance, keeps its room in the budget and is tried again now and then, and by a flush for the last time.
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
import safetensors.torch  # noqa: F401 now: a process that is forked in the midst of an import has half a module
import torch
from fib_apply.building.background import let_others_capture
from fib_schema import ConstraintError, Definition, WorkloadLog, constraint_names, evaluate_constraint

from ..policies.calls import WorkloadEntry
from ..taking.budget import Budget
from ..taking.intake import Intake, Pending
from ..tallies import Troubles
from .content import Content, content_of

_MOST_AT_ONCE = 256
_GATHER_SECONDS = 0.02
_PAUSE_SECONDS = 1.0
"""Until what could not be written is tried again; doubled each time that it fails."""
_LONGEST_PAUSE_SECONDS = 60.0


@attrs.frozen(eq=False)
class _Mark:
    """Stands in the queue behind everything that a flush waits for."""

    intakes: tuple[Intake, ...]
    done: threading.Event = attrs.field(factory=threading.Event)


@attrs.frozen(eq=False)
class _Records:
    """What is to be written of one definition at once."""

    intake: Intake
    contents: Mapping[str, Content]
    """By uuid."""
    count: int
    """Of entries; equal ones are one record."""
    size_bytes: int
    """What they take of the budget."""


Job: TypeAlias = Callable[[], None]
_Item: TypeAlias = "Pending | _Mark | Job"


def _END() -> None:  # noqa: N802 a job that does nothing, behind which the thread ends
    """The last job of a thread."""


class Writer:
    """Stores entries in the background.

    Args:
        log: Appends to the data set.
        budget: What entries take and give back.
        troubles: Where what goes wrong is reported.
    """

    def __init__(self, log: WorkloadLog, budget: Budget, troubles: Troubles) -> None:
        self._log = log
        self._budget = budget
        self._troubles = troubles
        self.renew()

    def renew(self) -> None:
        """Begin without entries and without a thread: a forked process has neither."""
        self._queue: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        self._hurry = threading.Event()
        self._starting = threading.RLock()  # a signal handler may come in between, in the same thread
        self._thread: threading.Thread | None = None
        self._unwritten: list[_Records] = []
        self._pause = _PAUSE_SECONDS
        self._again_at = 0.0

    def put(self, item: Pending | Job) -> None:
        """Have an entry stored, or something else done that calls must not wait for."""
        self._queue.put(item)
        if self._thread is None:
            self._start()

    def hurry(self) -> None:
        """Do not wait for more: somebody needs the room that is taken."""
        self._hurry.set()

    def flush(self, intakes: Iterable[Intake], timeout_seconds: float | None) -> bool:
        """Wait until everything that was put is stored, and what policies hold as well.

        Args:
            intakes: Whose policies give out what they hold.
            timeout_seconds: How long to wait; None for as long as it takes.

        Returns:
            Whether it was done in time.
        """
        mark = _Mark(tuple(intakes))
        self._queue.put(mark)
        self._hurry.set()
        if self._thread is None and not self._start():
            return False
        return mark.done.wait(timeout_seconds)

    def close(self, timeout_seconds: float | None) -> None:
        """End the thread, behind everything that was put; what is put later starts another one.

        A thread that is still inside of torch when the interpreter is gone would take the process down.
        """
        thread = self._thread
        if thread is not None:
            self._queue.put(_END)
            self._hurry.set()
            thread.join(timeout_seconds)

    def _start(self) -> bool:
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="fib-tracer", daemon=True)
                try:
                    self._thread.start()
                except RuntimeError as error:  # the system has no more threads, or the interpreter is ending
                    self._thread = None
                    self._troubles.report("no thread that writes", error)
                    return False
        return True

    def _work(self) -> None:
        is_relaxed = False
        is_ending = False
        while not is_ending:
            batch = self._next_batch()
            is_relaxed = is_relaxed or let_others_capture()
            is_ending = bool(batch) and batch[-1] is _END
            self._do(batch)
            if is_ending or (self._unwritten and time.monotonic() >= self._again_at):
                self._guarded(functools.partial(self._write_again, is_last=is_ending))
        self._thread = None
        if not self._queue.empty():  # put before the thread was known to be gone
            self._start()

    def _do(self, batch: list[_Item]) -> None:
        entries = [item for item in batch if isinstance(item, Pending)]
        others = [item for item in batch if not isinstance(item, Pending)]
        batch[:] = others  # entries that policies let go of are to be gone before a flush ends
        self._guarded(functools.partial(self._take, entries))
        entries.clear()
        for item in others:
            if isinstance(item, _Mark):
                self._guarded(functools.partial(self._drain, item.intakes))
                self._guarded(functools.partial(self._write_again, is_last=True))
                item.done.set()
            else:
                self._guarded(item)

    def _guarded(self, job: Job) -> None:
        try:
            job()
        except BaseException as error:  # noqa: BLE001 the thread must live, whatever a policy of somebody else raises
            self._troubles.report(f"storing: {type(error).__name__}", error)

    def _next_batch(self) -> list[_Item]:
        """What is there, but no more than one mark, which comes last; nothing when it is time to write again.

        It waits a little for more, so that a thread that calls need not share the interpreter with this one each time.
        """
        try:
            batch = [self._queue.get(timeout=max(self._again_at - time.monotonic(), 0.0) if self._unwritten else None)]
        except queue.Empty:
            return []
        if isinstance(batch[0], Pending):
            self._hurry.wait(_GATHER_SECONDS)
        self._hurry.clear()
        while isinstance(batch[-1], Pending) and len(batch) < _MOST_AT_ONCE:
            try:
                batch.append(self._queue.get_nowait())
            except queue.Empty:
                break
        return batch

    # -- what becomes of entries ---------------------------------------------------------------------

    def _take(self, batch: Iterable[Pending]) -> None:
        """Have copies arrive, and store what is to be stored at once."""
        final: list[tuple[Intake, WorkloadEntry]] = []
        for pending in batch:
            intake = pending.intake
            try:
                entry = intake.land(pending)
                if entry is None:
                    continue
                if intake.policy.is_final:
                    final.append((intake, entry))
                else:
                    self._submit(intake, entry)
            except BaseException as error:  # noqa: BLE001 of the device or of a policy; others' entries are to be stored
                intake.lost("errors")
                self._troubles.report(f"{intake.definition.name}: {type(error).__name__}", error)
        self._store(final)

    def _submit(self, intake: Intake, entry: WorkloadEntry) -> None:
        """Have a policy hold an entry; its bytes are given back when nobody holds it any more."""
        weakref.finalize(entry, self._budget.giver(entry.size_bytes)).atexit = False
        with intake.lock:
            intake.policy.submit(entry)

    def _drain(self, intakes: Iterable[Intake]) -> None:
        """Store what policies hold."""
        for intake in intakes:
            if not intake.policy.is_final:
                self._guarded(functools.partial(self._drain_one, intake))

    def _drain_one(self, intake: Intake) -> None:
        with intake.lock:
            entries = list(intake.policy.drain())
        self._store([(intake, attrs.evolve(entry, size_bytes=0)) for entry in entries])

    def _store(self, entries: list[tuple[Intake, WorkloadEntry]]) -> None:
        groups: dict[int, list[tuple[Intake, WorkloadEntry]]] = {}
        for intake, entry in entries:
            groups.setdefault(id(intake), []).append((intake, entry))
        for group in groups.values():
            records = self._records(group[0][0], [entry for _, entry in group])
            if not self._write(records):
                self._wait_with(records)

    def _records(self, intake: Intake, entries: Sequence[WorkloadEntry]) -> _Records:
        made = [content for entry in entries if (content := self._content(intake, entry)) is not None]
        size_bytes = sum(entry.size_bytes for entry in entries)
        return _Records(intake, {content.workload.uuid: content for content in made}, len(made), size_bytes)

    def _write(self, records: _Records) -> bool:
        """Append records; False if that may go well another time."""
        intake, contents = records.intake, records.contents
        try:
            new = self._log.append(
                intake.definition,
                {uuid: content.workload for uuid, content in contents.items()},
                {uuid: content.tensors for uuid, content in contents.items()},
            )
        except OSError as error:
            self._troubles.report(f"{intake.definition.name}: writing", error)
            return False
        except Exception as error:  # noqa: BLE001 a record that cannot be written; other definitions go on
            intake.lost("errors", records.count)
            self._troubles.report(f"{intake.definition.name}: {type(error).__name__}", error)
        else:
            intake.stored(len(new), records.count - len(new))
        self._budget.give(records.size_bytes)
        return True

    def _wait_with(self, records: _Records) -> None:
        """Have records written later."""
        if not self._unwritten:
            self._pause, self._again_at = _PAUSE_SECONDS, time.monotonic() + _PAUSE_SECONDS
        self._unwritten.append(records)

    def _write_again(self, *, is_last: bool) -> None:
        """Try what could not be written once more; if this is the last time, what cannot be is lost."""
        waiting, self._unwritten = self._unwritten, []
        self._unwritten = [records for records in waiting if not self._write(records)]
        self._pause = min(2 * self._pause, _LONGEST_PAUSE_SECONDS)
        self._again_at = time.monotonic() + self._pause
        if is_last:
            for records in self._unwritten:
                records.intake.lost("could not be written", records.count)
                self._budget.give(records.size_bytes)
            self._unwritten = []

    def _content(self, intake: Intake, entry: WorkloadEntry) -> Content | None:
        """An entry's record, or None if there can be none, which is reported."""
        name = intake.definition.name
        try:
            if (problem := _broken_constraint(intake.definition, entry)) is None:
                return content_of(intake.definition, entry.axes, entry.inputs, self._log)
            intake.lost("breaks a constraint")
            self._troubles.report(f"{name}: constraint", problem)
        except Exception as error:  # noqa: BLE001 a policy may put anything into an entry; others are to be stored
            intake.lost("errors")
            self._troubles.report(f"{name}: {type(error).__name__}", error)
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
        return f"{constraint!r} does not hold; the call is not of this definition, or its buffers are longer than used"
    return None
