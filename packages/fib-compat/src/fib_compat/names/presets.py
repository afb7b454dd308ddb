"""Policies and rules of the first release.

A policy takes entries and returns the ones to store; `TracingRule` calls it at each flush. The rules are today's
settings for the same kinds of definitions; they select calls before any tensor is copied.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from fib_tracer import TracingConfig

from .tracing_rules import DedupPolicy, TraceEntry

__all__ = [
    "DEDUP_BY_AVG_SEQ_LEN",
    "DEDUP_BY_AXES",
    "DUMP_ALL",
    "DUMP_INT32",
    "DUMP_NONE",
    "KEEP_ALL",
    "KEEP_RANDOM_ONE",
    "KEY_AXES",
    "all_dump_rule",
    "axes_only_rule",
    "dump_int32",
    "gemm_rule",
    "gqa_paged_decode_rule",
    "gqa_paged_prefill_rule",
    "gqa_ragged_prefill_rule",
    "mla_paged_decode_rule",
    "mla_paged_prefill_rule",
    "mla_ragged_prefill_rule",
    "policy_dedup_by_avg_seq_len",
    "policy_dedup_by_axes",
    "policy_keep_first_k",
    "policy_keep_random_k",
]

# -- policies ------------------------------------------------------------------------------------------


def policy_keep_first_k(k: int) -> DedupPolicy:
    """Keep the first k entries."""
    return lambda entries: list(entries[:k])


def policy_keep_random_k(k: int, seed: int | None = None) -> DedupPolicy:
    """Keep k random entries in their order; a seed makes the selection repeatable."""

    def policy(entries: Sequence[TraceEntry]) -> list[TraceEntry]:
        selected = random.Random(seed).sample(range(len(entries)), min(k, len(entries)))
        return [entries[index] for index in sorted(selected)]

    return policy


def policy_dedup_by_axes(k: int = 1) -> DedupPolicy:
    """Keep the first k entries of each combination of axis sizes."""
    return _first_k_by(KEY_AXES, k)


def policy_dedup_by_avg_seq_len(k: int = 1) -> DedupPolicy:
    """Keep the first k entries of each average sequence length, by the stored ``kv_indptr`` or ``seq_indptr``."""
    return _first_k_by(_average_length, k)


def _first_k_by(key: Callable[[TraceEntry], Hashable], k: int) -> DedupPolicy:
    def policy(entries: Sequence[TraceEntry]) -> list[TraceEntry]:
        groups: dict[Hashable, list[TraceEntry]] = {}
        for entry in entries:
            groups.setdefault(key(entry), []).append(entry)
        return sorted((e for group in groups.values() for e in group[:k]), key=lambda entry: entry.order)

    return policy


def _average_length(entry: TraceEntry) -> int | None:
    """The average length of the sequences of an entry; None if it stores no offsets."""
    for name in ("kv_indptr", "seq_indptr"):
        offsets: Any = entry.inputs.get(name)
        if getattr(offsets, "ndim", 0) == 1 and len(offsets) >= 2:
            return round(int(offsets[-1]) / (len(offsets) - 1))
    return None


def KEY_AXES(entry: TraceEntry) -> Hashable:  # noqa: N802 documented name
    """The axis sizes of an entry."""
    return tuple(sorted(entry.axes.items()))


def KEEP_ALL(entries: Sequence[TraceEntry]) -> list[TraceEntry]:  # noqa: N802 documented name
    """Keep all entries."""
    return list(entries)


KEEP_RANDOM_ONE = policy_keep_random_k(1)
DEDUP_BY_AXES = policy_dedup_by_axes()
DEDUP_BY_AVG_SEQ_LEN = policy_dedup_by_avg_seq_len()

# -- input dump policies ---------------------------------------------------------------------------------


def dump_int32() -> Callable[[Mapping[str, Any]], list[str]]:
    """Select the int32 tensors, most of which are offsets."""
    import torch

    def select(inputs: Mapping[str, Any]) -> list[str]:
        return [name for name, value in inputs.items() if getattr(value, "dtype", None) is torch.int32]

    return select


DUMP_ALL = "dump_all"
DUMP_NONE = "dump_none"
DUMP_INT32 = dump_int32()

# -- rules ---------------------------------------------------------------------------------------------

_OFFSETS = ("kv_indptr", "kv_indices", "sm_scale")

all_dump_rule = TracingConfig("dump_all")
axes_only_rule = TracingConfig("dump_none", filter_policy="keep_first_k_by_axes")
gemm_rule = axes_only_rule
gqa_paged_decode_rule = mla_paged_decode_rule = TracingConfig(_OFFSETS, filter_policy="attention")
gqa_paged_prefill_rule = mla_paged_prefill_rule = TracingConfig(("qo_indptr", *_OFFSETS), filter_policy="attention")
gqa_ragged_prefill_rule = mla_ragged_prefill_rule = TracingConfig(
    ("qo_indptr", "kv_indptr", "sm_scale"), filter_policy="attention"
)
