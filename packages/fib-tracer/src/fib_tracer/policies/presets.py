"""Settings that suit most engines; they match by op_type and name, and so fit definitions yet to be written."""

from __future__ import annotations

from ..config import Rule, TracingConfig, TracingConfigRegistry

_BY_SIZE = TracingConfig("dump_none", filter_policy="keep_first_k_by_axes")
"""The values of dense inputs do not change the work."""
_BY_LENGTH = TracingConfig("dump_int", filter_policy="attention")
"""Offsets and indices, the integer tensors of attention, decide on its work; its scale is stored in any case."""
_INDICES_BY_SIZE = TracingConfig("dump_int", filter_policy="keep_first_k_by_axes")
"""Routing, page tables and lengths decide on the work, and have no averages to go by."""

_ATTENTION_RULES = (
    Rule(_BY_LENGTH, op_type="gqa*"),
    Rule(_BY_LENGTH, op_type="mla*"),
    Rule(_INDICES_BY_SIZE, op_type="dsa*"),
)
_FULL_RULES = (
    Rule(_BY_SIZE, op_type="gemm*"),
    Rule(_BY_SIZE, op_type="*rmsnorm*"),
    *_ATTENTION_RULES,
)


def get_default_configs() -> TracingConfigRegistry:
    """Every definition with the default `TracingConfig`: all sizes that occur, no values."""
    return TracingConfigRegistry(TracingConfig())


def get_full_configs() -> TracingConfigRegistry:
    """Dense operators once for each size, attention by average length with its indices, all others by default."""
    return TracingConfigRegistry(TracingConfig(), rules=_FULL_RULES)


def get_attention_only_configs() -> TracingConfigRegistry:
    """Attention like `get_full_configs`; nothing else is traced."""
    return TracingConfigRegistry(None, rules=_ATTENTION_RULES)
