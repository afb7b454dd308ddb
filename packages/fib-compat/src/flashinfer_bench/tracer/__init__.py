"""Tracing in the first release's words; `flashinfer_bench.tracing` has today's."""

from __future__ import annotations

from .hook_impl import make_tracing_hook
from .rule import fib_attn_tracing, fib_full_tracing
from .tracer import Tracer, disable_tracing, enable_tracing, get_tracer
from .types import TraceEntry, TracingRule

__all__ = [
    "TraceEntry",
    "Tracer",
    "TracingRule",
    "disable_tracing",
    "enable_tracing",
    "fib_attn_tracing",
    "fib_full_tracing",
    "get_tracer",
    "make_tracing_hook",
]
