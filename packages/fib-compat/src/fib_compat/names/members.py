"""Members that documented classes have in flashinfer-bench only, added to the classes of the FIB packages."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import MappingProxyType

from . import legacy_members, model_methods, record_arguments

CLASSES: Mapping[str, str] = MappingProxyType(
    {
        "fib_schema": " ".join(
            [*(record.__name__ for record in model_methods.RECORDS), "SpeedupMetrics", "TraceSet", "TraceSetSummary"]
        ),
        "fib_apply": "ApplyConfig ApplyKey",
        "fib_bench": "BenchmarkConfig EvalConfig ResolvedEvalConfig",
        "fib_compile": "Builder BuilderRegistry Runnable RunnableMetadata",
        "fib_tracer": "TracingConfig WorkloadEntry",
    }
)
"""Classes that get members, by package."""
_NOT_MODELS = frozenset({"Builder", "BuilderRegistry", "Runnable", "TraceSet", "WorkloadEntry"})

_added: set[str] = set()


def add_to_loaded_packages() -> None:
    """Add the members to the classes of each package that has been imported."""
    for package in CLASSES:
        if package not in _added and package in sys.modules:
            _added.add(package)
            _add_to(package)


def _add_to(package: str) -> None:
    for name in CLASSES[package].split():
        cls = getattr(sys.modules[package], name)
        if name not in _NOT_MODELS:
            model_methods.add_model_methods(cls)
        if cls in model_methods.RECORDS:
            record_arguments.accept_other_arguments(cls)
        legacy_members.add_legacy_members(cls)
