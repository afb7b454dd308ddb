"""Table of the modules and names of `flashinfer_bench`, and which object of the FIB packages each name is.

`fib_compat.finder` makes a module of each row.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib.util import find_spec
from types import MappingProxyType

PACKAGE = "flashinfer_bench"

MODULES: Mapping[str, str] = MappingProxyType(
    {
        "": (
            "fib_compat: __version__; "
            "flashinfer_bench.apply: ApplyConfig ApplyConfigRegistry apply disable_apply enable_apply; "
            "flashinfer_bench.bench: Benchmark BenchmarkConfig; "
            "flashinfer_bench.data: AxisConst AxisVar BuildSpec Correctness Definition Environment Evaluation "
            "EvaluationStatus Performance RandomInput SafetensorsInput Solution SourceFile SupportedLanguages "
            "TensorSpec Trace TraceSet Workload; "
            "flashinfer_bench.tracing: TracingConfig TracingConfigRegistry disable_tracing enable_tracing"
        ),
        "__main__": "fib_compat.cli.main: main=cli",
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
        "apply.apply_api": "flashinfer_bench.apply: apply disable_apply enable_apply",
        "apply.config": "flashinfer_bench.apply: ApplyConfig ApplyConfigRegistry",
        "apply.key": (
            "fib_apply: ApplyKey ApplyKeyBuilder ApplyKeyFactory "
            "AxesOnlyKeyBuilder GEMMKeyBuilder GQAKeyBuilder MLAKeyBuilder"
        ),
        "apply.presets": "flashinfer_bench.apply: get_default_registry",
        "apply.runtime": "flashinfer_bench.apply: ApplyRuntime get_runtime set_runtime",
        "apply.table": "fib_apply: ApplyTable",
        "bench": "fib_bench: EvalConfig; fib_compat.names.bench: Benchmark BenchmarkConfig ResolvedEvalConfig",
        "bench.benchmark": "flashinfer_bench.bench: Benchmark",
        "bench.config": "flashinfer_bench.bench: BenchmarkConfig EvalConfig ResolvedEvalConfig",
        "bench.evaluators": (
            "fib_compat.names.bench: DefaultEvaluator DsaSparseAttentionEvaluator DsaTopkIndexerEvaluator "
            "Evaluator LowBitEvaluator SamplingEvaluator resolve_evaluator"
        ),
        "cli": "fib_compat.cli.main: cli",
        "cli.main": "fib_compat.cli.main: cli",
        "compile": "fib_compile: BuildError Builder BuilderRegistry Runnable RunnableMetadata",
        "compile.builder": "fib_compile: BuildError Builder",
        "compile.builders": "fib_compile: PythonBuilder TVMFFIBuilder TileLangBuilder TorchBuilder TritonBuilder",
        "compile.builders.python_builder": "flashinfer_bench.compile.builders: PythonBuilder",
        "compile.builders.tilelang_builder": "flashinfer_bench.compile.builders: TileLangBuilder",
        "compile.builders.torch_builder": "flashinfer_bench.compile.builders: TorchBuilder",
        "compile.builders.triton_builder": "flashinfer_bench.compile.builders: TritonBuilder",
        "compile.builders.tvm_ffi_builder": "flashinfer_bench.compile.builders: TVMFFIBuilder",
        "compile.registry": "flashinfer_bench.compile: BuilderRegistry",
        "compile.runnable": "flashinfer_bench.compile: Runnable RunnableMetadata",
        "compile.utils": "fib_compat.names.functions: create_package_name write_sources_to_path",
        "data": (
            "fib_schema: AxisConst AxisSpec AxisVar BuildSpec Correctness DType Definition Environment Evaluation "
            "EvaluationStatus InputSpec Performance RandomInput SafetensorsInput ScalarInput "
            "Solution SourceFile SpeedupMetrics SupportedBindings SupportedLanguages TensorSpec Trace "
            "TraceSetSummary Workload append_jsonl_file load_json_file load_jsonl_file save_json_file save_jsonl_file; "
            "fib_compat.names.trace_set: TraceSet"
        ),
        "data.definition": "flashinfer_bench.data: AxisConst AxisSpec AxisVar DType Definition TensorSpec",
        "data.json_utils": (
            "flashinfer_bench.data: append_jsonl_file load_json_file load_jsonl_file save_json_file save_jsonl_file"
        ),
        "data.solution": "flashinfer_bench.data: BuildSpec Solution SourceFile SupportedBindings SupportedLanguages",
        "data.trace": (
            "flashinfer_bench.data: Correctness Environment Evaluation EvaluationStatus InputSpec "
            "Performance RandomInput SafetensorsInput ScalarInput Trace Workload"
        ),
        "data.trace_set": "flashinfer_bench.data: SpeedupMetrics TraceSet TraceSetSummary",
        "data.validate": (
            "fib_compat.names.validation: ALL_CHECKS CPU_CHECKS CheckMessage CheckResult DatasetReport "
            "DefinitionReport ReportConfig compute_definition_status render_text_report validate_dataset"
        ),
        "data.validate_render": "fib_compat.names.validation: render_report render_text_report",
        "data.workload": "flashinfer_bench.data: InputSpec RandomInput SafetensorsInput ScalarInput Workload",
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
            "fib_tracer: disable_tracing; "
            "fib_compat.names.tracing: FilterPolicy InputDumpPolicy PolicyRegistry TracingConfig "
            "TracingConfigRegistry TracingRuntime WorkloadEntry enable_tracing "
            "get_attention_only_configs get_default_configs get_full_configs"
        ),
        "tracing.config": "flashinfer_bench.tracing: TracingConfig TracingConfigRegistry",
        "tracing.policy": "flashinfer_bench.tracing: FilterPolicy InputDumpPolicy PolicyRegistry",
        "tracing.presets": (
            "fib_tracer.policies: DumpAllPolicy=DumpAll DumpIntPolicy=DumpInt DumpNonePolicy=DumpNone; "
            "fib_compat.names.tracing: AttentionFilterPolicy KeepAllPolicy KeepFirstKByAxesPolicy KeepFirstKPolicy "
            "KeepFirstPolicy KeepNonePolicy; "
            "flashinfer_bench.tracing: get_attention_only_configs get_default_configs get_full_configs"
        ),
        "tracing.runtime": "flashinfer_bench.tracing: TracingRuntime",
        "tracing.workload_entry": "flashinfer_bench.tracing: WorkloadEntry",
        "utils": (
            "fib_compile.device: dtype_str_to_python_dtype dtype_str_to_torch_dtype env_snapshot hardware_from_device "
            "is_cuda_available is_dtype_integer list_cuda_devices"
        ),
    }
)
"""Names by module below `flashinfer_bench`: ``owner: name OLD=new; other_owner: ...``; an empty row has no name.

An owner is an importable module, or another row by its full name. ``OLD=new`` offers the owner's ``new`` as ``OLD``.
"""

EXTRAS: Mapping[str, str] = MappingProxyType({"agents": "fib_agents", "serve": "fib_serve"})
"""Modules that need an extra of the same name, and the package that the extra installs."""


def missing_extra(module: str) -> str | None:
    """Missing package of a module, by its full name, and how to install it; None if nothing is missing."""
    package, _, below = module.partition(".")
    if package != PACKAGE or below not in EXTRAS or find_spec(EXTRAS[below]) is not None:
        return None
    return f"{EXTRAS[below].replace('_', '-')} is not installed (pip install 'fib-compat[{below}]')"


def has_module(module: str) -> bool:
    """Whether the table has a module, by its full name."""
    package, _, below = module.partition(".")
    return package == PACKAGE and below in MODULES


def submodules(module: str) -> list[str]:
    """The full names of the modules directly below one of the table."""
    found = [PACKAGE + "." + name for name in MODULES if name]
    return [name for name in found if name.rpartition(".")[0] == module]


@functools.cache
def names_of(module: str) -> Mapping[str, tuple[str, str]]:
    """The names of a module of the table, each with the module and the name of its object.

    Raises:
        KeyError: The table has no such module.
    """
    names: dict[str, tuple[str, str]] = {}
    row = MODULES[module.partition(".")[2]]
    for part in filter(None, row.split("; ")):
        owner, _, listed = part.partition(": ")
        for word in listed.split():
            old, _, new = word.partition("=")
            names[old] = owner, new or old
    return MappingProxyType(dict(sorted(names.items())))
