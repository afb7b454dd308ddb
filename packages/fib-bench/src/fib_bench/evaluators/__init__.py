"""Evaluators. Correctness criteria for the outputs of each kind of op.

The package is imported without torch, since settings name evaluators and `fib-bench --help` reads settings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .registry import GROUP, evaluator_for, evaluator_names

__all__ = [
    "GROUP",
    "Case",
    "Check",
    "EachOutput",
    "Evaluator",
    "Observation",
    "Part",
    "Verdict",
    "evaluator_for",
    "evaluator_names",
]

if TYPE_CHECKING:
    from .protocol import Case, Check, EachOutput, Evaluator, Observation, Part, Verdict


def __getattr__(name: str) -> Any:
    """Import classes that need torch on first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import protocol

    return getattr(protocol, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
