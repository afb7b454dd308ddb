"""Recorder of the calls of one definition: from a call to an entry whose copies are pending.

A call first runs the generated callback (`binding`), which only counts it if calls of these shapes are not wanted any
more. `Recorder.record` then checks the call against the definition, reads its axes, counts it, asks the filter policy,
and copies tensors only if the policy keeps the call. The storage thread calls `Recorder.finish` when the copies are
done. Nothing here raises into the caller.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import attrs
import torch
from fib_compile.device import torch_dtype
from fib_schema import AxisError, Definition

from ..errors import InvalidSetting
from ..policies.calls import RANDOM, Call, WorkloadEntry
from ..policies.filtering import FilterPolicy, Verdict
from ..stats import CallCounters
from ..tracing_config import TracingConfig
from . import binding
from .binding import Callback
from .call_counts import CallCounts, Increment
from .context import CaptureContext
from .copies import PendingCopy, Reservation
from .probing import ProbeBackoff, element_of, without_memory

_MAX_KNOWN_AXES = 4096
"""Combinations of shapes whose axes are remembered."""
_MAX_DEFERRED = 64
"""Calls whose probed values are being copied while the policy waits for them."""
ENTRY_BYTES = 4096
"""Bytes of the budget for an entry beside its tensors."""
_dispatch_modes = torch._C._len_torch_dispatch_stack  # noqa: SLF001 torch has no public names for these two
_functorch_transform = torch._C._functorch.peek_interpreter_stack  # noqa: SLF001 likewise
_Axes: TypeAlias = Mapping[str, int]
_LAST_OF_KEY = (Verdict.FULL, Verdict.CLOSED)
_PROBE = "probe "
"""Prefix of the names of elements that are copied for the policy alone."""


@attrs.define(eq=False)  # not frozen: that takes three times as long to make, and one is made for each kept call
class PendingEntry:
    """An entry on its way to the storage thread; its copies may not be finished."""

    recorder: Recorder
    entry: WorkloadEntry
    copy: PendingCopy
    deferred_call: Call | None = None
    """The call, if the policy decides on it after probed values have been copied."""


class Recorder:
    """Records the calls of one definition.

    Args:
        definition: Whose calls these are.
        config: Its settings.
        context: What all recorders share.
    """

    def __init__(self, definition: Definition, config: TracingConfig, context: CaptureContext) -> None:
        self.definition = definition
        self.policy: FilterPolicy = config.make_filter_policy()
        self._dump = config.make_dump_policy()
        self._context = context
        self._probes = dict(self.policy.value_probes(definition))
        self._dtypes = {n: None if s.shape is None else torch_dtype(s.dtype) for n, s in definition.inputs.items()}
        self._scalars = {n: binding.scalar_type(s) for n, s in definition.inputs.items() if s.shape is None}
        self._optional = [name for name, spec in definition.inputs.items() if spec.optional]
        self._all_random: dict[str, Any] = dict.fromkeys(definition.inputs, RANDOM)
        self._always_dumped = self._dump.always_dumped(definition)
        self._passes_fast_check = binding.compile_fast_check(self._dtypes.values())
        dumped = self._dtypes if self._always_dumped is None else self._always_dumped
        may_dump = any(self._dtypes.get(name) is not None for name in dumped)
        self._has_content_key = not may_dump and self.policy.is_final
        """Whether calls with equal keys are equal workloads, so that one of each is enough (0.0 and -0.0 are one)."""
        self._max_kept = math.inf if config.max_kept is None else config.max_kept
        axes = definition.var_axes_bindings
        counted = tuple(axis for axis in definition.var_axes if axis in axes)
        self.counts = CallCounts(counted, context.key_limit, context.start_storage)
        self.renew_after_fork()

    def renew_after_fork(self) -> None:
        """Start without calls, entries and locks of the parent process."""
        self.lock = threading.RLock()  # a policy or a signal handler may call a traced function
        self.counters = CallCounters()
        self.counts.clear()
        self.policy.reset()
        self._known_axes: dict[Any, tuple[list[Any], _Axes, Increment]] = {}
        self._is_closed = False
        self._order = 0
        self._deferred = 0
        self._backoff = ProbeBackoff()

    # -- receiving a call ----------------------------------------------------------------------------

    def bind(self, names: Sequence[str]) -> Callback | None:
        """The callback for the calls of a function.

        Args:
            names: Of the function's parameters.

        Returns:
            The callback; None if the definition's inputs are not among the parameters, which is reported.
        """
        positions = binding.input_positions(self.definition, names)
        if positions is None:
            problem = f"({', '.join(names)}) do not contain ({', '.join(self.definition.inputs)})"
            self._context.errors.report(f"{self.definition.name}: parameters", problem)
            return None
        scope: dict[str, Any] = {
            "_counter_of": self.counts.by_key.get,
            "_key_errors": Exception,  # a shape may be a property of any object
            "_record": self.record,
        }
        return binding.compile_callback(
            self.definition, positions, len(names), scope, has_content_key=self._has_content_key
        )

    def record(self, args: tuple[Any, ...], key: Any = None) -> None:
        """Count a call, and record it if the policy keeps it; errors are reported and not raised.

        Args:
            args: The definition's inputs, in order.
            key: Identifies calls of these shapes once they are not wanted any more; None if they cannot be identified.
        """
        increment: Increment = self.counts.count_other
        is_counted = False
        try:
            if self._has_content_key and self._has_scalar_tensors(args):
                key = None  # the key would hold the caller's tensor, and not its value
            found = None if self._is_unrecordable(args) else self._identify(args, key)
            if found is not None:
                increment = found[1]
            increment()
            is_counted = True
            if found is not None:
                self._filter(found[0], key, increment)
            else:
                self._context.start_storage()
        except Exception as error:  # noqa: BLE001 tracing must not make an engine's call fail
            if not is_counted:
                increment()
            self.counters.count_dropped("errors")
            self._context.errors.report(f"{self.definition.name}: {type(error).__name__}", error)

    def _has_scalar_tensors(self, args: tuple[Any, ...]) -> bool:
        pairs = zip(self._dtypes.values(), args, strict=True)
        return any(dtype is None and isinstance(value, torch.Tensor) for dtype, value in pairs)

    def _is_unrecordable(self, args: tuple[Any, ...]) -> bool:
        """Whether a call cannot be recorded now, which is counted; one that a graph captures may be recorded later."""
        if self._context.is_capturing():
            if not self._context.on_graph_call(self, args):
                self.counters.count_dropped("captured in a graph")
            return True
        if _is_transformed():
            self.counters.count_dropped("under a mode or a transform of torch")
            return True
        return False

    def _identify(self, args: tuple[Any, ...], key: Any) -> tuple[Call, Increment] | None:
        """A call with its axes, and its counter; None, which is reported, if it does not fit the definition."""
        inputs = dict(zip(self.definition.inputs, args, strict=True))
        if not self._passes_fast_check(*args) and (problem := binding.mismatch(self.definition, self._dtypes, inputs)):
            self._reject(problem)
            return None
        try:
            axes, increment = self._size_of(args, inputs, key)
        except AxisError as error:
            self._reject(str(error))
            return None
        return Call(self.definition, axes, inputs), increment

    def _filter(self, call: Call, key: Any, increment: Increment) -> None:
        """Record a call if it is wanted; if calls of its key are not wanted any more, only count them from now on."""
        verdict = Verdict.CLOSED if self._is_closed else self._verdict_on(call)
        is_last = verdict in _LAST_OF_KEY or (verdict is Verdict.KEEP and self._has_content_key)
        if key is not None and is_last:
            self.counts.skip(key, increment)

    def _verdict_on(self, call: Call) -> Verdict:
        if self._order >= self._max_kept:
            self._is_closed = True
            problem = f"{self._max_kept} calls were kept (max_kept); later ones are only counted"
            self._context.errors.report(f"{self.definition.name}: max_kept", problem)
            return Verdict.CLOSED
        return self._filter_with_probes(call) if self._probes else self._keep_if_wanted(call)

    def _filter_with_probes(self, call: Call) -> Verdict:
        """Read the elements that the policy needs; those on a device are copied with the call's tensors."""
        if not (self._context.probes_all or self._backoff.is_due()):
            return Verdict.SKIP
        inputs = call.inputs
        probes = {label: element for label, element in self._probes.items() if inputs[element[0]] is not None}
        if any(inputs[name].is_cuda for name, _ in probes.values()):
            return self._defer(call, probes)
        probed = {label: int(inputs[name][index]) for label, (name, index) in probes.items()}
        verdict = self._keep_if_wanted(attrs.evolve(call, probed=probed))
        self._backoff.note(is_kept=verdict is Verdict.KEEP)
        return verdict

    def _size_of(self, args: tuple[Any, ...], inputs: Mapping[str, Any], key: Any) -> tuple[_Axes, Increment]:
        """The axes' sizes and the counter of a call.

        The key holds one input's shape per axis, so a known key still compares all shapes. Layouts are told apart by a
        content key only, which holds them; calls whose layout no workload can have are then in the total only.
        """
        shapes = [getattr(value, "shape", None) for value in args]
        known = self._known_axes.get(key)
        if known is not None and known[0] == shapes:
            return known[1], known[2]
        axes = MappingProxyType(self.definition.get_axes_values(shapes))  # read-only: policies see it
        increment = self._counter(axes, inputs)
        if key is not None:
            if len(self._known_axes) >= _MAX_KNOWN_AXES:
                self._known_axes.clear()
            self._known_axes[key] = shapes, axes, increment
        return axes, increment

    def _counter(self, axes: _Axes, inputs: Mapping[str, Any]) -> Increment:
        if not self._has_content_key:
            return self.counts.counter(axes, None)
        layout = binding.call_layout(inputs)
        if layout.problem is None:
            return self.counts.counter(axes, layout.strides)
        self._context.start_storage()
        return self.counts.count_other

    def _reject(self, problem: str) -> None:
        self.counters.count_dropped("does not fit the definition")
        self._context.errors.report(f"{self.definition.name}: does not fit", problem)

    # -- keeping a call ------------------------------------------------------------------------------

    def _keep_if_wanted(self, call: Call) -> Verdict:
        tensors = self._tensors_to_copy(call)
        deadline: float | None = None
        while True:
            with self.lock:
                verdict = self.policy.decide(call)
                if verdict is Verdict.CLOSED:
                    self._is_closed = True
                if verdict is not Verdict.KEEP:
                    return _checked(verdict)
                if self._has_unusable_layout(call):
                    return Verdict.SKIP
                reservation = self._context.copier.reserve(tensors, ENTRY_BYTES)
                entry = None if reservation is None else self._admit_reserved(call, reservation)
            if entry is not None and reservation is not None:
                self.counters.count_kept()
                self._copy(entry, reservation)
                return verdict
            deadline = time.monotonic() + self._context.wait_seconds if deadline is None else deadline
            size_bytes = ENTRY_BYTES + sum(tensor.nbytes for tensor in tensors.values())
            left_seconds = deadline - time.monotonic()
            if size_bytes > self._context.budget.size_bytes or left_seconds <= 0:
                self.counters.count_dropped("no room in the byte budget")
                return Verdict.SKIP
            self._context.request_flush()
            self._context.budget.wait(left_seconds)

    def _defer(self, call: Call, probes: Mapping[str, tuple[str, int]]) -> Verdict:
        """Copy the tensors and the probed elements; the policy decides when they are on the CPU."""
        if self._has_unusable_layout(call):
            return Verdict.SKIP
        elements = {_PROBE + label: element_of(call.inputs[name], index) for label, (name, index) in probes.items()}
        tensors = {**self._tensors_to_copy(call), **elements}
        with self.lock:
            has_slot = self._deferred < _MAX_DEFERRED
            reservation = self._context.copier.reserve(tensors, ENTRY_BYTES) if has_slot else None
            self._deferred += reservation is not None
        if reservation is None:
            self.counters.count_dropped("too many undecided")
            return Verdict.SKIP
        entry = WorkloadEntry(self.definition, call.axes, {}, -1, reservation.size_bytes)
        try:
            self._copy(entry, reservation, without_memory(call))
        except BaseException:
            with self.lock:
                self._deferred -= 1
            raise
        return Verdict.SKIP

    def _has_unusable_layout(self, call: Call) -> bool:
        """Whether no workload can have the layout of a call, which is reported: its workload would be another one."""
        problem = binding.call_layout(call.inputs).problem
        if problem is not None:
            self.counters.count_dropped("layout")
            self._context.errors.report(f"{self.definition.name}: layout", f"{problem}; such calls are only counted")
        return problem is not None

    def _copy(self, entry: WorkloadEntry, reservation: Reservation, deferred_call: Call | None = None) -> None:
        copy = self._context.copier.copy(reservation)
        self._context.enqueue(PendingEntry(self, entry, copy, deferred_call))

    def _admit_reserved(self, call: Call, reservation: Reservation) -> WorkloadEntry:
        try:
            return self._admit(call, reservation.size_bytes)
        except BaseException:
            self._context.copier.cancel(reservation)
            raise

    def _admit(self, call: Call, size_bytes: int) -> WorkloadEntry:
        self._order += 1
        ticket = self.policy.admit(call)
        inputs = self._uncopied_inputs(call.inputs)
        strides = binding.call_layout(call.inputs).strides
        order = self._order - 1
        return WorkloadEntry(call.definition, call.axes, inputs, order, size_bytes, ticket, call.probed, strides)

    def _uncopied_inputs(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The recorded value of inputs that are not copied: a number, or `RANDOM` for a tensor."""
        recorded = dict(self._all_random)
        for name, kind in self._scalars.items():
            value = inputs[name]
            if value is not None and not isinstance(value, torch.Tensor):  # a tensor's value comes with the copies
                recorded[name] = binding.canonical_scalar(kind, value)
        for name in self._optional:
            if inputs[name] is None:
                del recorded[name]
        return recorded

    def _tensors_to_copy(self, call: Call) -> dict[str, torch.Tensor]:
        """The tensors that the dump policy chooses, and scalars that are passed as tensors."""
        inputs = call.inputs
        names = self._dump.dump(inputs) if self._always_dumped is None else self._always_dumped
        tensors = {name: inputs[name] for name in names if isinstance(inputs[name], torch.Tensor)}
        for name in self._scalars:
            if isinstance(inputs[name], torch.Tensor):
                tensors[name] = inputs[name]
        return tensors

    # -- in the storage thread -----------------------------------------------------------------------

    def finish(self, pending: PendingEntry) -> WorkloadEntry | None:
        """Wait for an entry's copies and return the entry with them; None if the policy does not keep a deferred call.

        The entry's bytes of the budget are released unless it is returned.
        """
        entry: WorkloadEntry | None = pending.entry
        try:
            tensors = pending.copy.wait()
            if pending.deferred_call is not None:
                entry = self._decide_deferred(pending.deferred_call, pending.entry.size_bytes, tensors)
            if entry is not None:
                for name, tensor in tensors.items():
                    kind = self._scalars.get(name)
                    entry.inputs[name] = tensor if kind is None else binding.canonical_scalar(kind, tensor)
        except BaseException:
            entry = None
            raise
        finally:
            if entry is None:
                self._context.budget.release(pending.entry.size_bytes)
            if pending.deferred_call is not None:
                with self.lock:
                    self._deferred -= 1
        return entry

    def _decide_deferred(self, call: Call, size_bytes: int, tensors: dict[str, torch.Tensor]) -> WorkloadEntry | None:
        labels = [name for name in tensors if name.startswith(_PROBE)]
        call = attrs.evolve(call, probed={label.removeprefix(_PROBE): int(tensors.pop(label)) for label in labels})
        with self.lock:
            verdict = self.policy.decide(call)
            self._backoff.note(is_kept=verdict is Verdict.KEEP)
            if verdict is not Verdict.KEEP:
                self._is_closed = self._is_closed or _checked(verdict) is Verdict.CLOSED
                return None
            entry = self._admit(call, size_bytes)
        self.counters.count_kept()
        return entry


def _checked(verdict: object) -> Verdict:
    if not isinstance(verdict, Verdict):
        raise InvalidSetting("filter_policy", verdict, "a Verdict from its `decide`")
    return verdict


def _is_transformed() -> bool:
    """Whether a torch mode or transform sees operations: it must not see the copies made here."""
    return _dispatch_modes() > 0 or _functorch_transform() is not None
