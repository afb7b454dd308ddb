"""Import paths of the last release that the documents do not list, and its environment variables."""

import importlib
from pathlib import Path
from types import SimpleNamespace

import pytest
from flashinfer_bench import env
from flashinfer_bench.integration.flashinfer.common import infer_kv_layout_from_args

PATHS = {
    "compile.builder": "Builder BuildError",
    "compile.builders.python_builder": "PythonBuilder",
    "compile.builders.tilelang_builder": "TileLangBuilder",
    "compile.builders.torch_builder": "TorchBuilder",
    "compile.builders.triton_builder": "TritonBuilder",
    "compile.builders.tvm_ffi_builder": "TVMFFIBuilder",
    "compile.registry": "BuilderRegistry",
    "compile.runnable": "Runnable RunnableMetadata",
    "data.definition": "Definition AxisConst AxisVar TensorSpec",
    "data.solution": "Solution BuildSpec SourceFile SupportedLanguages",
    "data.trace": "Trace Evaluation EvaluationStatus Correctness Performance Environment",
    "data.trace_set": "TraceSet SpeedupMetrics TraceSetSummary",
    "data.workload": "Workload RandomInput ScalarInput SafetensorsInput InputSpec",
    "tracing.config": "TracingConfig TracingConfigRegistry",
    "apply.config": "ApplyConfig ApplyConfigRegistry",
    "apply.runtime": "ApplyRuntime",
    "apply.key": "ApplyKey ApplyKeyBuilder",
    "integration.flashinfer": "install_flashinfer_integrations",
    "integration.flashinfer.adapters.rmsnorm": "RMSNORM",
    "integration.flashinfer.adapters.linear": "TORCH_LINEAR",
    "integration.flashinfer.common": "infer_kv_layout_from_args write_back_outputs",
    "integration.patch_manager": "PatchManager PatchSpec get_manager",
    "bench.benchmark": "Benchmark",
    "bench.config": "BenchmarkConfig EvalConfig ResolvedEvalConfig",
}


@pytest.mark.parametrize("path", PATHS)
def test_every_name_is_imported_from_its_path(path):
    module = importlib.import_module(f"flashinfer_bench.{path}")
    for name in PATHS[path].split():
        found = {}
        exec(f"from flashinfer_bench.{path} import {name}", found)
        assert found[name] is getattr(module, name)


@pytest.mark.parametrize("name", ["utils", "bench"])
def test_a_name_that_does_not_exist_is_neither_an_attribute_nor_imported(name):
    module = importlib.import_module(f"flashinfer_bench.{name}")
    assert not hasattr(module, "no_such_name")
    with pytest.raises(AttributeError, match=rf"module 'flashinfer_bench\.{name}' has no attribute 'no_such_name'"):
        _ = module.no_such_name
    with pytest.raises(ImportError, match="cannot import name"):
        exec(f"from flashinfer_bench.{name} import no_such_name")


def test_submodules_are_attributes_of_their_packages():
    import flashinfer_bench.data.trace_set

    assert flashinfer_bench.data.trace_set is importlib.import_module("flashinfer_bench.data.trace_set")


def test_variables_are_read_at_each_call(monkeypatch, tmp_path):
    for name, read in (("APPLY", env.get_fib_enable_apply), ("TRACING", env.get_fib_enable_tracing)):
        for value, expected in (("1", True), ("0", False), ("", False)):
            monkeypatch.setenv(f"FIB_ENABLE_{name}", value)
            assert read() is expected
    monkeypatch.setenv("FIB_DATASET_PATH", str(tmp_path))
    monkeypatch.delenv("FIB_CACHE_PATH", raising=False)
    assert env.get_fib_dataset_path() == tmp_path
    assert env.get_fib_cache_path() == Path.home() / ".cache" / "flashinfer_bench" / "cache"


@pytest.mark.parametrize(("layout", "expected"), [("NHD", "NHD"), ("HND", "HND"), ("other", None), (None, None)])
def test_the_layout_of_a_wrapper_is_that_of_its_arguments(layout, expected):
    assert infer_kv_layout_from_args(SimpleNamespace(_kv_layout=layout)) == expected
    assert infer_kv_layout_from_args(object()) is None
