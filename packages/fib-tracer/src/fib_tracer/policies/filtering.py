"""Filter policies: which calls are kept.

A policy is asked before anything is copied (`wants`), and told when a call is kept (`admit`). One that
cannot decide so early holds what was copied (`submit`) and gives out what is to be stored (`drain`).
All methods are called under a lock, one at a time.
"""

from __future__ import annotations

import enum
import math
import random
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import attrs
from fib_schema import Definition

from ..errors import InvalidSetting
from .calls import Call, WorkloadEntry


class Verdict(enum.Enum):
    """What becomes of a call."""

    KEEP = "keep"
    SKIP = "skip"
    """Not this one; the next of the same shapes may be kept."""
    FULL = "full"
    """Nor any other with inputs of the same shapes: the policy is not asked again for them."""
    CLOSED = "closed"
    """Nor any other at all."""


class FilterPolicy:
    """Decides which calls of one definition are kept; this one takes all, and gives them out when it is drained.

    Subclass it and override `wants`, or `submit` and `drain`, or both.
    """

    is_final: ClassVar[bool] = False
    """Whether a call that was admitted is stored at once; else `submit` and `drain` decide, the latter at a flush."""

    def peeks(self, definition: Definition) -> Mapping[str, tuple[str, int]]:
        """Elements whose values `wants` needs: any name for it -> (input, index along the first dimension).

        Of tensors on a device they are read asynchronously, and `wants` is asked when they have arrived.
        """
        del definition
        return {}

    def wants(self, call: Call) -> Verdict:
        """Whether a call is to be kept; asked again of one that had to wait for room."""
        del call
        return Verdict.KEEP

    def admit(self, call: Call) -> Any:
        """A call that the policy wants is going to be kept; what this returns is the entry's ticket."""
        del call

    def submit(self, entry: WorkloadEntry) -> None:
        """Take a kept call in."""
        self._held().append(entry)

    def drain(self) -> list[WorkloadEntry]:
        """Give out what is to be stored, and hold nothing any more."""
        held = list(self._held())
        self._held().clear()
        return held

    def reset(self) -> None:
        """Begin anew."""
        self._held().clear()

    def _held(self) -> list[WorkloadEntry]:
        held: list[WorkloadEntry] = self.__dict__.setdefault("_entries", [])
        return held


class _FinalPolicy(FilterPolicy):
    """Decides when it is asked: what it admits is stored at once."""

    is_final = True


class KeepAll(_FinalPolicy):
    """Every call; equal ones are stored once."""


class KeepNone(_FinalPolicy):
    """No call."""

    def wants(self, call: Call) -> Verdict:
        """Never."""
        del call
        return Verdict.CLOSED


class KeepFirstK(_FinalPolicy):
    """The first calls.

    Args:
        k: How many.
    """

    def __init__(self, k: int = 1) -> None:
        self._k = _positive("k", k)
        self._kept = 0

    def wants(self, call: Call) -> Verdict:
        """While there are fewer than k."""
        del call
        return Verdict.KEEP if self._kept < self._k else Verdict.CLOSED

    def admit(self, call: Call) -> None:
        """One more."""
        del call
        self._kept += 1

    def reset(self) -> None:
        """Begin anew."""
        self._kept = 0


class KeepFirst(KeepFirstK):
    """The first call."""

    def __init__(self) -> None:
        super().__init__(1)


class KeepFirstKByKey(_FinalPolicy):
    """The first calls of each key.

    Args:
        key: Makes a call's key; sees shapes and cheap things, never the values of tensors.
        k: How many of each.
        is_by_shape: Whether the shapes of inputs decide on the key, so that full ones need not be asked for again.
    """

    def __init__(self, key: Callable[[Call], Hashable], k: int = 1, is_by_shape: bool = False) -> None:
        if not callable(key):
            raise InvalidSetting("key", key, "a function of a Call")
        self._key = key
        self._k = _positive("k", k)
        self._kept: dict[Hashable, int] = {}
        self._full = Verdict.FULL if is_by_shape else Verdict.SKIP

    def wants(self, call: Call) -> Verdict:
        """While there are fewer than k of its key."""
        return Verdict.KEEP if self._kept.get(self._key(call), 0) < self._k else self._full

    def admit(self, call: Call) -> None:
        """One more of its key."""
        key = self._key(call)
        self._kept[key] = self._kept.get(key, 0) + 1

    def reset(self) -> None:
        """Begin anew."""
        self._kept.clear()


class KeepFirstKByAxes(KeepFirstKByKey):
    """The first calls of each combination of axis sizes.

    Args:
        k: How many of each.
        axes: Those that count; None means all.
    """

    def __init__(self, k: int = 1, axes: Sequence[str] | None = None) -> None:
        self.axes = axes
        """Those that count; None is all."""
        if isinstance(axes, str) or not (axes is None or all(isinstance(axis, str) for axis in axes)):
            raise InvalidSetting("axes", axes, "a list of axes' names")

        def key(call: Call) -> Hashable:
            return tuple(call.axes.values() if axes is None else (call.axes.get(axis) for axis in axes))

        super().__init__(key, k, is_by_shape=True)


class Attention(KeepFirstKByKey):
    """The first calls of each average sequence length, of keys and values and of queries.

    The averages come of the inputs whose names end in ``indptr``: their last element, by the number of sequences.
    A definition without such inputs is filtered by its axes.

    Args:
        k: How many of each.
    """

    def __init__(self, k: int = 1) -> None:
        super().__init__(_averages, k)

    def peeks(self, definition: Definition) -> Mapping[str, tuple[str, int]]:
        """The last element of each ``indptr``."""
        return {
            name: (name, -1)
            for name, spec in definition.inputs.items()
            if name.endswith("indptr") and spec.shape is not None and len(spec.shape) == 1
        }

    def wants(self, call: Call) -> Verdict:
        """While there are fewer than k of its averages."""
        verdict = super().wants(call)
        return Verdict.FULL if verdict is Verdict.SKIP and not call.peeked else verdict


def _averages(call: Call) -> Hashable:
    if not call.peeked:
        return tuple(call.axes.items())
    return tuple((name, _average(total, call.inputs[name])) for name, total in call.peeked.items())


def _average(total: int, indptr: Any) -> int:
    sequences = max(1, int(indptr.shape[0]) - 1)
    return math.floor(total / sequences + 0.5)


class KeepRandomK(FilterPolicy):
    """A random sample of all calls between two flushes, each as likely as any other (a reservoir).

    What it holds is stored at the next flush, which begins another sample.

    Args:
        k: How many.
        seed: Of the choice; None for another one each time.
    """

    def __init__(self, k: int = 1, seed: int | None = None) -> None:
        self._k = _positive("k", k)
        self._random = random.Random(seed)
        self.reset()

    def reset(self) -> None:
        """Begin anew."""
        self._seen = 0
        self._slot = 0
        self._asked: object = None
        self._slots: dict[int, WorkloadEntry] = {}

    def wants(self, call: Call) -> Verdict:
        """With a chance that falls as calls go by, so that all have the same in the end."""
        if self._asked is not call.identity:
            self._asked = call.identity
            self._seen += 1
            self._slot = self._seen - 1 if self._seen <= self._k else self._random.randrange(self._seen)
        return Verdict.KEEP if self._slot < self._k else Verdict.SKIP

    def admit(self, call: Call) -> int:
        """The slot that was drawn."""
        del call
        return self._slot

    def submit(self, entry: WorkloadEntry) -> None:
        """In place of what had its slot."""
        self._slots[entry.ticket] = entry

    def drain(self) -> list[WorkloadEntry]:
        """The sample."""
        sample = sorted(self._slots.values(), key=lambda entry: entry.order)
        self.reset()
        return sample


class AllOf(FilterPolicy):
    """Calls that each of several policies wants, such as the first ones of each size in a random sample.

    Args:
        policies: Asked in order; only the last may hold what it takes in.
    """

    def __init__(self, policies: Sequence[FilterPolicy]) -> None:
        if not policies or not all(policy.is_final for policy in policies[:-1]):
            raise InvalidSetting("policies", [type(p).__name__ for p in policies], "policies, a sampling one last")
        self.policies = tuple(policies)
        """What must all agree, in order."""
        self.is_final = policies[-1].is_final  # type: ignore[misc] # of this object, for it depends on its parts

    def peeks(self, definition: Definition) -> Mapping[str, tuple[str, int]]:
        """Those of all, each under the policy's number: two may have the same name for different elements."""
        return {
            f"{number} {name}": place
            for number, policy in enumerate(self.policies)
            for name, place in policy.peeks(definition).items()
        }

    def wants(self, call: Call) -> Verdict:
        """The first verdict that is not to keep it."""
        verdicts = (policy.wants(part) for policy, part in self._asked(call))
        return next((verdict for verdict in verdicts if verdict is not Verdict.KEEP), Verdict.KEEP)

    def admit(self, call: Call) -> Any:
        """Tell all; the last one's ticket is the entry's."""
        tickets = [policy.admit(part) for policy, part in self._asked(call)]
        return tickets[-1]

    def submit(self, entry: WorkloadEntry) -> None:
        """To the last one."""
        entry.peeked = _own(entry.peeked, len(self.policies) - 1)
        self.policies[-1].submit(entry)

    def _asked(self, call: Call) -> Iterable[tuple[FilterPolicy, Call]]:
        """Each policy, and the call with the elements that it has asked for."""
        if not call.peeked:
            return ((policy, call) for policy in self.policies)
        return (
            (policy, attrs.evolve(call, peeked=_own(call.peeked, number)))
            for number, policy in enumerate(self.policies)
        )

    def drain(self) -> list[WorkloadEntry]:
        """What the last one gives out."""
        return self.policies[-1].drain()

    def reset(self) -> None:
        """All of them."""
        for policy in self.policies:
            policy.reset()


def _own(peeked: Mapping[str, int], number: int) -> dict[str, int]:
    """The elements that one of several policies has asked for, by its names for them."""
    begin = f"{number} "
    return {name.removeprefix(begin): value for name, value in peeked.items() if name.startswith(begin)}


def _positive(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidSetting(name, value, "a whole number from 1 on")
    return value
