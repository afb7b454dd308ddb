"""Names of evaluators: the built-in ones and the entry points of installed ones.

`fib_bench.evaluators.registry` loads what they name.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points
from types import MappingProxyType

GROUP = "fib_bench.evaluators"
"""The entry points that evaluators from outside are found by; each names a subclass of `Evaluator`."""
BUILT_IN: Mapping[str, str] = MappingProxyType(
    {
        "sampling": "sampling:Sampling",
        "top_k": "top_k:TopK",
        "low_precision": "low_precision:LowPrecision",
        "moe": "moe:MixtureOfExperts",
        "state_space": "state_space:StateSpace",
        "sparse_attention": "sparse_attention:SparseAttention",
        "default": "default:Default",
    }
)
"""Module in ``fib_bench.evaluators`` and class of each built-in evaluator, in order of precedence."""


def evaluator_names() -> tuple[str, ...]:
    """The names that a setting accepts: built-in evaluators and installed ones."""
    return (*BUILT_IN, *dict.fromkeys(entry.name for entry in entry_points(group=GROUP)))
