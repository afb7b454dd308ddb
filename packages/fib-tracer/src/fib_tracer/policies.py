"""Policies: which calls of a definition are kept, and which of their inputs are stored with their values.

A `FilterPolicy` decides on a `Call` before anything is copied (`decide`), and is told when the call is kept (`admit`).
One that cannot decide so early receives the `WorkloadEntry` with its copies (`submit`) and returns those to store at a
flush (`drain`). Its methods are called under a lock, one at a time. An `InputDumpPolicy` chooses the inputs whose
values are stored; scalars are always stored: a workload without its scale would be a different one. `PolicyRegistry`
finds policies by name.
"""

from __future__ import annotations

import enum
import functools
import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import attrs
import torch
from fib_schema import Definition, UnknownName
from fib_schema.entry_points import UnusableEntryPoint, find_entry_points, load_entry_point
from fib_schema.settings import InvalidSetting
from fib_schema.strides import Strides

# -- calls as policies see them ---------------------------------------------------------------------


@attrs.frozen
class Call:
    """A call of which nothing has been copied.

    Tensors are the caller's own: they may be on a device and be overwritten at any time. A policy may read their
    shapes, dtypes and devices, but not their values. When probed values have been copied, the call holds ``meta``
    tensors instead, so that the caller's tensors are not kept alive.
    """

    definition: Definition
    axes: Mapping[str, int]
    """The sizes of the variable axes."""
    inputs: Mapping[str, Any]
    """Inputs by the definition's names, in its order; None for an optional input that was not given."""
    probed: Mapping[str, int] = attrs.field(factory=dict)
    """The elements that the policy asked for (`FilterPolicy.value_probes`), by its labels."""


@attrs.define(eq=False)
class WorkloadEntry:
    """A kept call and the copies of its tensors."""

    definition: Definition
    axes: Mapping[str, int]
    inputs: dict[str, Any]
    """A tensor on the CPU, a scalar, or `RANDOM`, by name; inputs that were not given are missing."""
    order: int
    """The position among the kept calls of the definition."""
    size_bytes: int = 0
    """Bytes of the budget that the entry holds."""
    ticket: Any = None
    """Return value of `FilterPolicy.admit`."""
    probed: Mapping[str, int] = attrs.field(factory=dict)
    """See `Call.probed`."""
    strides: Mapping[str, Strides] = attrs.field(factory=dict)
    """Strides of the inputs that are not contiguous in the call; the copies are contiguous."""

    @property
    def def_name(self) -> str:
        """The definition's name."""
        return self.definition.name


class _Random:
    """The type of `RANDOM`."""

    def __repr__(self) -> str:
        return "RANDOM"


RANDOM = _Random()
"""In `WorkloadEntry.inputs`: the values are not stored, and the benchmark generates some."""


# -- which inputs are stored -------------------------------------------------------------------------


class InputDumpPolicy(ABC):
    """Chooses the inputs of a call whose values are stored."""

    @abstractmethod
    def dump(self, inputs: Mapping[str, Any]) -> Iterable[str]:
        """The names of the inputs to store.

        Args:
            inputs: By name. Do not read their values, which may be on a device.
        """

    def always_dumped(self, definition: Definition) -> list[str] | None:
        """The inputs that `dump` returns for any call of a definition; None if that depends on the call.

        If these contain no tensor, equal sizes and scalars make equal workloads, and the tracer records one of each.
        """
        del definition
        return None


class DumpAll(InputDumpPolicy):
    """All tensors: exact replay, at the cost of their size."""

    def dump(self, inputs: Mapping[str, Any]) -> Iterable[str]:
        """All inputs."""
        return list(inputs)

    def always_dumped(self, definition: Definition) -> list[str]:
        """All inputs."""
        return list(definition.inputs)


class DumpNone(InputDumpPolicy):
    """No tensor: only sizes matter."""

    def dump(self, inputs: Mapping[str, Any]) -> Iterable[str]:
        """No input."""
        del inputs
        return []

    def always_dumped(self, definition: Definition) -> list[str]:
        """No input."""
        del definition
        return []


class DumpInt(InputDumpPolicy):
    """Integer and boolean tensors: a kernel's work depends on offsets, indices and masks, seldom on other values."""

    def dump(self, inputs: Mapping[str, Any]) -> Iterable[str]:
        """Tensors with an integer or boolean dtype."""
        tensors = {name: value for name, value in inputs.items() if isinstance(value, torch.Tensor)}
        return [name for name, value in tensors.items() if not (value.is_floating_point() or value.is_complex())]

    def always_dumped(self, definition: Definition) -> list[str]:
        """Tensors that the definition declares so."""
        return [n for n, s in definition.inputs.items() if s.shape is not None and (s.is_integer or s.dtype == "bool")]


class DumpNamed(InputDumpPolicy):
    """Inputs by name, and those that other policies choose."""

    def __init__(self, names: Sequence[str], others: Sequence[InputDumpPolicy] = ()) -> None:
        self.names = tuple(names)
        self.others = tuple(others)

    def dump(self, inputs: Mapping[str, Any]) -> Iterable[str]:
        """The chosen inputs, in the order of the inputs."""
        chosen = {*self.names, *(name for other in self.others for name in other.dump(inputs))}
        return [name for name in inputs if name in chosen]

    def always_dumped(self, definition: Definition) -> list[str] | None:
        """The chosen inputs, if the other policies always choose the same."""
        chosen = set(self.names)
        for other in self.others:
            if (names := other.always_dumped(definition)) is None:
                return None
            chosen.update(names)
        return [name for name in definition.inputs if name in chosen]


class DumpByFunction(InputDumpPolicy):
    """The inputs that a function chooses for each call."""

    def __init__(self, choose: Callable[[Mapping[str, Any]], Iterable[str]]) -> None:
        self._choose = choose

    def dump(self, inputs: Mapping[str, Any]) -> Iterable[str]:
        """Return value of the function."""
        return self._choose(inputs)


# -- which calls are kept ----------------------------------------------------------------------------


class Decision(enum.Enum):
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

    def decide(self, call: Call) -> Decision:
        """Decide on a call."""
        del call
        return Decision.KEEP

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

    def decide(self, call: Call) -> Decision:
        """Never keep it."""
        del call
        return Decision.CLOSED


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
        self._when_full = Decision.FULL if is_by_shape else Decision.SKIP

    def decide(self, call: Call) -> Decision:
        """Keep it while there are fewer than k of its key."""
        return Decision.KEEP if self._kept.get(self._key(call), 0) < self._k else self._when_full

    def admit(self, call: Call) -> None:
        """Count it."""
        key = self._key(call)
        self._kept[key] = self._kept.get(key, 0) + 1

    def reset(self) -> None:
        """Forget all calls."""
        self._kept.clear()


class KeepFirstK(KeepFirstKByKey):
    """The first calls."""

    def __init__(self, k: int = 1) -> None:
        super().__init__(lambda _: None, k)
        self._when_full = Decision.CLOSED


class KeepFirst(KeepFirstK):
    """The first call."""

    def __init__(self) -> None:
        super().__init__(1)


class KeepFirstKByAxes(KeepFirstKByKey):
    """The first calls of each combination of axis sizes."""

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

    def decide(self, call: Call) -> Decision:
        """Keep it while there are fewer than k of its averages."""
        decision = super().decide(call)
        return Decision.FULL if decision is Decision.SKIP and not call.probed else decision


def _average_lengths(call: Call) -> Hashable:
    if not call.probed:
        return tuple(call.axes.items())
    return tuple((name, _average_length(total, call.inputs[name])) for name, total in call.probed.items())


def _average_length(total: int, indptr: Any) -> int:
    sequences = max(1, int(indptr.shape[0]) - 1)
    return math.floor(total / sequences + 0.5)


class KeepRandomK(FilterPolicy):
    """A uniform random sample of all calls between two flushes (reservoir sampling), stored at the next flush."""

    def __init__(self, k: int = 1, seed: int | None = None) -> None:
        self._k = _positive("k", k)
        self._random = random.Random(seed)
        self.reset()

    def reset(self) -> None:
        """Start another sample."""
        self._seen = 0
        self._slot = 0
        self._slots: dict[int, WorkloadEntry] = {}

    def decide(self, call: Call) -> Decision:
        """Keep the n-th call with probability k / n."""
        del call
        self._seen += 1
        self._slot = self._seen - 1 if self._seen <= self._k else self._random.randrange(self._seen)
        return Decision.KEEP if self._slot < self._k else Decision.SKIP

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


def _positive(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidSetting(name, value, "an integer from 1 on")
    return value


# -- policies by name --------------------------------------------------------------------------------


class UnknownPolicy(UnknownName, ValueError):
    """No policy has this name; a ValueError too, as documented."""


P = TypeVar("P", InputDumpPolicy, FilterPolicy)


@attrs.frozen
class _Policies(Generic[P]):
    """The policies of one kind: registered ones, and the entry points of a group."""

    kind: str
    group: str
    base: type[P]
    registered: dict[str, type[P]]

    def register(self, name: str, policy: Any = None, override: bool = False) -> Any:
        """Register a policy: called with its class, or used as a decorator of it.

        Raises:
            InvalidSetting: It is not such a class, or the name is taken and `override` is false.
        """
        if policy is None:
            return functools.partial(self.register, name, override=override)
        if name in self.registered and not override:
            raise InvalidSetting(name, policy, f"override=True, because a {self.kind} of that name exists")
        self.registered[name] = self._checked(policy)
        return policy

    def get(self, name: str) -> type[P]:
        """The class that is registered under a name.

        Raises:
            UnknownPolicy: There is none (a KeyError and a ValueError).
        """
        if name in self.registered:
            return self.registered[name]
        point = next((point for point in find_entry_points(self.group) if point.name == name), None)
        if point is None:
            raise UnknownPolicy(self.kind, name, tuple(self.names()))
        try:
            return self._checked(load_entry_point(point))
        except UnusableEntryPoint as error:
            raise InvalidSetting(self.kind, name, f"an entry point that can be loaded: {error}") from error

    def names(self) -> list[str]:
        """The names, sorted."""
        return sorted({*self.registered, *(point.name for point in find_entry_points(self.group))})

    def _checked(self, policy: object) -> type[P]:
        if not (isinstance(policy, type) and issubclass(policy, self.base)):
            raise InvalidSetting(self.kind, policy, f"a subclass of {self.base.__name__}")
        return policy


_DUMP_POLICIES: _Policies[InputDumpPolicy] = _Policies(
    "input dump policy",
    "fib_tracer.input_dump_policies",
    InputDumpPolicy,  # type: ignore[type-abstract]
    {"dump_all": DumpAll, "dump_none": DumpNone, "dump_int": DumpInt},
)
_FILTER_POLICIES: _Policies[FilterPolicy] = _Policies(
    "filter policy",
    "fib_tracer.filter_policies",
    FilterPolicy,
    {
        "keep_all": KeepAll,
        "keep_none": KeepNone,
        "keep_first": KeepFirst,
        "keep_first_k": KeepFirstK,
        "keep_random_k": KeepRandomK,
        "keep_first_k_by_axes": KeepFirstKByAxes,
        "keep_first_k_by_key": KeepFirstKByKey,
        "attention": Attention,
    },
)


class PolicyRegistry:
    """All policies that a `TracingConfig` can name.

    A program registers its own policies. A package offers policies as entry points of the groups
    ``fib_tracer.input_dump_policies`` and ``fib_tracer.filter_policies``.
    """

    register_input_dump_policy = _DUMP_POLICIES.register
    get_input_dump_policy = _DUMP_POLICIES.get
    list_input_dump_policies = _DUMP_POLICIES.names
    register_filter_policy = _FILTER_POLICIES.register
    get_filter_policy = _FILTER_POLICIES.get
    list_filter_policies = _FILTER_POLICIES.names
