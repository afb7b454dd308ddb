"""Intake: takes in the calls of one definition.

A call first meets generated code that looks its shapes up among those that are full. Whatever is not
full is considered: its axes are read, the policy is asked, and only if it wants the call is anything
copied. Nothing here raises into the caller.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import attrs
import torch
from fib_apply.stats import Tally
from fib_compile.device import torch_dtype
from fib_schema import AxisError, Definition

from ..config import TracingConfig
from ..errors import InvalidSetting
from ..policies.calls import RANDOM, Call, WorkloadEntry
from ..policies.filtering import FilterPolicy, Verdict
from ..tallies import DefinitionStats, Troubles
from .budget import Budget
from .copies import Copier, Landing, Room
from .fitting import kind_of_number, number, places_of, problem_of, usual_check
from .notes import Note, compiled_note, note_source

_MOST_FULL = 65_536
"""Combinations of shapes that are remembered as full."""
_MOST_KNOWN = 4096
"""Combinations of shapes whose axes are remembered."""
_MOST_UNDECIDED = 64
"""Calls whose values are on their way while the policy waits for them."""
ENTRY_BYTES = 4096
"""What an entry takes beside its tensors."""
_modes = torch._C._len_torch_dispatch_stack  # noqa: SLF001 torch has no public names for these two
_transform = torch._C._functorch.peek_interpreter_stack  # noqa: SLF001 likewise
_PEEK = "peek "
"""Before the names of elements that are copied for the policy alone."""


@attrs.define(eq=False)  # not frozen: that takes three times as long to make, and one is made for each kept call
class Pending:
    """A call whose copies are on their way to the thread that writes."""

    intake: Intake
    entry: WorkloadEntry
    landing: Landing
    undecided: Call | None = None
    """The call, where the policy needs values that are among the copies."""


@attrs.frozen
class Surroundings:
    """What all intakes of a runtime share."""

    put: Callable[[Pending], None]
    """Hands an entry to the thread that writes."""
    hurry: Callable[[], None]
    """Tells that thread that the room is needed."""
    budget: Budget
    copier: Copier
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
        self._numbers = {n: kind_of_number(s) for n, s in definition.inputs.items() if s.shape is None}
        self._optional = [name for name, spec in definition.inputs.items() if spec.optional]
        self._all_random: dict[str, Any] = dict.fromkeys(definition.inputs, RANDOM)
        self._always_dumped = self._dump.always_dumped(definition)
        self._is_usual = usual_check(self._dtypes.values())
        may_dump = self._dump.may_dump(definition)
        self._is_content_by_key = not may_dump and self.policy.is_final
        """Whether calls with an equal key are equal workloads: then one of each is enough (0.0 and -0.0 are one)."""
        self._full: set[Any] = set()
        self._scopes: list[dict[str, Any]] = []
        """Of the notes: those who route hold on to these, so that they are told of changes."""
        self.renew()

    def renew(self) -> None:
        """Begin anew, without locks that somebody may hold: in a forked process."""
        self.lock = threading.RLock()  # a policy or a signal handler may call what is traced
        self._counted = Tally()
        self.policy.reset()
        self._full.clear()
        for scope in self._scopes:
            scope.update(_closed=False, _count=self._counted.add)
        self._known_axes: dict[Any, tuple[list[Any], Mapping[str, int]]] = {}
        self._is_closed = False
        self._order = 0
        self._undecided = 0
        self._kept = Tally()
        self._stored = self._equal = 0
        self._dropped: dict[str, Tally] = {}

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
            "_odd": Exception,  # a shape may be a property of whatever somebody passes
            "_take": self.take,
        }
        with self.lock:
            self._scopes.append(scope)
        return compiled_note(
            note_source(self.definition, places, len(names), is_content_by_key=self._is_content_by_key), scope
        )

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
            if _is_transformed():
                self._drop("under a mode or a transform of torch")
                return
            if self._is_content_by_key and self._has_numbers_in_tensors(args):
                key = None  # a tensor's value is no part of the key, and the tensor is the caller's
            verdict = self._consider(args, key)
            if key is not None and (verdict is Verdict.FULL or (verdict is Verdict.KEEP and self._is_content_by_key)):
                self._remember(key)
        except Exception as error:  # noqa: BLE001 an engine's call must not fail because somebody watches
            self._drop("errors")
            self._around.troubles.report(f"{self.definition.name}: {type(error).__name__}", error)

    def _has_numbers_in_tensors(self, args: tuple[Any, ...]) -> bool:
        named = zip(self._dtypes.values(), args, strict=True)
        return any(dtype is None and isinstance(value, torch.Tensor) for dtype, value in named)

    def _remember(self, key: Any) -> None:
        if len(self._full) < _MOST_FULL:
            self._full.add(key)

    def _close(self) -> None:
        self._is_closed = True
        for scope in self._scopes:
            scope["_closed"] = True

    def _consider(self, args: tuple[Any, ...], key: Any) -> Verdict:
        inputs = dict(zip(self.definition.inputs, args, strict=True))
        if not self._is_usual(*args) and (problem := problem_of(self.definition, self._dtypes, inputs)):
            self._unfit(problem)
            return Verdict.SKIP
        try:
            axes = self._axes_of(args, key)
        except AxisError as error:
            self._unfit(str(error))
            return Verdict.SKIP
        call = Call(self.definition, axes, inputs)
        return self._consider_values(call) if self._peeks else self._keep_if_wanted(call)

    def _consider_values(self, call: Call) -> Verdict:
        """Read the elements that the policy needs, on a device with the copies of the call."""
        inputs = call.inputs
        peeks = {label: place for label, place in self._peeks.items() if inputs[place[0]] is not None}
        if any(inputs[name].is_cuda for name, _ in peeks.values()):
            return self._keep_undecided(call, peeks)
        peeked = {label: int(inputs[name][index]) for label, (name, index) in peeks.items()}
        return self._keep_if_wanted(attrs.evolve(call, peeked=peeked))

    def _axes_of(self, args: tuple[Any, ...], key: Any) -> Mapping[str, int]:
        """The axes' sizes; where calls with the same key were read before, shapes are compared with theirs."""
        shapes = [getattr(value, "shape", None) for value in args]
        known = self._known_axes.get(key)
        if known is not None and known[0] == shapes:
            return known[1]
        axes = MappingProxyType(self.definition.get_axes_values(shapes))  # policies see it
        if key is not None:
            if len(self._known_axes) >= _MOST_KNOWN:
                self._known_axes.clear()
            self._known_axes[key] = shapes, axes
        return axes

    def _unfit(self, problem: str) -> None:
        self._drop("does not fit the definition")
        self._around.troubles.report(f"{self.definition.name}: does not fit", problem)

    # -- keeping it ----------------------------------------------------------------------------------

    def _keep_if_wanted(self, call: Call) -> Verdict:
        chosen = self._chosen(call)
        size = ENTRY_BYTES + sum(tensor.nbytes for tensor in chosen.values())
        deadline: float | None = None
        while True:
            with self.lock:
                verdict = self.policy.wants(call)
                if verdict is Verdict.CLOSED:
                    self._close()
                if verdict is not Verdict.KEEP:
                    return _checked(verdict)
                room = self._room(size, chosen)
                entry = None if room is None else self._admit_into(room, call, size)
            if entry is not None and room is not None:
                self._kept.add()
                self._send(entry, room)
                return verdict
            deadline = time.monotonic() + self._around.wait_seconds if deadline is None else deadline
            if size > self._around.budget.size_bytes or (left := deadline - time.monotonic()) <= 0:
                self._drop("no room in the byte budget")
                return Verdict.SKIP
            self._around.hurry()
            self._around.budget.wait(left)

    def _keep_undecided(self, call: Call, peeks: Mapping[str, tuple[str, int]]) -> Verdict:
        """Copy what would be kept, and have the policy decide when the elements that it needs are there."""
        extra = {_PEEK + label: _element(call.inputs[name], index) for label, (name, index) in peeks.items()}
        chosen = {**self._chosen(call), **extra}
        size = ENTRY_BYTES + sum(tensor.nbytes for tensor in chosen.values())
        with self.lock:
            room = self._room(size, chosen) if self._undecided < _MOST_UNDECIDED else None
            self._undecided += room is not None
        if room is None:
            self._drop("too many undecided")
        else:
            self._send(WorkloadEntry(self.definition, call.axes, {}, -1, size), room, _without_memory(call))
        return Verdict.SKIP

    def _room(self, size: int, chosen: Mapping[str, torch.Tensor]) -> Room | None:
        """Room for the copies of a call, and for what else is kept of it; None if there is none now."""
        if not self._around.budget.take(size):
            return None
        try:
            room = self._around.copier.room(chosen)
        except BaseException:
            self._around.budget.give(size)
            raise
        if room is None:
            self._around.budget.give(size)
        return room

    def _admit_into(self, room: Room, call: Call, size: int) -> WorkloadEntry:
        try:
            return self._admit(call, size)
        except BaseException:
            self._around.copier.give_up(room)
            self._around.budget.give(size)
            raise

    def _admit(self, call: Call, size: int) -> WorkloadEntry:
        self._order += 1
        ticket = self.policy.admit(call)
        return WorkloadEntry(
            call.definition, call.axes, self._recorded(call.inputs), self._order - 1, size, ticket, call.peeked
        )

    def _recorded(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """What is recorded of inputs that are not copied: numbers, and that a tensor was there."""
        recorded = dict(self._all_random)
        for name, kind in self._numbers.items():
            value = inputs[name]
            if value is not None and not isinstance(value, torch.Tensor):  # whose value comes with the copies
                recorded[name] = number(kind, value)
        for name in self._optional:
            if inputs[name] is None:
                del recorded[name]
        return recorded

    def _chosen(self, call: Call) -> dict[str, torch.Tensor]:
        """The tensors to copy: what the policy says, and numbers that are given as tensors."""
        inputs = call.inputs
        names = self._dump.dump(inputs) if self._always_dumped is None else self._always_dumped
        chosen = {name: inputs[name] for name in names if isinstance(inputs[name], torch.Tensor)}
        for name in self._numbers:
            if isinstance(inputs[name], torch.Tensor):
                chosen[name] = inputs[name]
        return chosen

    def _send(self, entry: WorkloadEntry, room: Room, undecided: Call | None = None) -> None:
        try:
            landing = self._around.copier.copy(room)
        except BaseException:
            self._release(entry, undecided)
            raise
        self._around.put(Pending(self, entry, landing, undecided))

    # -- when the copies are there: in the thread that writes ----------------------------------------

    def land(self, pending: Pending) -> WorkloadEntry | None:
        """Wait for an entry's copies; returns it with them, or None if the policy does not want it."""
        entry, call = pending.entry, pending.undecided
        try:
            tensors = pending.landing.wait()
            decided = entry if call is None else self._decide(call, entry, tensors)
            if decided is None:
                self._around.budget.give(entry.size_bytes)
                return None
            for name, tensor in tensors.items():
                kind = self._numbers.get(name)
                decided.inputs[name] = tensor if kind is None else number(kind, tensor)
            return decided
        except BaseException:
            self._around.budget.give(entry.size_bytes)
            raise
        finally:
            if call is not None:
                with self.lock:
                    self._undecided -= 1

    def _decide(self, call: Call, entry: WorkloadEntry, tensors: dict[str, torch.Tensor]) -> WorkloadEntry | None:
        labels = [name for name in tensors if name.startswith(_PEEK)]
        peeked = {label.removeprefix(_PEEK): int(tensors.pop(label)) for label in labels}
        call = attrs.evolve(call, peeked=peeked)
        with self.lock:
            if (verdict := self.policy.wants(call)) is not Verdict.KEEP:
                _checked(verdict)
                return None
            admitted = self._admit(call, entry.size_bytes)
        self._kept.add()
        return admitted

    def _release(self, entry: WorkloadEntry, undecided: Call | None) -> None:
        """Give back what was taken for a call whose copies never came."""
        self._around.budget.give(entry.size_bytes)
        if undecided is not None:
            with self.lock:
                self._undecided -= 1

    # -- counting ------------------------------------------------------------------------------------

    def _drop(self, reason: str) -> None:
        self._dropped.setdefault(reason, Tally()).add()

    def stored(self, new: int, equal: int) -> None:
        """Count what became of kept calls; only the thread that writes does so."""
        self._stored += new
        self._equal += equal

    def lost(self, reason: str, count: int = 1) -> None:
        """Count kept calls that were not stored."""
        for _ in range(count):
            self._drop(reason)

    def stats(self) -> DefinitionStats:
        """What became of the calls so far."""
        dropped = {reason: int(tally) for reason, tally in list(self._dropped.items())}
        return DefinitionStats(int(self._counted), int(self._kept), self._stored, self._equal, dropped)


def _element(tensor: torch.Tensor, index: int) -> torch.Tensor:
    return tensor[-1:] if index == -1 else tensor[index : index + 1]


def _without_memory(call: Call) -> Call:
    """A call with shapes and dtypes alone: the caller's tensors may be large, and are not ours to keep alive."""
    shown = {
        name: torch.empty_like(value, device="meta") if isinstance(value, torch.Tensor) else value
        for name, value in call.inputs.items()
    }
    return attrs.evolve(call, inputs=shown)


def _checked(verdict: object) -> Verdict:
    if not isinstance(verdict, Verdict):
        raise InvalidSetting("filter_policy", verdict, "a Verdict from its `wants`")
    return verdict


def _is_transformed() -> bool:
    """Whether operations are recorded, wrapped or counted by somebody who must not see ours."""
    return _modes() > 0 or _transform() is not None
