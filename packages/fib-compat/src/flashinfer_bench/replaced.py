"""Documented names without an equivalent, and what replaces each.

Accessing such a name in its module raises `NotOffered` with the text of `REPLACED`, which lists members of classes too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NoReturn

from .errors import NotOffered

_RUNNERS = (
    "solutions run in worker processes, whose control is internal; "
    "call Benchmark.run_all, or fib_bench.evaluate for one solution"
)
_FAILURES = "a failure in a worker is a result: see Evaluation.status and .log, or RunResult.skipped"
_FLAGS = "fib-compile finds the headers and libraries of BuildSpec.dependencies; see its README"
_ADAPTER = "adapters are values: use fib_integrations.adapters.{module}.{name}, whose targets are a tuple"
_SHARED = "adapters handle layouts, scales and buffers internally (fib_integrations.attention)"

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
            "BenchmarkConfig.log_level": "the benchmark does not log; pass an observer to Benchmark.run",
        },
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
        "flashinfer_bench.integration.flashinfer.common": dict.fromkeys(
            (
                "infer_kv_layout_from_args",
                "infer_paged_kv_layout_from_tensors",
                "infer_ragged_kv_layout_from_tensors",
                "normalize_paged_kv_to_nhd",
                "normalize_ragged_kv_to_nhd",
                "pick_sm_scale_gqa",
                "pick_sm_scale_mla",
                "write_back_outputs",
            ),
            _SHARED,
        ),
        "flashinfer_bench.integration.utils": {
            "ArgBinder": "use inspect.signature(function).bind",
            "ContextStore": "use weakref.WeakKeyDictionary",
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


def make_getattr(module: str) -> Callable[[str], NoReturn]:
    """A ``__getattr__`` for a module: it raises `NotOffered` for replaced names, else AttributeError."""
    replaced = REPLACED.get(module, {})

    def raise_for(name: str) -> NoReturn:
        if name in replaced:
            raise NotOffered(f"{module}.{name}", replaced[name])
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return raise_for
