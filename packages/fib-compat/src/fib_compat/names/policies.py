"""Policies of tracing by the old package's protocols, and their adapters to fib-tracer.

A policy is any class with the methods of `FilterPolicy` or `InputDumpPolicy`. Policies that a program registers are
adapted; a preset's name selects fib-tracer's own policy, which decides before anything is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Protocol, runtime_checkable

import attrs
import fib_tracer
import torch
from fib_schema import UnknownName
from fib_tracer import InvalidSetting

__all__ = ["FilterPolicy", "InputDumpPolicy", "PolicyRegistry", "WorkloadEntry"]


@attrs.define
class WorkloadEntry:
    """A call that was collected."""

    def_name: str
    axes: Mapping[str, int]
    inputs_to_dump: Mapping[str, Any]
    """The inputs to store, by name."""
    order: int
    """The position among the calls of the definition."""
    cuda_graph_snapshot: Mapping[str, Any] | None = None


@runtime_checkable
class InputDumpPolicy(Protocol):
    """Chooses the inputs of a call that are stored."""

    def dump(self, inputs: dict[str, Any]) -> list[str]:
        """The names of the inputs to store."""
        ...


@runtime_checkable
class FilterPolicy(Protocol):
    """Chooses the calls that are stored. Subclasses inherit a policy that keeps all."""

    def submit(self, entry: WorkloadEntry) -> None:
        """Receive a call."""
        _held(self).append(entry)

    def drain(self) -> list[WorkloadEntry]:
        """The calls to store; none is held any more."""
        held = list(_held(self))
        _held(self).clear()
        return held

    def reset(self) -> None:
        """Forget all calls."""
        _held(self).clear()


def _held(policy: object) -> list[WorkloadEntry]:
    held: list[WorkloadEntry] = policy.__dict__.setdefault("_entries", [])  # subclasses need not call __init__
    return held


# -- presets ------------------------------------------------------------------------------------------


class DumpAllPolicy:
    """Stores all inputs."""

    def dump(self, inputs: dict[str, Any]) -> list[str]:
        """All names."""
        return list(inputs)


class DumpNonePolicy:
    """Stores no input."""

    def dump(self, inputs: dict[str, Any]) -> list[str]:
        """No name."""
        del inputs
        return []


class DumpIntPolicy:
    """Stores integer and boolean tensors."""

    def dump(self, inputs: dict[str, Any]) -> list[str]:
        """The names of such tensors."""
        return [name for name, value in inputs.items() if _is_integer(value)]


def _is_integer(value: object) -> bool:
    return isinstance(value, torch.Tensor) and not (value.dtype.is_floating_point or value.dtype.is_complex)


class KeepAllPolicy(FilterPolicy):
    """Keeps all calls."""


class KeepNonePolicy(FilterPolicy):
    """Keeps no call."""

    def submit(self, entry: WorkloadEntry) -> None:
        """Ignore it."""


class _KeepFirstByKey(FilterPolicy):
    """Keeps the first k calls of each key, also across drains."""

    def __init__(self, k: Any = 1) -> None:
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise InvalidSetting("k", k, "an integer from 1 on")
        self.k = k
        self._counts: dict[object, int] = {}

    def submit(self, entry: WorkloadEntry) -> None:
        """Keep it while there are fewer than k of its key."""
        key = self.key(entry)
        self._counts[key] = self._counts.get(key, 0) + 1
        if self._counts[key] <= self.k:
            super().submit(entry)

    def reset(self) -> None:
        """Forget all calls and counts."""
        super().reset()
        self._counts.clear()

    def key(self, entry: WorkloadEntry) -> object:
        """Key by which calls are counted."""
        del entry
        return None


class KeepFirstKPolicy(_KeepFirstByKey):
    """Keeps the first k calls."""


class KeepFirstPolicy(_KeepFirstByKey):
    """Keeps the first call."""

    def __init__(self) -> None:
        super().__init__(1)


class KeepFirstKByAxesPolicy(_KeepFirstByKey):
    """Keeps the first k calls of each combination of axis sizes."""

    def key(self, entry: WorkloadEntry) -> object:
        """The sizes."""
        return tuple(sorted(entry.axes.items()))


class AttentionFilterPolicy(_KeepFirstByKey):
    """Keeps the first k calls of each average sequence length, by the stored inputs that end in ``indptr``."""

    def key(self, entry: WorkloadEntry) -> object:
        """The averages; the sizes of the axes if no such input is stored."""
        averages = tuple(
            (name, round(int(value[-1]) / max(1, len(value) - 1)))
            for name, value in entry.inputs_to_dump.items()
            if name.endswith("indptr") and isinstance(value, torch.Tensor) and value.ndim == 1 and len(value)
        )
        return averages or tuple(sorted(entry.axes.items()))


# -- registry -----------------------------------------------------------------------------------------

DUMP_PRESETS: Mapping[str, type] = {"dump_all": DumpAllPolicy, "dump_none": DumpNonePolicy, "dump_int": DumpIntPolicy}
FILTER_PRESETS: Mapping[str, type] = {
    "keep_all": KeepAllPolicy,
    "keep_none": KeepNonePolicy,
    "keep_first": KeepFirstPolicy,
    "keep_first_k": KeepFirstKPolicy,
    "keep_first_k_by_axes": KeepFirstKByAxesPolicy,
    "attention": AttentionFilterPolicy,
}


class UnknownPolicy(UnknownName, ValueError):
    """No policy has this name; a ValueError, as the old package documents, and a KeyError, as fib-tracer does."""


class PolicyRegistry:
    """Policies by name. Those of fib-tracer that have no preset here are found too."""

    _dumping: ClassVar[dict[str, type]] = dict(DUMP_PRESETS)
    _filtering: ClassVar[dict[str, type]] = dict(FILTER_PRESETS)

    @classmethod
    def register_input_dump_policy(cls, name: str, policy: Any = None, override: bool = False) -> Any:
        """Register a class with the methods of `InputDumpPolicy`: called with it, or used as its decorator.

        Raises:
            InvalidSetting: It lacks a method, or the name is taken and `override` is false (a ValueError).
        """
        return _register(cls._dumping, name, policy, ("dump",), override=override)

    @classmethod
    def register_filter_policy(cls, name: str, policy: Any = None, override: bool = False) -> Any:
        """Register a class with the methods of `FilterPolicy`; see `register_input_dump_policy`."""
        return _register(cls._filtering, name, policy, ("submit", "drain", "reset"), override=override)

    @classmethod
    def get_input_dump_policy(cls, name: str) -> type:
        """The class of a name.

        Raises:
            UnknownPolicy: There is none (a ValueError).
        """
        return _get(cls._dumping, "input dump policy", name, fib_tracer.PolicyRegistry.get_input_dump_policy)

    @classmethod
    def get_filter_policy(cls, name: str) -> type:
        """The class of a name; see `get_input_dump_policy`."""
        return _get(cls._filtering, "filter policy", name, fib_tracer.PolicyRegistry.get_filter_policy)

    @classmethod
    def list_input_dump_policies(cls) -> list[str]:
        """The names, sorted."""
        return sorted({*cls._dumping, *fib_tracer.PolicyRegistry.list_input_dump_policies()})

    @classmethod
    def list_filter_policies(cls) -> list[str]:
        """The names, sorted."""
        return sorted({*cls._filtering, *fib_tracer.PolicyRegistry.list_filter_policies()})


def _register(registered: dict[str, type], name: str, policy: Any, methods: Iterable[str], *, override: bool) -> Any:
    def register(cls: Any) -> Any:
        missing = [method for method in methods if not callable(getattr(cls, method, None))]
        if not isinstance(cls, type) or missing:
            raise InvalidSetting(name, cls, "a class with " + ", ".join(methods))
        if name in registered and not override:
            raise InvalidSetting(name, cls, "override=True, because a policy of that name exists")
        registered[name] = cls
        return cls

    return register if policy is None else register(policy)


def _get(registered: Mapping[str, type], kind: str, name: str, find: Callable[[str], type]) -> type:
    if name in registered:
        return registered[name]
    try:
        return find(name)
    except UnknownName as error:
        raise UnknownPolicy(kind, name, tuple({*registered, *error.known})) from None


# -- adapters to fib-tracer -----------------------------------------------------------------------------


class AdaptedDump(fib_tracer.InputDumpPolicy):
    """A dump policy of a program, for fib-tracer."""

    def __init__(self, policy: InputDumpPolicy) -> None:
        self._policy = policy

    def dump(self, inputs: Mapping[str, Any]) -> Iterable[str]:
        """Return value of the policy."""
        return self._policy.dump(dict(inputs))


class AdaptedFilter(fib_tracer.FilterPolicy):
    """A filter policy of a program, for fib-tracer: it receives each call with the copies of its inputs."""

    def __init__(self, policy: FilterPolicy) -> None:
        self._policy = policy
        self._entries: dict[int, fib_tracer.WorkloadEntry] = {}

    def submit(self, entry: fib_tracer.WorkloadEntry) -> None:
        """Pass it to the policy."""
        stored = {name: value for name, value in entry.inputs.items() if value is not fib_tracer.RANDOM}
        self._entries[entry.order] = entry
        self._policy.submit(WorkloadEntry(entry.def_name, dict(entry.axes), stored, entry.order))

    def drain(self) -> list[fib_tracer.WorkloadEntry]:
        """The entries of the calls that the policy returns, which it identifies by `WorkloadEntry.order`."""
        kept = [self._entries[entry.order] for entry in self._policy.drain()]
        self._entries.clear()
        return kept

    def reset(self) -> None:
        """Reset the policy."""
        self._entries.clear()
        self._policy.reset()
