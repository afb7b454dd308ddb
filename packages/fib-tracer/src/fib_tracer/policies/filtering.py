"""Filter policies: which calls are kept.

A policy decides before anything is copied (`FilterPolicy.decide`), and is told when a call is kept (`admit`). A policy
that cannot decide so early receives the entry with its copies (`submit`) and returns those to store at a flush
(`drain`). The methods are called under a lock, one at a time.
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
    """Decision about a call."""

    KEEP = "keep"
    SKIP = "skip"
    """Do not keep it; the next call of the same shapes may be kept."""
    FULL = "full"
    """Do not keep it, nor any other with inputs of the same shapes: the policy is not asked about them again."""
    CLOSED = "closed"
    """Do not keep it, nor any later call."""


class FilterPolicy:
    """Decides which calls of one definition are kept. This one keeps all, and holds them until it is drained.

    Subclass it and override `decide`, or `submit` and `drain`, or both.
    """

    is_final: ClassVar[bool] = False
    """Whether an admitted call is stored immediately; else `submit` and `drain` choose, the latter at a flush."""

    def value_probes(self, definition: Definition) -> Mapping[str, tuple[str, int]]:
        """Elements whose values `decide` needs: label -> (input, index along the first dimension).

        Those of tensors on a device are read asynchronously, and `decide` is called when they are on the CPU.
        """
        del definition
        return {}

    def decide(self, call: Call) -> Verdict:
        """Decide on a call; called again if the call waits for memory."""
        del call
        return Verdict.KEEP

    def admit(self, call: Call) -> Any:
        """Count a call that is kept; the return value is the entry's ticket."""
        del call

    def submit(self, entry: WorkloadEntry) -> None:
        """Receive a kept call."""
        self._held().append(entry)

    def drain(self) -> list[WorkloadEntry]:
        """Return the entries to store, and hold none any more."""
        held = list(self._held())
        self._held().clear()
        return held

    def reset(self) -> None:
        """Forget all calls."""
        self._held().clear()

    def _held(self) -> list[WorkloadEntry]:
        held: list[WorkloadEntry] = self.__dict__.setdefault("_entries", [])  # subclasses need not call __init__
        return held


class KeepAll(FilterPolicy):
    """Every call; equal ones are stored once."""

    is_final = True


class KeepNone(FilterPolicy):
    """No call."""

    is_final = True

    def decide(self, call: Call) -> Verdict:
        """Never keep it."""
        del call
        return Verdict.CLOSED


class KeepFirstKByKey(FilterPolicy):
    """The first calls of each key.

    Args:
        key: Makes a call's key from shapes, dtypes and scalars, never from values of tensors.
        k: How many of each key.
        is_by_shape: Whether the shapes of inputs determine the key: then the policy is asked once for full ones.
    """

    is_final = True

    def __init__(self, key: Callable[[Call], Hashable], k: int = 1, is_by_shape: bool = False) -> None:
        if not callable(key):
            raise InvalidSetting("key", key, "a function of a Call")
        self._key = key
        self._k = _positive("k", k)
        self._kept: dict[Hashable, int] = {}
        self._when_full = Verdict.FULL if is_by_shape else Verdict.SKIP

    def decide(self, call: Call) -> Verdict:
        """Keep it while there are fewer than k of its key."""
        return Verdict.KEEP if self._kept.get(self._key(call), 0) < self._k else self._when_full

    def admit(self, call: Call) -> None:
        """Count it."""
        key = self._key(call)
        self._kept[key] = self._kept.get(key, 0) + 1

    def reset(self) -> None:
        """Forget all calls."""
        self._kept.clear()


class KeepFirstK(KeepFirstKByKey):
    """The first calls.

    Args:
        k: How many.
    """

    def __init__(self, k: int = 1) -> None:
        super().__init__(lambda _: None, k)
        self._when_full = Verdict.CLOSED


class KeepFirst(KeepFirstK):
    """The first call."""

    def __init__(self) -> None:
        super().__init__(1)


class KeepFirstKByAxes(KeepFirstKByKey):
    """The first calls of each combination of axis sizes.

    Args:
        k: How many of each combination.
        axes: The axes to combine; None means all.
    """

    def __init__(self, k: int = 1, axes: Sequence[str] | None = None) -> None:
        self.axes = axes
        """The axes to combine; None means all."""
        if isinstance(axes, str) or not (axes is None or all(isinstance(axis, str) for axis in axes)):
            raise InvalidSetting("axes", axes, "a list of names of axes")

        def key(call: Call) -> Hashable:
            return tuple(call.axes.values() if axes is None else (call.axes.get(axis) for axis in axes))

        super().__init__(key, k, is_by_shape=True)


class Attention(KeepFirstKByKey):
    """The first calls of each average sequence length, of keys and values and of queries.

    An average is the last element of an input whose name ends in ``indptr``, divided by the number of sequences. Calls
    of a definition without such inputs are distinguished by their axes.

    Args:
        k: How many of each length.
    """

    def __init__(self, k: int = 1) -> None:
        super().__init__(_average_lengths, k)

    def value_probes(self, definition: Definition) -> Mapping[str, tuple[str, int]]:
        """The last element of each ``indptr``."""
        return {
            name: (name, -1)
            for name, spec in definition.inputs.items()
            if name.endswith("indptr") and spec.shape is not None and len(spec.shape) == 1
        }

    def decide(self, call: Call) -> Verdict:
        """Keep it while there are fewer than k of its averages."""
        verdict = super().decide(call)
        return Verdict.FULL if verdict is Verdict.SKIP and not call.probed else verdict


def _average_lengths(call: Call) -> Hashable:
    if not call.probed:
        return tuple(call.axes.items())
    return tuple((name, _average_length(total, call.inputs[name])) for name, total in call.probed.items())


def _average_length(total: int, indptr: Any) -> int:
    sequences = max(1, int(indptr.shape[0]) - 1)
    return math.floor(total / sequences + 0.5)


class KeepRandomK(FilterPolicy):
    """A uniform random sample of all calls between two flushes (reservoir sampling), stored at the next flush.

    Args:
        k: The size of the sample.
        seed: Of the choice; None for another one each time.
    """

    def __init__(self, k: int = 1, seed: int | None = None) -> None:
        self._k = _positive("k", k)
        self._random = random.Random(seed)
        self.reset()

    def reset(self) -> None:
        """Start another sample."""
        self._seen = 0
        self._slot = 0
        self._last_identity: object = None
        self._slots: dict[int, WorkloadEntry] = {}

    def decide(self, call: Call) -> Verdict:
        """Keep the n-th call with probability k / n."""
        if self._last_identity is not call.identity:
            self._last_identity = call.identity
            self._seen += 1
            self._slot = self._seen - 1 if self._seen <= self._k else self._random.randrange(self._seen)
        return Verdict.KEEP if self._slot < self._k else Verdict.SKIP

    def admit(self, call: Call) -> int:
        """The slot that was drawn."""
        del call
        return self._slot

    def submit(self, entry: WorkloadEntry) -> None:
        """Replace the entry of its slot."""
        self._slots[entry.ticket] = entry

    def drain(self) -> list[WorkloadEntry]:
        """Return the sample."""
        sample = sorted(self._slots.values(), key=lambda entry: entry.order)
        self.reset()
        return sample


class AllOf(FilterPolicy):
    """Calls that all of several policies keep, such as a random sample of the first calls of each size.

    Args:
        policies: Asked in order; all but the last must be final.
    """

    def __init__(self, policies: Sequence[FilterPolicy]) -> None:
        if not policies or not all(policy.is_final for policy in policies[:-1]):
            raise InvalidSetting("policies", [type(p).__name__ for p in policies], "policies, a sampling one last")
        self.policies = tuple(policies)
        self.is_final = policies[-1].is_final  # type: ignore[misc] # of this object: it depends on the policies

    def value_probes(self, definition: Definition) -> Mapping[str, tuple[str, int]]:
        """Probes of all policies, prefixed with the policy's number: two may use one label for different elements."""
        return {
            f"{number} {label}": element
            for number, policy in enumerate(self.policies)
            for label, element in policy.value_probes(definition).items()
        }

    def decide(self, call: Call) -> Verdict:
        """Return the first verdict that is not to keep it."""
        verdicts = (policy.decide(part) for policy, part in self._parts(call))
        return next((verdict for verdict in verdicts if verdict is not Verdict.KEEP), Verdict.KEEP)

    def admit(self, call: Call) -> Any:
        """Count it in all policies; return the last one's ticket."""
        tickets = [policy.admit(part) for policy, part in self._parts(call)]
        return tickets[-1]

    def submit(self, entry: WorkloadEntry) -> None:
        """Pass it to the last policy."""
        entry.probed = _own_probes(entry.probed, len(self.policies) - 1)
        self.policies[-1].submit(entry)

    def _parts(self, call: Call) -> Iterable[tuple[FilterPolicy, Call]]:
        """Each policy, and the call with the elements that this policy asked for."""
        if not call.probed:
            return ((policy, call) for policy in self.policies)
        return (
            (policy, attrs.evolve(call, probed=_own_probes(call.probed, number)))
            for number, policy in enumerate(self.policies)
        )

    def drain(self) -> list[WorkloadEntry]:
        """Return the entries of the last policy."""
        return self.policies[-1].drain()

    def reset(self) -> None:
        """Reset all policies."""
        for policy in self.policies:
            policy.reset()


def _own_probes(probed: Mapping[str, int], number: int) -> dict[str, int]:
    """The elements that one of several policies asked for, by its labels."""
    prefix = f"{number} "
    return {label.removeprefix(prefix): value for label, value in probed.items() if label.startswith(prefix)}


def _positive(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidSetting(name, value, "an integer from 1 on")
    return value
