"""Documented names that have no equivalent here, each with what replaces it and why.

Asking a module for one of them raises `NotOffered` with that line. Members of classes are in the table too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NoReturn

from .errors import NotOffered

_RUNNERS = (
    "solutions run in worker processes that a judge drives, and nothing of that is an interface; "
    "call Benchmark.run_all, or fib_bench.evaluate for one solution"
)
_FAILURES = "what goes wrong in a worker is a result; look at Evaluation.status and .log, or at RunResult.skipped"
_FLAGS = "fib-compile finds headers and libraries of BuildSpec.dependencies itself; see its README"
_ADAPTER = "adapters are values: use fib_integrations.adapters.{module}.{name}, whose targets are a tuple"
_SHARED = "adapters read layouts, scales and buffers themselves (fib_integrations.attention), and that is no interface"

REPLACED: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "flashinfer_bench.bench": {
            "ResolvedEvalConfig.profile_baseline": "it is a field of BenchmarkConfig: one for all definitions",
        },
        "flashinfer_bench.bench.benchmark": {
            "Benchmark.evaluate": "use run_all(dump_traces=False), which returns a TraceSet in memory",
            "Benchmark.flush": "every evaluation is on the disk as soon as it is made",
        },
        "flashinfer_bench.bench.config": {
            "BenchmarkConfig.log_level": "nothing is logged: pass an observer to Benchmark.run",
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
            "Builder.clear_cache": "the registry keeps what was built: use BuilderRegistry.cleanup",
        },
        "flashinfer_bench.compile.builders.cuda_builder": {
            "CUDA_ALLOWED_EXTS": "which files are compiled how, NativeBuilder decides by their suffixes",
            "CUDA_DEPS": _FLAGS,
            "CUDA_DEPS_INCLUDE_PATTERNS": _FLAGS,
            "CUDABuilder.clear_cache": "the registry keeps what was built: use BuilderRegistry.cleanup",
        },
        "flashinfer_bench.data.definition": {
            "AxisVar.parent": "nothing read it; data that has it keeps it in unknown_fields",
        },
        "flashinfer_bench.data.solution": {
            "BuildSpec.build_commands": "commands of a data set are not run; flags are in BuildSpec.compile_options",
        },
        "flashinfer_bench.data.trace": {
            "Evaluation.log_file": "Evaluation.log holds the text itself, so that traces can be moved",
            "Evaluation.error": "Evaluation.log holds it, behind what the solution printed",
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
            "ArgBinder": "use inspect.signature(function).bind; adapters have code generated for their arguments",
            "ContextStore": "use weakref.WeakKeyDictionary; adapters keep what an object was planned with themselves",
        },
        "flashinfer_bench.tracer.types": {
            "TraceEntry.cuda_graph_snapshot": "captured calls become entries like all others, "
            "when TracingRuntime.snapshot_graph_tensors is called",
        },
        "flashinfer_bench.utils": {
            "redirect_stdio_to_file": "use contextlib.redirect_stdout; workers capture what solutions print",
        },
    }
)
"""By module: the name, or class and member, and what to say of it."""

OTHER_ARGUMENTS: Mapping[str, str] = MappingProxyType(
    {
        "flashinfer_bench.bench.benchmark:Benchmark.run": "the configuration goes to Benchmark(trace_set, config)",
        "flashinfer_bench.tracer.tracer:Tracer": "it is TracingRuntime: the data set, then settings or rules",
    }
)
"""Names that are there, and take other arguments than they did in the first release."""


def explaining(module: str) -> Callable[[str], NoReturn]:
    """The ``__getattr__`` of a module that has lines in the table."""

    def refuse(name: str) -> NoReturn:
        if name in REPLACED[module]:
            raise NotOffered(f"{module}.{name}", REPLACED[module][name])
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return refuse
