"""Recorder of the calls of one definition: from a call to an entry whose copies are pending.

A call first runs the generated callback (`binding`), which only counts it if calls of these shapes are not wanted any
more. `Recorder.record` then checks the call against the definition, reads its axes, counts it, asks the filter policy,
and copies tensors if the policy keeps the call. A policy that needs values (`FilterPolicy.value_probes`) decides when
these have been copied, in the storage thread, which calls `Recorder.finish` for all entries. Nothing here raises into
the caller. Calls that a CUDA graph captures are only counted: their tensors have no values yet.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import attrs
import torch
from fib_compile.device import torch_dtype
from fib_schema import AxisError, Definition
from fib_schema.settings import InvalidSetting

from . import binding
from .binding import Callback
from .copies import ByteBudget, Copier, Copies, Reservation
from .counts import CallCounts, ErrorLog, Increment
from .policies import RANDOM, Call, Decision, FilterPolicy, WorkloadEntry
from .settings import TracingConfig

_MAX_KNOWN_AXES = 4096
"""Combinations of shapes whose axes are remembered."""
ENTRY_BYTES = 4096
"""Bytes of the budget for an entry beside its tensors."""
_REFUSALS = 64
"""Calls in a row that a policy refuses before probes become rarer."""
_MAX_PERIOD = 251
"""The largest distance of two probed calls: prime, so that it hits all layers of a model in turn."""
_dispatch_modes = torch._C._len_torch_dispatch_stack  # noqa: SLF001 torch has no public names for these two
_functorch_transform = torch._C._functorch.peek_interpreter_stack  # noqa: SLF001 likewise
_Axes: TypeAlias = Mapping[str, int]
_LAST_OF_KEY = (Decision.FULL, Decision.CLOSED)
_PROBE = "probe "
"""Prefix of the names of elements that are copied for the policy alone."""


@attrs.frozen
class CaptureContext:
    """State that all recorders of a runtime share."""

    enqueue: Callable[[PendingEntry], None]
    """Passes an entry to the storage thread."""
    start_storage: Callable[[], object]
    """Starts the storage thread, if there is none, which saves the counts of calls from time to time."""
    budget: ByteBudget
    copier: Copier
    errors: ErrorLog
    probes_all: bool = False
    """Whether policies that need values are asked about every call, also after many refusals."""


@attrs.define(eq=False)  # not frozen: that takes three times as long to make, and one is made for each kept call
class PendingEntry:
    """An entry on its way to the storage thread; its copies may not be finished."""

    recorder: Recorder
    entry: WorkloadEntry
    copies: Copies
    undecided: Call | None = None
    """The call, if the policy decides on it after probed values have been copied."""


class Recorder:
    """Records the calls of one definition."""

    def __init__(self, definition: Definition, config: TracingConfig, context: CaptureContext) -> None:
        self.definition = definition
        self.policy: FilterPolicy = config.make_filter_policy()
        self.policy.reset()
        self.lock = threading.RLock()  # a policy may call a traced function
        self._dump = config.make_dump_policy()
        self._context = context
        self._probes = dict(self.policy.value_probes(definition))
        self._backoff = ProbeBackoff()
        self._dtypes = {n: None if s.shape is None else torch_dtype(s.dtype) for n, s in definition.inputs.items()}
        self._scalars = {n: binding.scalar_type(s) for n, s in definition.inputs.items() if s.shape is None}
        self._always_dumped = self._dump.always_dumped(definition)
        dumped = self._dtypes if self._always_dumped is None else self._always_dumped
        may_dump = any(self._dtypes.get(name) is not None for name in dumped)
        self._has_content_key = not may_dump and self.policy.is_final
        """Whether calls with equal keys are equal workloads, so that one of each is enough (0.0 and -0.0 are one)."""
        self._max_kept = math.inf if config.max_kept is None else config.max_kept
        axes = definition.var_axes_bindings
        counted = tuple(axis for axis in definition.var_axes if axis in axes)
        self.counts = CallCounts(counted, context.start_storage)
        self._known_axes: dict[Any, tuple[list[Any], _Axes, Increment]] = {}
        self._is_closed = False
        self._order = 0

    # -- receiving a call ----------------------------------------------------------------------------

    def bind(self, names: Sequence[str]) -> Callback | None:
        """The callback for the calls of a function."""
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
            found = None if self._is_unrecordable() else self._identify(args, key)
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
            self.counts.count_dropped("errors")
            self._context.errors.report(f"{self.definition.name}: {type(error).__name__}", error)

    def _has_scalar_tensors(self, args: tuple[Any, ...]) -> bool:
        pairs = zip(self._dtypes.values(), args, strict=True)
        return any(dtype is None and isinstance(value, torch.Tensor) for dtype, value in pairs)

    def _is_unrecordable(self) -> bool:
        """Whether a call cannot be recorded, which is counted."""
        if is_capturing():
            self.counts.count_dropped("captured in a graph")
            return True
        if _dispatch_modes() > 0 or _functorch_transform() is not None:  # they must not see the copies made here
            self.counts.count_dropped("under a mode or a transform of torch")
            return True
        return False

    def _identify(self, args: tuple[Any, ...], key: Any) -> tuple[Call, Increment] | None:
        """A call with its axes, and its counter; None, which is reported, if it does not fit the definition."""
        inputs = dict(zip(self.definition.inputs, args, strict=True))
        problem = binding.mismatch(self.definition, self._dtypes, inputs)
        try:
            if problem is None:
                axes, increment = self._size_of(args, inputs, key)
                return Call(self.definition, axes, inputs), increment
        except AxisError as error:
            problem = str(error)
        self.counts.count_dropped("does not fit the definition")
        self._context.errors.report(f"{self.definition.name}: does not fit", problem)
        return None

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
        strides, problem = binding.call_layout(inputs)
        if problem is None:
            return self.counts.counter(axes, strides)
        self._context.start_storage()
        return self.counts.count_other

    def _filter(self, call: Call, key: Any, increment: Increment) -> None:
        """Record a call if it is wanted; if calls of its key are not wanted any more, only count them from now on."""
        decision = Decision.CLOSED if self._is_closed else self._decision_on(call)
        is_last = decision in _LAST_OF_KEY or (decision is Decision.KEEP and self._has_content_key)
        if key is not None and is_last:
            self.counts.skip(key, increment)

    def _decision_on(self, call: Call) -> Decision:
        if self._order >= self._max_kept:
            self._is_closed = True
            problem = f"{self._max_kept} calls were kept (max_kept); later ones are only counted"
            self._context.errors.report(f"{self.definition.name}: max_kept", problem)
            return Decision.CLOSED
        if not self._probes:
            return self._keep_if_wanted(call, {})
        if not (self._context.probes_all or self._backoff.is_due()):
            return Decision.SKIP
        return self._keep_if_wanted(call, self._probed_elements(call))

    def _probed_elements(self, call: Call) -> dict[str, torch.Tensor]:
        """The elements whose values the policy needs, as tensors."""
        inputs = ((label, call.inputs[name], index) for label, (name, index) in self._probes.items())
        return {_PROBE + label: tensor[index:][:1] for label, tensor, index in inputs if tensor is not None}

    # -- keeping a call ------------------------------------------------------------------------------

    def _keep_if_wanted(self, call: Call, probed: Mapping[str, torch.Tensor]) -> Decision:
        """Copy the tensors of a call that the policy keeps, or that it decides on when `probed` has been copied."""
        tensors = {**self._tensors_to_copy(call), **probed}
        with self.lock:
            decision = Decision.KEEP if probed else self._decide(call)
            if decision is not Decision.KEEP:
                return decision
            if self._has_unusable_layout(call):
                return Decision.SKIP
            reservation = self._context.copier.reserve(tensors, ENTRY_BYTES)
            if reservation is None:
                self.counts.count_dropped("no room in the byte budget")
                return Decision.SKIP
            entry = self._entry(call, reservation, is_decided=not probed)
        copies = self._context.copier.copy(reservation)
        self._context.enqueue(PendingEntry(self, entry, copies, _without_memory(call) if probed else None))
        return Decision.SKIP if probed else Decision.KEEP

    def _decide(self, call: Call) -> Decision:
        decision = self.policy.decide(call)
        if not isinstance(decision, Decision):
            raise InvalidSetting("filter_policy", decision, "a Decision from its `decide`")
        self._is_closed = self._is_closed or decision is Decision.CLOSED
        return decision

    def _has_unusable_layout(self, call: Call) -> bool:
        """Whether no workload can have the layout of a call, which is reported: its workload would be another one."""
        _, problem = binding.call_layout(call.inputs)
        if problem is not None:
            self.counts.count_dropped("layout")
            self._context.errors.report(f"{self.definition.name}: layout", f"{problem}; such calls are only counted")
        return problem is not None

    def _entry(self, call: Call, reservation: Reservation, *, is_decided: bool) -> WorkloadEntry:
        try:
            if is_decided:
                return self._admit(call, reservation.size_bytes)
            return WorkloadEntry(call.definition, call.axes, {}, -1, reservation.size_bytes)
        except BaseException:
            self._context.copier.cancel(reservation)
            raise

    def _admit(self, call: Call, size_bytes: int) -> WorkloadEntry:
        self._order += 1
        ticket = self.policy.admit(call)
        inputs = self._uncopied_inputs(call.inputs)
        strides, _ = binding.call_layout(call.inputs)
        self.counts.count_kept()
        order = self._order - 1
        return WorkloadEntry(call.definition, call.axes, inputs, order, size_bytes, ticket, call.probed, strides)

    def _uncopied_inputs(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The recorded value of inputs that are not copied: a number, or `RANDOM` for a tensor."""
        recorded: dict[str, Any] = {}
        for name, value in inputs.items():
            kind = self._scalars.get(name)
            if kind is not None and not isinstance(value, torch.Tensor | None):
                recorded[name] = binding.canonical_scalar(kind, value)
            elif value is not None or not self.definition.inputs[name].optional:
                recorded[name] = RANDOM  # a scalar that is passed as a tensor comes with the copies
        return recorded

    def _tensors_to_copy(self, call: Call) -> dict[str, torch.Tensor]:
        """The tensors that the dump policy chooses, and scalars that are passed as tensors."""
        names = self._dump.dump(call.inputs) if self._always_dumped is None else self._always_dumped
        values = {name: call.inputs[name] for name in (*names, *self._scalars)}
        return {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}

    # -- in the storage thread -----------------------------------------------------------------------

    def finish(self, pending: PendingEntry) -> WorkloadEntry | None:
        """Wait for an entry's copies and return the entry with them; None if the policy refuses an undecided call.

        The entry's bytes of the budget are released unless it is returned.
        """
        entry: WorkloadEntry | None = pending.entry
        try:
            tensors = pending.copies.wait()
            if pending.undecided is not None:
                entry = self._decide_late(pending.undecided, pending.entry.size_bytes, tensors)
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
        return entry

    def _decide_late(self, call: Call, size_bytes: int, tensors: dict[str, torch.Tensor]) -> WorkloadEntry | None:
        labels = [name for name in tensors if name.startswith(_PROBE)]
        call = attrs.evolve(call, probed={label.removeprefix(_PROBE): int(tensors.pop(label)) for label in labels})
        with self.lock:
            if self._order >= self._max_kept or self._decide(call) is not Decision.KEEP:
                return None
            self._backoff.reset()
            return self._admit(call, size_bytes)


# -- probes ------------------------------------------------------------------------------------------


class ProbeBackoff:
    """Chooses the calls that are probed: all of them until `_REFUSALS` in a row are refused, then fewer and fewer.

    A probe costs as much as a kept call: its tensors are copied before the policy can refuse it. The distance of two
    probed calls doubles with each refusal, up to `_MAX_PERIOD` calls. A call that the policy keeps makes it 1 again.
    """

    def __init__(self) -> None:
        self._refusals = 0
        self._skips = 0

    def is_due(self) -> bool:
        """Whether a call is to be probed; called once for each call. A probe counts as refused until `reset`."""
        if self._skips > 0:
            self._skips -= 1
            return False
        self._refusals += 1
        doublings = self._refusals - _REFUSALS
        self._skips = 0 if doublings <= 0 else min(1 << min(doublings, 8), _MAX_PERIOD) - 1
        return True

    def reset(self) -> None:
        """Probe all calls again, because the policy has kept one."""
        self._refusals = self._skips = 0


def _without_memory(call: Call) -> Call:
    """A call with ``meta`` tensors: the caller's tensors may be large and must not be kept alive."""
    shown = dict(call.inputs)
    for name, value in call.inputs.items():
        if isinstance(value, torch.Tensor):
            shown[name] = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    return attrs.evolve(call, inputs=shown)


def is_capturing() -> bool:
    """Whether the current stream of this thread captures a graph; False before CUDA is initialized."""
    return bool(torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())  # type: ignore[no-untyped-call]
