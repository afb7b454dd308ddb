"""Names of evaluators: the built-in ones and the entry points of installed ones.

`fib_bench.evaluators.registry` loads what they name.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType

GROUP = "fib_bench.evaluators"
"""The entry points that evaluators from outside are found by; each names a subclass of `Evaluator`."""
BUILT_IN: Mapping[str, str] = MappingProxyType(
    {
        "sampling": "sampling:Sampling",
        "top_k": "top_k:TopK",
        "low_precision": "low_precision:LowPrecision",
        "moe": "moe:MixtureOfExperts",
        "state_space": "scaled:StateSpace",
        "sparse_attention": "scaled:SparseAttention",
        "default": "default:Default",
    }
)
"""Module in ``fib_bench.evaluators`` and class of each built-in evaluator, in order of precedence."""


def evaluator_names() -> tuple[str, ...]:
    """The names that a setting accepts: built-in evaluators and installed ones."""
    return (*BUILT_IN, *dict.fromkeys(entry.name for entry in installed_evaluators()))


def installed_evaluators() -> tuple[EntryPoint, ...]:
    """The entry points of installed evaluators; those of one search path are looked for once."""
    return _installed_below(tuple(sys.path))


@lru_cache(maxsize=16)  # beside torch it takes 5 ms of processor time
def _installed_below(path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    del path  # `sys.path`, where entry points are found
    return tuple(entry_points(group=GROUP))
