"""Collection of workloads from routed calls."""

from __future__ import annotations

from fib_tracer import (
    FilterPolicy,
    InputDumpPolicy,
    PolicyRegistry,
    TracingConfig,
    TracingConfigRegistry,
    TracingRuntime,
    WorkloadEntry,
    disable_tracing,
    enable_tracing,
    get_attention_only_configs,
    get_default_configs,
    get_full_configs,
)

from ._model_methods import add_model_methods

__all__ = [
    "FilterPolicy",
    "InputDumpPolicy",
    "PolicyRegistry",
    "TracingConfig",
    "TracingConfigRegistry",
    "TracingRuntime",
    "WorkloadEntry",
    "disable_tracing",
    "enable_tracing",
    "get_attention_only_configs",
    "get_default_configs",
    "get_full_configs",
]

add_model_methods(TracingConfig)
