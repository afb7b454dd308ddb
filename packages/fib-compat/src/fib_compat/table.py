"""Table of the modules and names of `flashinfer_bench`, and which object of the FIB packages each name is.

`fib_compat.modules` makes a module of each row.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib.util import find_spec
from types import MappingProxyType

PACKAGE = "flashinfer_bench"

_ROWS = {
    "": (
        "fib_compat: __version__; "
        "flashinfer_bench.apply: ApplyConfig ApplyConfigRegistry apply disable_apply enable_apply; "
        "flashinfer_bench.bench: Benchmark BenchmarkConfig; "
        "flashinfer_bench.data: AxisConst AxisVar BuildSpec Correctness Definition Environment Evaluation "
        "EvaluationStatus Performance RandomInput SafetensorsInput Solution SourceFile SupportedLanguages "
        "TensorSpec Trace TraceSet Workload; "
        "flashinfer_bench.tracing: TracingConfig TracingConfigRegistry disable_tracing enable_tracing"
    ),
    "agents": (
        "fib_agents: function_to_schema pack_solution_from_files; "
        "fib_compat.names.agents: FFI_PROMPT FFI_PROMPT_SIMPLE extract_solution_to_files "
        "flashinfer_bench_list_ncu_options flashinfer_bench_run_ncu flashinfer_bench_run_sanitizer "
        "get_all_tool_schemas"
    ),
    "apply": (
        "fib_apply: apply disable_apply get_runtime set_runtime; "
        "fib_compat.names.routing: ApplyConfig ApplyConfigRegistry ApplyRuntime enable_apply get_default_registry"
    ),
    "apply.key": (
        "fib_apply: ApplyKey ApplyKeyBuilder ApplyKeyFactory "
        "AxesOnlyKeyBuilder GEMMKeyBuilder GQAKeyBuilder MLAKeyBuilder"
    ),
    "apply.table": "fib_apply: ApplyTable",
    "bench": "fib_bench: EvalConfig; fib_compat.names.bench: Benchmark BenchmarkConfig ResolvedEvalConfig",
    "bench.evaluators": (
        "fib_compat.names.bench: DefaultEvaluator DsaSparseAttentionEvaluator DsaTopkIndexerEvaluator "
        "Evaluator LowBitEvaluator SamplingEvaluator resolve_evaluator"
    ),
    "cli": "fib_compat.cli: cli",
    "compile": "fib_compile: BuildError Builder BuilderRegistry Runnable RunnableMetadata",
    "compile.builders": "fib_compile: PythonBuilder TVMFFIBuilder TileLangBuilder TorchBuilder TritonBuilder",
    "compile.utils": "fib_compat.names.functions: create_package_name write_sources_to_path",
    "data": (
        "fib_schema: AxisConst AxisSpec AxisVar BuildSpec Correctness DType Definition Environment Evaluation "
        "EvaluationStatus InputSpec Performance RandomInput SafetensorsInput ScalarInput "
        "Solution SourceFile SpeedupMetrics SupportedBindings SupportedLanguages TensorSpec Trace "
        "TraceSetSummary Workload append_jsonl_file load_json_file load_jsonl_file save_json_file save_jsonl_file; "
        "fib_compat.names.trace_set: TraceSet"
    ),
    "data.validate": (
        "fib_compat.names.validation: ALL_CHECKS CPU_CHECKS CheckMessage CheckResult DatasetReport "
        "DefinitionReport ReportConfig compute_definition_status render_text_report validate_dataset"
    ),
    "data.validate_render": "fib_compat.names.validation: render_report render_text_report",
    "env": (
        "fib_schema: get_fib_cache_path get_fib_dataset_path; "
        "fib_compat.names.functions: get_fib_enable_apply get_fib_enable_tracing"
    ),
    "integration": "",
    "integration.flashinfer": "fib_integrations: install_flashinfer_integrations",
    "integration.flashinfer.adapters": "",
    "integration.flashinfer.adapters.linear": "fib_integrations.adapters.gemm: TORCH_LINEAR",
    "integration.flashinfer.adapters.rmsnorm": "fib_integrations.adapters.elementwise: RMSNORM",
    "integration.flashinfer.common": (
        "fib_compat.names.integration: infer_kv_layout_from_args infer_paged_kv_layout_from_tensors "
        "infer_ragged_kv_layout_from_tensors normalize_paged_kv_to_nhd normalize_ragged_kv_to_nhd "
        "pick_sm_scale_gqa pick_sm_scale_mla write_back_outputs"
    ),
    "integration.patch_manager": "fib_integrations.patching: Kind PatchManager PatchSpec get_manager",
    "integration.utils": "fib_compat.names.integration: ArgBinder ContextStore",
    "serve": "",
    "tracing": (
        "fib_tracer: TracingConfigRegistry disable_tracing get_attention_only_configs get_default_configs "
        "get_full_configs; fib_compat.names.tracing: FilterPolicy InputDumpPolicy PolicyRegistry TracingConfig "
        "TracingRuntime WorkloadEntry enable_tracing"
    ),
    "tracing.presets": (
        "fib_tracer.policies: DumpAllPolicy=DumpAll DumpIntPolicy=DumpInt DumpNonePolicy=DumpNone; "
        "fib_compat.names.tracing: AttentionFilterPolicy KeepAllPolicy KeepFirstKByAxesPolicy KeepFirstKPolicy "
        "KeepFirstPolicy KeepNonePolicy; "
        "flashinfer_bench.tracing: get_attention_only_configs get_default_configs get_full_configs"
    ),
    "utils": (
        "fib_compile.device: dtype_str_to_python_dtype dtype_str_to_torch_dtype env_snapshot hardware_from_device "
        "is_cuda_available is_dtype_integer list_cuda_devices"
    ),
}
"""Names by module below `flashinfer_bench`: ``owner: name OLD=new; other_owner: ...``; an empty row has no name.

An owner is an importable module, or another row by its full name. ``OLD=new`` offers the owner's ``new`` as ``OLD``.
"""

_PARTS = {
    "apply": "apply_api config presets runtime",
    "bench": "benchmark config",
    "cli": "main",
    "compile": "builder registry runnable",
    "compile.builders": "python_builder tilelang_builder torch_builder triton_builder tvm_ffi_builder",
    "data": "definition json_utils solution trace trace_set workload",
    "tracing": "config policy runtime workload_entry",
}
"""Modules by the package that has their names; each offers all of these."""
_BELOW = _ROWS | {f"{package}.{part}": _ROWS[package] for package, parts in _PARTS.items() for part in parts.split()}
MODULES: Mapping[str, str] = MappingProxyType({f"{PACKAGE}.{name}".rstrip("."): row for name, row in _BELOW.items()})
"""The rows by the full names of modules."""
EXTRAS: Mapping[str, str] = MappingProxyType({"agents": "fib_agents", "serve": "fib_serve"})
"""Modules that need an extra of the same name, and the package that the extra installs."""


def missing_extra(module: str) -> str | None:
    """Missing package of a module, by its full name, and how to install it; None if nothing is missing."""
    package, _, below = module.partition(".")
    if package != PACKAGE or below not in EXTRAS or find_spec(EXTRAS[below]) is not None:
        return None
    return f"{EXTRAS[below].replace('_', '-')} is not installed (pip install 'fib-compat[{below}]')"


@functools.cache
def names_of(module: str) -> Mapping[str, tuple[str, str]]:
    """The names of a module of the table, each with the module and the name of its object.

    Raises:
        KeyError: The table has no such module.
    """
    names: dict[str, tuple[str, str]] = {}
    for part in filter(None, MODULES[module].split("; ")):
        owner, _, listed = part.partition(": ")
        for word in listed.split():
            old, _, new = word.partition("=")
            names[old] = owner, new or old
    return MappingProxyType(dict(sorted(names.items())))
