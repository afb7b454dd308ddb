"""Shared parts of the attention adapters.

| module | content |
| --- | --- |
| `settings` | settings of runs, and those that a definition describes |
| `plans` | the inputs that all runs of a wrapper share until its next plan |
| `runs` | the methods that are patched; caches and outputs of a run |
| `baseline_source` | solutions that call the engine's own kernels |
"""

from .baseline_source import baseline_source
from .plans import (
    NO_BUFFERS,
    AttentionPlan,
    PlanKind,
    WrapperPlan,
    cached_kind,
    is_replayed,
    last_value,
    make_kind,
    make_plan,
    on_device,
    page_buffers,
    unsupported_plan,
)
from .runs import is_scaled, output_buffers, paged_caches, plan_target, run_target, targets
from .settings import DECODE_HINTS, PREFILL_HINTS, DecodeSettings, PrefillSettings

__all__ = [
    "DECODE_HINTS",
    "NO_BUFFERS",
    "PREFILL_HINTS",
    "AttentionPlan",
    "DecodeSettings",
    "PlanKind",
    "PrefillSettings",
    "WrapperPlan",
    "baseline_source",
    "cached_kind",
    "is_replayed",
    "is_scaled",
    "last_value",
    "make_kind",
    "make_plan",
    "on_device",
    "output_buffers",
    "page_buffers",
    "paged_caches",
    "plan_target",
    "run_target",
    "targets",
    "unsupported_plan",
]
