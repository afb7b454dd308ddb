"""Import paths that public programs use."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import pytest

PATHS = {
    "compile.builders.tvm_ffi_builder": "TVMFFIBuilder",
    "compile.builders.torch_builder": "TorchBuilder",
    "compile.builders.tilelang_builder": "TileLangBuilder",
    "compile.builders.python_builder": "PythonBuilder",
    "compile.builders.triton_builder": "TritonBuilder",
    "compile.utils": "write_sources_to_path create_package_name",
    "compile.builder": "Builder BuildError",
    "compile.registry": "BuilderRegistry",
    "compile.runnable": "Runnable RunnableMetadata",
    "data.definition": "Definition AxisConst AxisVar TensorSpec",
    "data.solution": "Solution BuildSpec SourceFile SupportedLanguages",
    "data.trace": "Trace Evaluation EvaluationStatus Correctness Performance Environment",
    "data.workload": "Workload RandomInput ScalarInput SafetensorsInput InputSpec",
    "data.trace_set": "TraceSet SpeedupMetrics TraceSetSummary",
    "data.json_utils": "save_json_file load_json_file save_jsonl_file load_jsonl_file append_jsonl_file",
    "data.validate": (
        "validate_dataset ALL_CHECKS CPU_CHECKS CheckMessage CheckResult DefinitionReport ReportConfig DatasetReport "
        "compute_definition_status render_text_report"
    ),
    "data.validate_render": "render_report",
    "tracing.config": "TracingConfig TracingConfigRegistry",
    "tracing.policy": "FilterPolicy InputDumpPolicy PolicyRegistry",
    "tracing.presets": (
        "DumpAllPolicy DumpNonePolicy DumpIntPolicy KeepAllPolicy KeepFirstKPolicy KeepFirstPolicy KeepNonePolicy "
        "KeepFirstKByAxesPolicy AttentionFilterPolicy get_default_configs get_full_configs get_attention_only_configs"
    ),
    "tracing.runtime": "TracingRuntime",
    "tracing.workload_entry": "WorkloadEntry",
    "apply.apply_api": "apply enable_apply disable_apply",
    "apply.presets": "get_default_registry",
    "apply.config": "ApplyConfig ApplyConfigRegistry",
    "apply.runtime": "ApplyRuntime",
    "apply.key": "ApplyKey ApplyKeyBuilder",
    "integration.flashinfer": "install_flashinfer_integrations",
    "integration.flashinfer.adapters.rmsnorm": "RMSNORM",
    "integration.flashinfer.adapters.linear": "TORCH_LINEAR",
    "integration.flashinfer.common": "infer_kv_layout_from_args write_back_outputs",
    "integration.utils": "ArgBinder ContextStore",
    "integration.patch_manager": "PatchManager PatchSpec get_manager",
    "bench.evaluators": (
        "Evaluator DefaultEvaluator LowBitEvaluator SamplingEvaluator DsaSparseAttentionEvaluator "
        "DsaTopkIndexerEvaluator resolve_evaluator"
    ),
    "bench.benchmark": "Benchmark",
    "bench.config": "BenchmarkConfig EvalConfig ResolvedEvalConfig",
    "env": "get_fib_enable_apply get_fib_enable_tracing get_fib_dataset_path get_fib_cache_path",
    "utils": (
        "dtype_str_to_torch_dtype dtype_str_to_python_dtype is_dtype_integer is_cuda_available list_cuda_devices "
        "env_snapshot hardware_from_device"
    ),
    "agents": (
        "flashinfer_bench_list_ncu_options flashinfer_bench_run_ncu flashinfer_bench_run_sanitizer function_to_schema "
        "get_all_tool_schemas extract_solution_to_files pack_solution_from_files FFI_PROMPT_SIMPLE FFI_PROMPT"
    ),
}
OPTIONAL = {"agents": "fib_agents", "serve": "fib_serve"}


@pytest.mark.parametrize("path", PATHS)
def test_every_name_resolves(path: str) -> None:
    if path in OPTIONAL and importlib.util.find_spec(OPTIONAL[path]) is None:
        pytest.skip(f"{OPTIONAL[path]} is not installed")
    module = importlib.import_module(f"flashinfer_bench.{path}")
    for name in PATHS[path].split():
        found = getattr(module, name)
        namespace: dict[str, Any] = {}
        exec(f"from flashinfer_bench.{path} import {name}", namespace)
        assert namespace[name] is found


@pytest.mark.parametrize("area", OPTIONAL)
def test_an_optional_area_says_what_to_install(area: str) -> None:
    if importlib.util.find_spec(OPTIONAL[area]) is not None:
        pytest.skip(f"{OPTIONAL[area]} is installed")
    with pytest.raises(ImportError, match="pip install"):
        importlib.import_module(f"flashinfer_bench.{area}")
    assert not hasattr(importlib.import_module("flashinfer_bench"), area)


@pytest.mark.parametrize(("module", "name"), [("utils", "no_such_name"), ("bench", "no_such_name")])
def test_hasattr_of_a_name_that_does_not_exist_is_false(module: str, name: str) -> None:
    found = importlib.import_module(f"flashinfer_bench.{module}")
    assert not hasattr(found, name)
    assert getattr(found, name, None) is None
    with pytest.raises(AttributeError):
        getattr(found, name)
    with pytest.raises(ImportError):
        exec(f"from flashinfer_bench.{module} import {name}")


def test_submodules_are_attributes_of_their_packages() -> None:
    import flashinfer_bench.data.trace_set

    assert flashinfer_bench.data.trace_set is importlib.import_module("flashinfer_bench.data.trace_set")


@pytest.mark.parametrize(
    "name",
    [
        "Benchmark",
        "BenchmarkConfig",
        "apply",
        "enable_apply",
        "disable_apply",
        "ApplyConfig",
        "ApplyConfigRegistry",
        "enable_tracing",
        "disable_tracing",
        "TracingConfig",
        "TracingConfigRegistry",
        "Definition",
        "Solution",
        "Trace",
        "TraceSet",
        "AxisConst",
        "AxisVar",
        "TensorSpec",
        "SourceFile",
        "BuildSpec",
        "SupportedLanguages",
        "RandomInput",
        "SafetensorsInput",
        "Workload",
        "Correctness",
        "Performance",
        "Environment",
        "Evaluation",
        "EvaluationStatus",
        "__version__",
    ],
)
def test_the_package_exports(name: str) -> None:
    assert hasattr(importlib.import_module("flashinfer_bench"), name)
