"""Documented names without an equivalent, and what replaces each.

Using such a name raises `NotOffered` with the text of `REPLACED`, which lists members of classes too.
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
            "the judge process does this; call fib_bench.evaluate for one solution",
        ),
        "flashinfer_bench.utils": {
            "redirect_stdio_to_file": "use contextlib.redirect_stdout; workers capture the output of solutions",
        },
    }
)
"""By module and name (``name`` or ``Class.member``): the explanation."""

OTHER_ARGUMENTS: Mapping[str, str] = MappingProxyType(
    {
        "flashinfer_bench.tracer.tracer:Tracer": "it is TracingRuntime, which takes a data set, then settings or rules",
    }
)
"""Names whose arguments differ from the first release's, with an explanation."""
