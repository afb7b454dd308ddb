"""Collects workloads of GPU kernels from the calls of a live engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fib_schema.package_init import lazy_exports, require_linux

__all__ = [
    "RANDOM",
    "Call",
    "CallReader",
    "DefinitionStats",
    "FilterPolicy",
    "InputDumpPolicy",
    "InvalidSetting",
    "NotCovered",
    "PolicyRegistry",
    "ReadCall",
    "RecordedCall",
    "Rule",
    "TracingConfig",
    "TracingConfigRegistry",
    "TracingRuntime",
    "Verdict",
    "WorkloadEntry",
    "__version__",
    "disable_tracing",
    "enable_tracing",
    "get_attention_only_configs",
    "get_default_configs",
    "get_full_configs",
    "get_tracing_runtime",
    "start_by_environment",
]

require_linux("fib-tracer")

if TYPE_CHECKING:
    from .config import Rule, TracingConfig, TracingConfigRegistry
    from .errors import InvalidSetting
    from .policies.calls import RANDOM, Call, WorkloadEntry
    from .policies.dumping import InputDumpPolicy
    from .policies.filtering import FilterPolicy, Verdict
    from .policies.presets import get_attention_only_configs, get_default_configs, get_full_configs
    from .policies.registry import PolicyRegistry
    from .recorded_calls import CallReader, NotCovered, ReadCall, RecordedCall
    from .runtime import TracingRuntime, disable_tracing, enable_tracing, get_tracing_runtime, start_by_environment
    from .tallies import DefinitionStats

    __version__: str
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        "fib-tracer",
        {
            "config": "Rule TracingConfig TracingConfigRegistry",
            "errors": "InvalidSetting",
            "policies.calls": "Call RANDOM WorkloadEntry",
            "policies.dumping": "InputDumpPolicy",
            "policies.filtering": "FilterPolicy Verdict",
            "policies.presets": "get_attention_only_configs get_default_configs get_full_configs",
            "policies.registry": "PolicyRegistry",
            "recorded_calls": "CallReader NotCovered ReadCall RecordedCall",
            "runtime": "TracingRuntime disable_tracing enable_tracing get_tracing_runtime start_by_environment",
            "tallies": "DefinitionStats",
        },
    )
