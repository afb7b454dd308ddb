"""Documented members without an equivalent, and what replaces each.

Using such a member raises `NotOffered` with the text of `REPLACED`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

REPLACED: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "flashinfer_bench.bench.evaluators": dict.fromkeys(
            (
                "Evaluator.build_baseline",
                "Evaluator.check_correctness",
                "Evaluator.eval_performance",
                "Evaluator.evaluate",
            ),
            "its parameters are not documented, and a judge process does this; use fib_bench.evaluate for a solution",
        ),
    }
)
"""Explanations by module and ``Class.member``."""

OTHER_ARGUMENTS: Mapping[str, str] = MappingProxyType(
    {
        "flashinfer_bench.tracer.tracer:Tracer": "it is TracingRuntime, which takes a data set, then settings or rules",
    }
)
"""Names whose arguments differ from the first release's, with an explanation."""
