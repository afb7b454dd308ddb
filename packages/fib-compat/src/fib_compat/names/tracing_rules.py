"""Tracing rules, which are a `TracingConfig` today, and the entries that their policies filter."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from fib_tracer import FilterPolicy, TracingConfig
from fib_tracer import WorkloadEntry as TraceEntry

__all__ = ["TraceEntry", "TracingRule"]

DedupPolicy: TypeAlias = Callable[[Sequence[TraceEntry]], Iterable[TraceEntry]]
DedupKeys: TypeAlias = Callable[[TraceEntry], Hashable]


class _GroupFilter(FilterPolicy):
    """Keeps every entry until a flush, then applies a policy to each group of entries with equal keys."""

    def __init__(self, policy: DedupPolicy, key: DedupKeys | None) -> None:
        self._policy, self._key = policy, key

    def drain(self) -> list[TraceEntry]:
        groups: dict[Hashable, list[TraceEntry]] = {}
        for entry in sorted(super().drain(), key=lambda entry: entry.order):
            groups.setdefault(None if self._key is None else self._key(entry), []).append(entry)
        return [entry for group in groups.values() for entry in self._policy(group)]


class TracingRule(TracingConfig):
    """A `TracingConfig` with the first release's arguments.

    Args:
        tensors_to_dump: The names of the inputs to store, or a function that selects them.
        dedup_policy: Selects the entries of a group to store; called at each flush.
        dedup_keys: Returns the key that groups entries; None puts all entries into one group.
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
            object.__setattr__(self, name, value)  # `TracingConfig` is frozen
        make_policy = functools.partial(_GroupFilter, dedup_policy, dedup_keys)
        super().__init__(input_dump_policy=tensors_to_dump, filter_policy=make_policy)
