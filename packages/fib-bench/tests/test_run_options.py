"""Tests of the options of ``fib-bench run`` as a configuration."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
import torch
from fib_bench import BenchmarkConfig
from fib_bench.cli import options
from fib_bench.cli.options import add_run_options, config_of
from fib_schema import TraceSet


def configuration(*words: str) -> BenchmarkConfig:
    parser = argparse.ArgumentParser()
    add_run_options(parser)
    return config_of(parser.parse_args([*words]), TraceSet())


def test_an_option_that_is_not_given_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert configuration() == BenchmarkConfig()


@pytest.mark.parametrize(
    ("words", "gpus", "device"),
    [
        ("", 2, "cuda:0"),
        ("", 0, "cpu"),
        ("--device cpu", 2, "cpu"),
        ("--device cuda:1", 2, "cuda:1"),
        ("--config YAML", 2, "cuda:1"),
    ],
)
def test_the_device_is_the_first_gpu_unless_another_one_is_named(
    words: str, gpus: int, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(options, "_DEVICES", tmp_path)
    (tmp_path / "nvidia0").touch()
    config = tmp_path / "config.yaml"
    config.write_text("device: cuda:1\n")
    found = configuration(*words.replace("YAML", str(config)).split())
    assert (found.device, found.devices) == (device, None)


def test_a_machine_without_files_of_drivers_has_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(options, "_DEVICES", tmp_path)
    assert configuration().device == "cpu"


@pytest.mark.parametrize(
    ("visible", "by_nvml"), [(None, True), ("1", True), ("1,0", True), ("2", False), ("", False), ("GPU-5", False)]
)
def test_torch_is_asked_only_where_nvml_cannot_tell_the_device(
    visible: str | None, by_nvml: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr("fib_compile.device.list_cuda_devices", lambda: asked.append("torch") or [])
    monkeypatch.setattr("fib_compile.device.torch_cuda_version", lambda: "13.0")
    monkeypatch.setattr("pynvml.nvmlInit", lambda: None)
    monkeypatch.setattr("pynvml.nvmlDeviceGetCount", lambda: 2)
    monkeypatch.setattr(options, "_DEVICES", tmp_path)
    (tmp_path / "nvidia0").touch()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert (options.default_device(), asked) == (("cuda:0", []) if by_nvml else ("cpu", ["torch"]))


def test_devices_that_a_command_names_replace_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert configuration("--devices", "cpu") == BenchmarkConfig(devices=("cpu",))


def test_an_option_that_is_given_is_a_field() -> None:
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


def test_a_file_stands_below_the_options(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("{device: cuda:3, seed: 7, rtol: 0.5, atol: 0.25}")
    config = configuration("--config", str(file), "--rtol", "0.125", "--seed", "0")
    assert config == BenchmarkConfig(device="cuda:3", seed=0, rtol=0.125, atol=0.25)
