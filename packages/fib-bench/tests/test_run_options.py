import argparse

import pytest
from fib_bench import BenchmarkConfig
from fib_bench.cli import options
from fib_bench.cli.options import add_run_options, config_of
from fib_schema import TraceSet


def configuration(*words):
    parser = argparse.ArgumentParser()
    add_run_options(parser)
    return config_of(parser.parse_args([*words]), TraceSet())


def test_an_option_that_is_not_given_says_nothing(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert configuration() == BenchmarkConfig()


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr("fib_compile.device.torch_cuda_version", lambda: "13.0")
    monkeypatch.setattr("pynvml.nvmlInit", lambda: None)
    monkeypatch.setattr("pynvml.nvmlDeviceGetCount", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("words", "device"),
    [("", "cuda:0"), ("--device cpu", "cpu"), ("--device cuda:1", "cuda:1"), ("--config YAML", "cuda:1")],
)
def test_the_device_is_the_first_gpu_unless_another_one_is_named(words, device, tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text("device: cuda:1\n")
    found = configuration(*words.replace("YAML", str(config)).split())
    assert (found.device, found.devices) == (device, None)


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("visible", "device"), [("1", "cuda:0"), ("1,0", "cuda:0"), ("GPU-5", "cuda:0"), ("2", "cpu"), ("", "cpu")]
)
def test_a_gpu_that_is_hidden_or_that_torch_cannot_use_is_no_default(visible, device, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert options.default_device() == device
    monkeypatch.setattr("fib_compile.device.torch_cuda_version", lambda: None)
    assert options.default_device() == "cpu"


@pytest.mark.usefixtures("two_gpus")
def test_devices_that_a_command_names_replace_the_default():
    assert configuration("--devices", "cpu") == BenchmarkConfig(devices=("cpu",))


def test_an_option_that_is_given_is_a_field():
    words = (
        "--warmup-runs 1 --iterations 2 --num-trials 3 --measure-seconds 0.5 --confidence 0.01 --rtol 1e-3 --atol 0 "
        "--required-matched-ratio 0.9 --no-profile-baseline --synthesize-missing --device cuda:1 --seed 4 --timeout 5 "
        "--definitions a,b c --max-workloads 1 --solutions a --op-types b"
    )
    assert configuration(*words.split()) == BenchmarkConfig(
        warmup_runs=1, iterations=2, num_trials=3, measure_seconds=0.5, confidence=0.01, rtol=1e-3, atol=0.0,
        required_matched_ratio=0.9, profile_baseline=False, synthesize_missing=True, device="cuda:1", seed=4,
        timeout_seconds=5.0, definitions=("a", "b", "c"), max_workloads=1, solutions=("a",), op_types=("b",),
    )  # fmt: skip


def test_a_file_stands_below_the_options(tmp_path):
    file = tmp_path / "settings.yaml"
    file.write_text("{device: cuda:3, seed: 7, rtol: 0.5, atol: 0.25}")
    config = configuration("--config", str(file), "--rtol", "0.125", "--seed", "0")
    assert config == BenchmarkConfig(device="cuda:3", seed=0, rtol=0.125, atol=0.25)
