"""Documented names without an equivalent, and what replaces each.

Using such a name raises `NotOffered` with the text of `REPLACED`, which lists members of classes too.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_RUNNERS = (
    "solutions run in worker processes, whose control is internal; "
    "call Benchmark.run_all, or fib_bench.evaluate for one solution"
)
_FAILURES = "a failure in a worker is a result: see Evaluation.status and .log, or RunResult.skipped"
_FLAGS = "fib-compile finds the headers and libraries of BuildSpec.dependencies; see its README"
_ADAPTER = "adapters are values: use fib_integrations.adapters.{module}.{name}, whose targets are a tuple"

REPLACED: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "flashinfer_bench.bench": {
            "ResolvedEvalConfig.profile_baseline": "it is a field of BenchmarkConfig, for all definitions",
        },
        "flashinfer_bench.bench.benchmark": {
            "Benchmark.evaluate": "use run_all(dump_traces=False), which returns a TraceSet in memory",
            "Benchmark.flush": "every evaluation is written to the disk at once",
        },
        "flashinfer_bench.bench.config": {
            "BenchmarkConfig.log_level": "it is accepted and has no effect; logging.basicConfig sets the level",
        },
        "flashinfer_bench.bench.evaluators": dict.fromkeys(
            (
                "Evaluator.build_baseline",
                "Evaluator.check_correctness",
                "Evaluator.eval_performance",
                "Evaluator.evaluate",
            ),
            "the judge process does this; call fib_bench.evaluate for one solution",
        ),
        "flashinfer_bench.bench.runner": {
            "RunnerError": _FAILURES,
            "RunnerFatalError": _FAILURES,
            "BaselineHandle": _RUNNERS,
            "DeviceBaseline": _RUNNERS,
            "Runner": _RUNNERS,
        },
        "flashinfer_bench.bench.runners.mp_runner": {"MultiProcessRunner": _RUNNERS},
        "flashinfer_bench.compile.builder": {
            "Builder.clear_cache": "the registry holds built solutions; use BuilderRegistry.cleanup",
        },
        "flashinfer_bench.compile.builders.cuda_builder": {
            "CUDA_ALLOWED_EXTS": "the builders select a compiler by the suffix of each file",
            "CUDA_DEPS": _FLAGS,
            "CUDA_DEPS_INCLUDE_PATTERNS": _FLAGS,
            "CUDABuilder.clear_cache": "the registry holds built solutions; use BuilderRegistry.cleanup",
        },
        "flashinfer_bench.data.definition": {
            "AxisVar.parent": "it had no effect; records that have it keep it in unknown_fields",
        },
        "flashinfer_bench.data.solution": {
            "BuildSpec.build_commands": "FIB runs no commands of a data set; BuildSpec.compile_options has flags",
        },
        "flashinfer_bench.data.trace": {
            "Evaluation.log_file": "use Evaluation.log, which holds the text instead of a path",
            "Evaluation.error": "use Evaluation.log, which ends with the error",
        },
        "flashinfer_bench.integration.flashinfer.adapters.gqa_paged_decode": {
            "GQAPagedDecodeAdapter": _ADAPTER.format(module="gqa_paged", name="GQA_PAGED_DECODE"),
        },
        "flashinfer_bench.integration.flashinfer.adapters.gqa_paged_prefill": {
            "GQAPagedPrefillAdapter": _ADAPTER.format(module="gqa_paged", name="GQA_PAGED_PREFILL"),
        },
        "flashinfer_bench.integration.flashinfer.adapters.mla_paged": {
            "MLAPagedAdapter": _ADAPTER.format(module="mla_paged", name="MLA_PAGED"),
        },
        "flashinfer_bench.integration.flashinfer.adapters.ragged_prefill": {
            "RaggedPrefillAdapter": _ADAPTER.format(module="ragged_prefill", name="RAGGED_PREFILL"),
        },
        "flashinfer_bench.tracer.types": {
            "TraceEntry.cuda_graph_snapshot": "TracingRuntime.snapshot_graph_tensors "
            "turns captured calls into ordinary entries",
        },
        "flashinfer_bench.utils": {
            "redirect_stdio_to_file": "use contextlib.redirect_stdout; workers capture the output of solutions",
        },
    }
)
"""By module and name (``name`` or ``Class.member``): the explanation."""

OTHER_ARGUMENTS: Mapping[str, str] = MappingProxyType(
    {
        "flashinfer_bench.bench.benchmark:Benchmark.run": "the configuration goes to Benchmark(trace_set, config)",
        "flashinfer_bench.tracer.tracer:Tracer": "it is TracingRuntime, which takes a data set, then settings or rules",
    }
)
"""Names whose arguments differ from the first release's, with an explanation."""
