"""Benchmarks kernels: isolated workers, outputs compared by a judge, latencies, reports.

A run, in this order:

1. `cli.main` reads options (`cli.options`, `config`); `benchmark` opens the data set and plans what to run (`plan`).
2. `execution.scheduler` starts judge processes for each device, and has a thread for each.
3. In the judge process `judge.evaluate` goes through blocks of workloads and judges.
4. `judge.prepare` makes inputs (`inputs`) and expected outputs. `worker.client` has the fork server fork a
   worker, which serves requests (`worker.session`) in a sandbox (`sandbox`); messages are in `transport`.
5. `judge.evaluate` has a solution built, checked (`evaluators`, `checking`), sealed and timed
   (`judge.timer`, `judge.passes`, `timing.handshake`), and `judge.record` writes the evaluation.
6. The event returns to `benchmark`, which appends the trace; `report` reads traces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fib_schema.package_init import lazy_exports, require_linux

__all__ = [
    "Benchmark",
    "BenchmarkConfig",
    "EvalConfig",
    "EvaluatorFailed",
    "EvaluatorUnusable",
    "InputError",
    "InvalidConfig",
    "IsolationReport",
    "JudgeProcess",
    "Latencies",
    "OutputsUndefined",
    "ReferenceFailed",
    "ResolvedEvalConfig",
    "Tolerance",
    "UnsupportedDevice",
    "__version__",
    "evaluate",
    "make_inputs",
    "measure",
    "probe_isolation",
    "remove_build_cache",
]

require_linux("fib-bench")

if TYPE_CHECKING:
    from .api import IsolationReport, evaluate, probe_isolation, remove_build_cache
    from .benchmark import Benchmark
    from .config import BenchmarkConfig, EvalConfig, ResolvedEvalConfig, Tolerance
    from .errors import (
        EvaluatorFailed,
        EvaluatorUnusable,
        InputError,
        InvalidConfig,
        OutputsUndefined,
        ReferenceFailed,
        UnsupportedDevice,
    )
    from .execution.judge_process import JudgeProcess
    from .inputs.generation import make_inputs
    from .measuring import Latencies, measure

    __version__: str
else:
    __getattr__, __dir__ = lazy_exports(__name__, "fib-bench")
