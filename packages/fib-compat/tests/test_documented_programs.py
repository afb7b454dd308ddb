"""Five programs that were written from the documents alone run unchanged."""

import runpy
import sys
from pathlib import Path

import compat_samples as samples
import pytest
from flashinfer_bench.data import AxisConst, AxisVar, TensorSpec, save_json_file

PROGRAMS = Path(__file__).parent / "programs" / "documented"


@pytest.fixture
def output(capsys, monkeypatch):
    def output(name, *words):
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *map(str, words)])
        runpy.run_path(str(PROGRAMS / f"{name}.py"), run_name="__main__")
        return capsys.readouterr().out.splitlines()

    return output


@pytest.mark.slow
def test_a_benchmark_from_yaml(output, tmp_path, caplog):
    root = samples.write(tmp_path / "data")
    lines = output("benchmark_yaml", root, tmp_path / "b.yaml")
    assert lines == ["rmsnorm_h64 mine 4", "rmsnorm_h64 mine 8"]
    assert "gemm_n128_k2048" in caplog.text


def test_an_apply_quick_start(output, tmp_path):
    root = samples.write(tmp_path, traces=(samples.trace(),))
    lines = output("apply_quickstart", root)
    assert lines == ["fallback", "fallback plain", "fallback"]


def test_a_filter_policy(output, tmp_path):
    samples.write(tmp_path / "data")
    lines = output("filter_policy", tmp_path / "data")
    # behind the workloads of the data set
    assert lines[2:] == [f"{batch} {{'x': 'RandomInput', 'weight': 'SafetensorsInput'}}" for batch in (3, 7)]


def test_building_solutions(output, tmp_path):
    root = samples.write(tmp_path / "data", solutions=(samples.solution(), samples.solution("marked", samples.MARKED)))
    assert output("build_solutions", root) == ["marked False", "plain True"]


def test_tracing_an_engine(output, tmp_path, monkeypatch):
    """With a stand-in for FlashInfer."""
    package = tmp_path / "site" / "flashinfer"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from . import norm\n__version__ = '0.6.4'\n")
    (package / "norm.py").write_text(
        "def rmsnorm(input, weight, eps=1e-06, out=None, enable_pdl=None):\n    return input * weight\n"
    )
    monkeypatch.syspath_prepend(package.parent)
    tensor = TensorSpec(shape=["batch_size", "hidden_size"], dtype="bfloat16")
    definition = samples.definition(
        axes={"batch_size": AxisVar(), "hidden_size": AxisConst(value=64)},
        inputs={"hidden_states": tensor, "weight": TensorSpec(shape=["hidden_size"], dtype="bfloat16")},
        outputs={"output": tensor},
        reference="def run(hidden_states, weight):\n    EPS = 1e-06\n    return hidden_states * weight\n",
    )
    save_json_file(definition, tmp_path / "data" / "definitions" / "rmsnorm" / "rmsnorm_h64.json")
    try:
        assert output("trace_engine", tmp_path / "data") == ["[1, 2, 4]"]
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "flashinfer"]:
            del sys.modules[name]
