"""Collects workloads of GPU kernels from the calls of a live engine."""

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

__version__ = "0.1.0"

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
