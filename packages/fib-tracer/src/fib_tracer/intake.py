"""Intake: takes in the calls of one definition.

A call first meets generated code that looks its shapes up among those that are full. Whatever is not
full is considered: its axes are read, the policy is asked, and only if it wants the call is anything
copied. Nothing here raises into the caller.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import attrs
import torch
from fib_apply.stats import Tally
from fib_compile.device import torch_dtype
from fib_schema import AxisError, Definition, TensorSpec

from .budget import Budget
from .calls import RANDOM, Call, WorkloadEntry
from .config import TracingConfig
from .copies import DeviceCopier, Landing, copy_on_cpu
from .filtering import FilterPolicy, Verdict
from .tallies import DefinitionStats, Troubles

Note: TypeAlias = Callable[..., None]

_MOST_FULL = 65_536
"""Combinations of shapes that are remembered as full."""
_MOST_UNDECIDED = 64
"""Calls whose values are on their way while the policy waits for them."""
ENTRY_BYTES = 1024
"""What an entry takes beside its tensors."""
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_PEEK = "peek "
"""Before the names of elements that are copied for the policy alone."""


@attrs.frozen(eq=False)
class Pending:
    """A call whose copies are on their way to the thread that writes."""

    intake: Intake
    entry: WorkloadEntry
    landing: Landing | None
    undecided: Call | None = None
    """The call, where the policy needs values that are among the copies."""


@attrs.frozen
class Surroundings:
    """What all intakes of a runtime share."""

    put: Callable[[Pending], None]
    """Hands an entry to the thread that writes."""
    budget: Budget
    copier: DeviceCopier
    troubles: Troubles
    is_capturing: Callable[[], bool]
    """Whether the current CUDA stream records a graph."""
    on_capture: Callable[[Intake, tuple[Any, ...]], bool]
    """Takes a captured call, whose tensors will have values later; False if nobody asked for these."""
    wait_seconds: float = 0.0
    """How long a call may wait for room in the budget; 0 drops it at once."""


class Intake:
    """Takes in the calls of one definition.

    Args:
        definition: Whose calls these are.
        config: Its settings.
        surroundings: What all intakes share.
    """

    def __init__(self, definition: Definition, config: TracingConfig, surroundings: Surroundings) -> None:
        self.definition = definition
        self.policy: FilterPolicy = config.make_filter_policy()
        self._dump = config.make_dump_policy()
        self._around = surroundings
        self._peeks = dict(self.policy.peeks(definition))
        self._dtypes = {n: None if s.shape is None else torch_dtype(s.dtype) for n, s in definition.inputs.items()}
        may_dump = self._dump.may_dump(definition)
        self._is_content_by_key = not may_dump and self.policy.is_final
        """Whether calls with an equal key are equal workloads: then one of each is enough."""
        self._full: set[Any] = set()
        self._scopes: list[dict[str, Any]] = []
        """Of the notes: those who route hold on to these, so that they are told of changes."""
        self.renew()

    def renew(self) -> None:
        """Begin anew, without locks that somebody may hold: in a forked process, or when a runtime starts again."""
        self.lock = threading.Lock()
        self._counted = Tally()
        self.policy.reset()
        self._full.clear()
        for scope in self._scopes:
            scope.update(_closed=False, _count=self._counted.add)
        self._is_closed = False
        self._order = 0
        self._undecided = 0
        self._dropped: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()

    # -- seeing a call -------------------------------------------------------------------------------

    def note(self, names: Sequence[str]) -> Note | None:
        """What is to be called with the arguments of each call of a function.

        Args:
            names: Of the function's parameters.

        Returns:
            The function; None if the definition's inputs are not among them, which is reported.
        """
        places = places_of(self.definition, names)
        if places is None:
            wanted = ", ".join(self.definition.inputs)
            self._around.troubles.report(
                f"{self.definition.name}: parameters", f"({', '.join(names)}) are not ({wanted})"
            )
            return None
        scope: dict[str, Any] = {
            "_full": self._full,
            "_closed": self._is_closed,
            "_count": self._counted.add,
            "_odd": (AttributeError, TypeError),
            "_take": self.take,
        }
        with self.lock:
            self._scopes.append(scope)
        exec(compile(self._source(len(names), places), "<fib_tracer note>", "exec"), scope)  # noqa: S102 made of numbers
        note: Note = scope["note"]
        return note

    def _source(self, count: int, places: Sequence[int | None]) -> str:
        """The generated code; parameters are ``p0`` and so on, for the caller passes them by position."""
        key = self._key_source(places)
        args = ", ".join("None" if place is None else f"p{place}" for place in places)
        return f"""
def note({", ".join(f"p{index}" for index in range(count))}):
    _count()
    if _closed:
        return
    try:
        key = {key}
        if key in _full:
            return
    except _odd:
        key = None
    _take(({args},), key)
"""

    def _key_source(self, places: Sequence[int | None]) -> str:
        """What decides on all axes: the shape of an input for each; and scalars, where they are part of the content."""
        named = dict(zip(self.definition.inputs, places, strict=True))
        parts = []
        for name in dict.fromkeys(name for name, _ in self.definition.var_axes_bindings.values()):
            if (place := named[name]) is not None:
                parts.append(
                    f"None if p{place} is None else p{place}.shape" if self._is_optional(name) else f"p{place}.shape"
                )
        if self._is_content_by_key:
            specs = self.definition.inputs
            absent = [f"p{named[n]} is None" for n in named if named[n] is not None and self._is_optional(n)]
            parts += [f"p{named[n]}" for n in named if named[n] is not None and specs[n].shape is None] + absent
        return parts[0] if len(parts) == 1 else f"({''.join(part + ', ' for part in parts)})"

    def _is_optional(self, name: str) -> bool:
        return self.definition.inputs[name].optional

    def count(self) -> None:
        """A call that comes another way than through a note."""
        self._counted.add()

    def take(self, args: tuple[Any, ...], key: Any = None) -> None:
        """Consider a call; whatever goes wrong is reported and not raised.

        Args:
            args: The definition's inputs, in order.
            key: What it is remembered by if calls like it are full; None for not at all.
        """
        try:
            if self._around.is_capturing():
                if not self._around.on_capture(self, args):
                    self._drop("captured in a graph")
                return
            verdict = self._consider(args)
            if key is not None and (verdict is Verdict.FULL or (verdict is Verdict.KEEP and self._is_content_by_key)):
                self._remember(key)
        except Exception as error:  # noqa: BLE001 an engine's call must not fail because somebody watches
            self._drop("errors")
            self._around.troubles.report(f"{self.definition.name}: {type(error).__name__}", error)

    def _remember(self, key: Any) -> None:
        if len(self._full) < _MOST_FULL:
            self._full.add(key)

    def _close(self) -> None:
        self._is_closed = True
        for scope in self._scopes:
            scope["_closed"] = True

    def _consider(self, args: tuple[Any, ...]) -> Verdict:
        inputs = dict(zip(self.definition.inputs, args, strict=True))
        if (problem := self._problem(inputs)) is not None:
            self._unfit(problem)
            return Verdict.SKIP
        try:
            axes = self.definition.get_axes_values_from_inputs(args)
        except AxisError as error:
            self._unfit(str(error))
            return Verdict.SKIP
        call = Call(self.definition, axes, inputs)
        peeks = {label: place for label, place in self._peeks.items() if inputs[place[0]] is not None}
        if any(inputs[name].device.type != "cpu" for name, _ in peeks.values()):
            return self._keep_undecided(call, peeks)
        if peeks:
            peeked = {label: int(inputs[name][index]) for label, (name, index) in peeks.items()}
            call = attrs.evolve(call, peeked=peeked)
        return self._keep_if_wanted(call)

    def _problem(self, inputs: Mapping[str, Any]) -> str | None:
        """Why a call is none of the definition; None if it is one."""
        for name, value in inputs.items():
            dtype = self._dtypes[name]
            if value is None:
                if not self._is_optional(name):
                    return f"{name} is None"
            elif dtype is None:
                if not isinstance(value, (bool, int, float)) and not _is_single(value):
                    return f"{name} is no number: {type(value).__name__}"
            elif type(value) not in _PLAIN:
                return f"{name} is no plain tensor: {type(value).__name__}"
            elif value.dtype is not dtype:
                return f"{name} is {value.dtype}, not {dtype}"
        return None

    def _unfit(self, problem: str) -> None:
        self._drop("does not fit the definition")
        self._around.troubles.report(f"{self.definition.name}: does not fit", problem)

    # -- keeping it ----------------------------------------------------------------------------------

    def _keep_if_wanted(self, call: Call) -> Verdict:
        chosen = self._chosen(call)
        size = ENTRY_BYTES + sum(tensor.nbytes for tensor in chosen.values())
        while True:
            with self.lock:
                verdict = self.policy.wants(call)
                if verdict is Verdict.CLOSED:
                    self._close()
                if verdict is not Verdict.KEEP:
                    return verdict
                entry = self._admit(call, size) if self._around.budget.take(size) else None
            if entry is not None:
                self._send(entry, chosen, {})
                return verdict
            if not self._around.budget.wait_for(size, self._around.wait_seconds):
                self._drop("no room in the byte budget")
                return Verdict.SKIP

    def _keep_undecided(self, call: Call, peeks: Mapping[str, tuple[str, int]]) -> Verdict:
        """Copy what would be kept, and have the policy decide when the elements that it needs are there."""
        chosen = self._chosen(call)
        extra = {_PEEK + label: _element(call.inputs[name], index) for label, (name, index) in peeks.items()}
        size = ENTRY_BYTES + sum(tensor.nbytes for tensor in (*chosen.values(), *extra.values()))
        with self.lock:
            is_taken = self._undecided < _MOST_UNDECIDED and self._around.budget.take(size)
            self._undecided += is_taken
        if not is_taken:
            self._drop("too many undecided")
            return Verdict.SKIP
        self._send(WorkloadEntry(self.definition, call.axes, {}, -1, size), chosen, extra, call)
        return Verdict.SKIP

    def _admit(self, call: Call, size: int) -> WorkloadEntry:
        self._order += 1
        ticket = self.policy.admit(call)
        return WorkloadEntry(call.definition, call.axes, _recorded(call), self._order - 1, size, ticket, call.peeked)

    def _chosen(self, call: Call) -> dict[str, torch.Tensor]:
        """The tensors to copy: what the policy says, and numbers that are given as tensors."""
        names = set(self._dump.dump(call.inputs))
        return {
            name: value
            for name, value in call.inputs.items()
            if isinstance(value, torch.Tensor) and (name in names or self._dtypes[name] is None)
        }

    def _send(
        self,
        entry: WorkloadEntry,
        chosen: Mapping[str, torch.Tensor],
        extra: Mapping[str, torch.Tensor],
        undecided: Call | None = None,
    ) -> None:
        try:
            landing = self._copy({**chosen, **extra})
        except BaseException:
            self._release(entry, undecided)
            raise
        if landing is None:
            self._release(entry, undecided)
            self._drop("no pinned memory")
            return
        if undecided is None:
            self._counts["kept"] += 1
        self._around.put(Pending(self, entry, landing, undecided))

    def _copy(self, tensors: Mapping[str, torch.Tensor]) -> Landing | None:
        on_device = {name: tensor for name, tensor in tensors.items() if tensor.is_cuda}
        if not on_device:
            return copy_on_cpu(tensors)
        if len({tensor.device for tensor in on_device.values()}) > 1:
            raise ValueError("tensors on several devices")
        landing = self._around.copier.copy(on_device)
        others = {name: tensor for name, tensor in tensors.items() if name not in on_device}
        return landing if landing is None or not others else _Both(copy_on_cpu(others), landing)

    # -- when the copies are there: in the thread that writes ----------------------------------------

    def land(self, pending: Pending) -> WorkloadEntry | None:
        """Wait for an entry's copies; returns it with them, or None if the policy does not want it."""
        entry, call = pending.entry, pending.undecided
        assert pending.landing is not None
        try:
            tensors = pending.landing.wait()
        except BaseException:
            self._release(entry, call)
            raise
        if call is not None:
            decided = self._decide(call, entry, tensors)
            if decided is None:
                return None
            entry = decided
        for name, tensor in tensors.items():
            entry.inputs[name] = tensor.item() if self._dtypes[name] is None else tensor  # type: ignore[index]
        return entry

    def _decide(self, call: Call, entry: WorkloadEntry, tensors: dict[str, torch.Tensor]) -> WorkloadEntry | None:
        labels = [name for name in tensors if name.startswith(_PEEK)]
        peeked = {label.removeprefix(_PEEK): int(tensors.pop(label)) for label in labels}
        call = attrs.evolve(call, peeked=peeked)
        with self.lock:
            self._undecided -= 1
            if self.policy.wants(call) is Verdict.KEEP:
                self._counts["kept"] += 1
                return self._admit(call, entry.size_bytes)
        self._around.budget.give(entry.size_bytes)
        return None

    def _release(self, entry: WorkloadEntry, undecided: Call | None) -> None:
        """Give back what was taken for a call whose copies never came."""
        self._around.budget.give(entry.size_bytes)
        if undecided is not None:
            with self.lock:
                self._undecided -= 1

    # -- counting ------------------------------------------------------------------------------------

    def _drop(self, reason: str) -> None:
        self._dropped[reason] += 1

    def stored(self, new: int, equal: int) -> None:
        """Count what became of kept calls."""
        self._counts["stored"] += new
        self._counts["equal"] += equal

    def lost(self, reason: str, count: int = 1) -> None:
        """Count kept calls that were not stored."""
        self._dropped[reason] += count

    def stats(self) -> DefinitionStats:
        """What became of the calls so far."""
        counts = self._counts
        return DefinitionStats(
            int(self._counted), counts["kept"], counts["stored"], counts["equal"], dict(self._dropped)
        )


@attrs.frozen
class _Both:
    """Copies on the CPU beside some from a device."""

    first: Landing
    second: Landing

    def wait(self) -> dict[str, torch.Tensor]:
        return {**self.first.wait(), **self.second.wait()}


def places_of(definition: Definition, names: Sequence[str]) -> list[int | None] | None:
    """Where each input of a definition is among a function's parameters; None if one is missing.

    By name where all required inputs are among the names, else by position behind ``self``, as calls are routed.
    """
    index = {name: place for place, name in enumerate(names)}
    required = [name for name, spec in definition.inputs.items() if not spec.optional]
    if all(name in index for name in required):
        return [index.get(name) for name in definition.inputs]
    free = [
        place for place, name in enumerate(names) if name not in definition.inputs and name not in definition.outputs
    ]
    if names and names[0] in ("self", "cls"):
        free = free[1:]
    places = []
    for name, spec in definition.inputs.items():
        place = index[name] if name in index else free.pop(0) if free else None
        if place is None and not spec.optional:
            return None
        places.append(place)
    return places


def _recorded(call: Call) -> dict[str, Any]:
    """What is recorded of inputs that are not copied: numbers, and that a tensor was there."""
    given = {name: value for name, value in call.inputs.items() if value is not None}
    return {
        name: RANDOM if isinstance(value, torch.Tensor) else _number(call.definition.inputs[name], value)
        for name, value in given.items()
    }


def _number(spec: TensorSpec, value: Any) -> Any:
    """Equal numbers in one spelling: 1 and 1.0 are the same scale."""
    is_float = not spec.is_integer and spec.dtype != "bool"
    return float(value) if is_float and type(value) is int else value


def _is_single(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() == 1


def _element(tensor: torch.Tensor, index: int) -> torch.Tensor:
    return tensor[-1:] if index == -1 else tensor[index : index + 1]
