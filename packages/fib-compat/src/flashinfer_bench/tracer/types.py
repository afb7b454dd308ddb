"""Rules, which are settings today, and the entries that their policies choose among."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from fib_tracer import FilterPolicy, TracingConfig
from fib_tracer import WorkloadEntry as TraceEntry

from ..replaced import explaining

__all__ = ["TraceEntry", "TracingRule"]

DedupPolicy: TypeAlias = Callable[[Sequence[TraceEntry]], Iterable[TraceEntry]]
DedupKeys: TypeAlias = Callable[[TraceEntry], Hashable]


class _Representatives(FilterPolicy):
    """Holds every call until a flush, and gives out what a policy chooses of each group with equal keys."""

    def __init__(self, choose: DedupPolicy, key: DedupKeys | None) -> None:
        self._choose, self._key = choose, key

    def drain(self) -> list[TraceEntry]:
        groups: dict[Hashable, list[TraceEntry]] = {}
        for entry in sorted(super().drain(), key=lambda entry: entry.order):
            groups.setdefault(None if self._key is None else self._key(entry), []).append(entry)
        return [entry for group in groups.values() for entry in self._choose(group)]


class TracingRule(TracingConfig):
    """A `TracingConfig` by the first release's names.

    Args:
        tensors_to_dump: The names of inputs that are stored, or a function that chooses them.
        dedup_policy: Chooses, at a flush, the entries of a group that are stored.
        dedup_keys: The key by which entries are grouped; without one, all are one group.
    """

    __slots__ = ("dedup_keys", "dedup_policy", "tensors_to_dump")

    tensors_to_dump: Sequence[str] | Callable[[Mapping[str, Any]], Iterable[str]]
    dedup_policy: DedupPolicy
    dedup_keys: DedupKeys | None

    def __init__(
        self,
        tensors_to_dump: Sequence[str] | Callable[[Mapping[str, Any]], Iterable[str]],
        dedup_policy: DedupPolicy,
        dedup_keys: DedupKeys | None = None,
    ) -> None:
        for name, value in (
            ("tensors_to_dump", tensors_to_dump),
            ("dedup_policy", dedup_policy),
            ("dedup_keys", dedup_keys),
        ):
            object.__setattr__(self, name, value)  # settings are frozen
        make = functools.partial(_Representatives, dedup_policy, dedup_keys)
        super().__init__(input_dump_policy=tensors_to_dump, filter_policy=make)


def _picked(entry: TraceEntry) -> dict[str, Any]:
    """The tensors that are stored."""
    import torch

    return {name: value for name, value in entry.inputs.items() if isinstance(value, torch.Tensor)}


def _input_names(entry: TraceEntry) -> set[str]:
    """The names of the definition's inputs."""
    return set(entry.definition.inputs)


TraceEntry.picked = property(_picked)  # type: ignore[attr-defined] # the core packages know nothing of it
TraceEntry.definition_input_names = property(_input_names)  # type: ignore[attr-defined] # likewise

__getattr__ = explaining(__name__)
