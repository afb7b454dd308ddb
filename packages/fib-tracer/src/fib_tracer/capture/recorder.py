"""Recorder of the calls of one definition: from a call to an entry whose copies are pending.

A call first runs the generated callback (`binding`), which returns at once if calls of these shapes are not wanted any
more. `Recorder.record` then checks the call against the definition, reads its axes, asks the filter policy, and copies
tensors only if the policy keeps the call. The storage thread calls `Recorder.finish` when the copies are done. Nothing
here raises into the caller.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import attrs
import torch
from fib_compile.device import torch_dtype
from fib_schema import AxisError, Definition

from ..config import TracingConfig
from ..errors import InvalidSetting
from ..policies.calls import RANDOM, Call, WorkloadEntry
from ..policies.filtering import FilterPolicy, Verdict
from ..stats import CallCounters, ErrorLog
from . import binding
from .binding import Callback
from .copies import ByteBudget, Copier, PendingCopy, Reservation

_MAX_FULL_KEYS = 65_536
"""Combinations of shapes that are remembered as not wanted any more."""
_MAX_KNOWN_AXES = 4096
"""Combinations of shapes whose axes are remembered."""
_MAX_DEFERRED = 64
"""Calls whose probed values are being copied while the policy waits for them."""
ENTRY_BYTES = 4096
"""Bytes of the budget for an entry beside its tensors."""
_dispatch_modes = torch._C._len_torch_dispatch_stack  # noqa: SLF001 torch has no public names for these two
_functorch_transform = torch._C._functorch.peek_interpreter_stack  # noqa: SLF001 likewise
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


@attrs.frozen
class CaptureContext:
    """State that all recorders of a runtime share."""

    enqueue: Callable[[PendingEntry], None]
    """Passes an entry to the storage thread."""
    request_flush: Callable[[], None]
    """Tells the storage thread not to wait for more entries: memory is needed."""
    budget: ByteBudget
    copier: Copier
    errors: ErrorLog
    is_capturing: Callable[[], bool]
    """Whether the current CUDA stream captures a graph."""
    on_graph_call: Callable[[Recorder, tuple[Any, ...]], bool]
    """Receives a call that a graph captures; False if it is not wanted."""
    wait_seconds: float = 0.0
    """Longest wait of a call for memory in the budget; 0 drops it immediately."""


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
        self._full_keys: set[Any] = set()
        self._scopes: list[dict[str, Any]] = []
        """Of the callbacks: call sites hold on to the callbacks, so changes are written to their scopes."""
        self.renew_after_fork()

    def renew_after_fork(self) -> None:
        """Start without calls, entries and locks of the parent process."""
        self.lock = threading.RLock()  # a policy or a signal handler may call a traced function
        self.counters = CallCounters()
        self.policy.reset()
        self._full_keys.clear()
        for scope in self._scopes:
            scope.update(_is_closed=False, _count=self.counters.count)
        self._known_axes: dict[Any, tuple[list[Any], Mapping[str, int]]] = {}
        self._is_closed = False
        self._order = 0
        self._deferred = 0

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
            "_full_keys": self._full_keys,
            "_is_closed": self._is_closed,
            "_count": self.counters.count,
            "_key_errors": Exception,  # a shape may be a property of any object
            "_record": self.record,
        }
        with self.lock:
            self._scopes.append(scope)
        return binding.compile_callback(
            self.definition, positions, len(names), scope, has_content_key=self._has_content_key
        )

    def record(self, args: tuple[Any, ...], key: Any = None) -> None:
        """Record a call if the policy keeps it; errors are reported and not raised.

        Args:
            args: The definition's inputs, in order.
            key: Identifies calls of these shapes once they are not wanted any more; None if they cannot be identified.
        """
        try:
            if self._context.is_capturing():
                if not self._context.on_graph_call(self, args):
                    self.counters.count_dropped("captured in a graph")
                return
            if _is_transformed():
                self.counters.count_dropped("under a mode or a transform of torch")
                return
            if self._has_content_key and self._has_scalar_tensors(args):
                key = None  # the key would hold the caller's tensor, and not its value
            verdict = self._filter(args, key)
            if key is not None and (verdict is Verdict.FULL or (verdict is Verdict.KEEP and self._has_content_key)):
                self._add_full_key(key)
        except Exception as error:  # noqa: BLE001 tracing must not make an engine's call fail
            self.counters.count_dropped("errors")
            self._context.errors.report(f"{self.definition.name}: {type(error).__name__}", error)

    def _has_scalar_tensors(self, args: tuple[Any, ...]) -> bool:
        pairs = zip(self._dtypes.values(), args, strict=True)
        return any(dtype is None and isinstance(value, torch.Tensor) for dtype, value in pairs)

    def _add_full_key(self, key: Any) -> None:
        if len(self._full_keys) < _MAX_FULL_KEYS:
            self._full_keys.add(key)

    def _close(self) -> None:
        self._is_closed = True
        for scope in self._scopes:
            scope["_is_closed"] = True

    def _filter(self, args: tuple[Any, ...], key: Any) -> Verdict:
        inputs = dict(zip(self.definition.inputs, args, strict=True))
        if not self._passes_fast_check(*args) and (problem := binding.mismatch(self.definition, self._dtypes, inputs)):
            return self._reject(problem)
        try:
            axes = self._axes_of(args, key)
        except AxisError as error:
            return self._reject(str(error))
        call = Call(self.definition, axes, inputs)
        return self._filter_with_probes(call) if self._probes else self._keep_if_wanted(call)

    def _filter_with_probes(self, call: Call) -> Verdict:
        """Read the elements that the policy needs; those on a device are copied with the call's tensors."""
        inputs = call.inputs
        probes = {label: element for label, element in self._probes.items() if inputs[element[0]] is not None}
        if any(inputs[name].is_cuda for name, _ in probes.values()):
            return self._defer(call, probes)
        probed = {label: int(inputs[name][index]) for label, (name, index) in probes.items()}
        return self._keep_if_wanted(attrs.evolve(call, probed=probed))

    def _axes_of(self, args: tuple[Any, ...], key: Any) -> Mapping[str, int]:
        """The axes' sizes. The key holds one input's shape per axis, so a known key still compares all shapes."""
        shapes = [getattr(value, "shape", None) for value in args]
        known = self._known_axes.get(key)
        if known is not None and known[0] == shapes:
            return known[1]
        axes = MappingProxyType(self.definition.get_axes_values(shapes))  # read-only: policies see it
        if key is not None:
            if len(self._known_axes) >= _MAX_KNOWN_AXES:
                self._known_axes.clear()
            self._known_axes[key] = shapes, axes
        return axes

    def _reject(self, problem: str) -> Verdict:
        self.counters.count_dropped("does not fit the definition")
        self._context.errors.report(f"{self.definition.name}: does not fit", problem)
        return Verdict.SKIP

    # -- keeping a call ------------------------------------------------------------------------------

    def _keep_if_wanted(self, call: Call) -> Verdict:
        tensors = self._tensors_to_copy(call)
        deadline: float | None = None
        while True:
            with self.lock:
                verdict = self.policy.decide(call)
                if verdict is Verdict.CLOSED:
                    self._close()
                if verdict is not Verdict.KEEP:
                    return _checked(verdict)
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
        elements = {_PROBE + label: _element(call.inputs[name], index) for label, (name, index) in probes.items()}
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
            self._copy(entry, reservation, _without_memory(call))
        except BaseException:
            with self.lock:
                self._deferred -= 1
            raise
        return Verdict.SKIP

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
        return WorkloadEntry(call.definition, call.axes, inputs, self._order - 1, size_bytes, ticket, call.probed)

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
            if (verdict := self.policy.decide(call)) is not Verdict.KEEP:
                _checked(verdict)
                return None
            entry = self._admit(call, size_bytes)
        self.counters.count_kept()
        return entry


def _element(tensor: torch.Tensor, index: int) -> torch.Tensor:
    return tensor[-1:] if index == -1 else tensor[index : index + 1]


def _without_memory(call: Call) -> Call:
    """A call with ``meta`` tensors: the caller's tensors may be large and must not be kept alive."""
    shown = {
        name: torch.empty_like(value, device="meta") if isinstance(value, torch.Tensor) else value
        for name, value in call.inputs.items()
    }
    return attrs.evolve(call, inputs=shown)


def _checked(verdict: object) -> Verdict:
    if not isinstance(verdict, Verdict):
        raise InvalidSetting("filter_policy", verdict, "a Verdict from its `decide`")
    return verdict


def _is_transformed() -> bool:
    """Whether a torch mode or transform sees operations: it must not see the copies made here."""
    return _dispatch_modes() > 0 or _functorch_transform() is not None
