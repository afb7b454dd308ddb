"""Settings for all definitions, which were sets of rules by name."""

from __future__ import annotations

from fib_tracer import get_attention_only_configs, get_full_configs

__all__ = ["fib_attn_tracing", "fib_full_tracing"]

fib_full_tracing = get_full_configs()
fib_attn_tracing = get_attention_only_configs()
