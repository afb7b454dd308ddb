"""Cost of an opaque operator: what is kept of it, how it is measured, and what is assumed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import attrs
import pytest
import torch
from fib_apply import opaque_cost, opaque_measurement
from fib_apply.compiled_measurement import measure
from fib_apply.compiled_times import CompiledTimes
from fib_apply.opaque_cost import OpaqueCost, host_model, load_opaque_cost, save_opaque_cost
from fib_apply.opaque_measurement import measure_opaque_cost, opaque_job


@pytest.fixture(autouse=True)
def cache_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "cache"
    monkeypatch.setenv("FIB_CACHE_PATH", str(path))
    return path


class TestCache:
    def test_a_measured_cost_takes_the_place_of_the_assumed_one(self) -> None:
        assert load_opaque_cost("NVIDIA_H100") == OpaqueCost.assumed("NVIDIA_H100")
        save_opaque_cost("NVIDIA_H100", 123.4, 5.6)
        found = load_opaque_cost("NVIDIA_H100")
        assert f"{found}" == f"an opaque operator adds 123 us, 6 us in a CUDA graph (measured on {host_model()})"
        assert found.is_measured

    def test_another_host_device_or_version_has_its_own(self, monkeypatch: pytest.MonkeyPatch) -> None:
        save_opaque_cost("NVIDIA_H100", 123.4, 5.6)
        assert not load_opaque_cost("NVIDIA_H200").is_measured
        with monkeypatch.context() as patch:
            patch.setattr(opaque_cost, "host_model", lambda: "another CPU")
            assert not load_opaque_cost("NVIDIA_H100").is_measured
        monkeypatch.setattr(opaque_cost, "library_versions", lambda: {"torch": "0.1"})
        assert not load_opaque_cost("NVIDIA_H100").is_measured

    @pytest.mark.parametrize(
        "content",
        [
            "", "[]", "null", "[" * 100_000, '{"format": 0, "calls_us": 1, "replays_us": 2}',
            '{"format": 1, "calls_us": -1, "replays_us": 2}', '{"format": 1, "calls_us": NaN, "replays_us": 2}',
            '{"format": 1, "calls_us": 1, "replays_us": Infinity}', '{"format": 1, "calls_us": null, "replays_us": 2}',
            '{"format": 1, "calls_us": "x", "replays_us": 2}', '{"format": 1, "calls_us": 1}',
        ],
    )  # fmt: skip
    def test_a_damaged_file_is_no_measurement(self, cache_path: Path, content: str) -> None:
        save_opaque_cost("cpu", 5.0, None)
        (file,) = (cache_path / "apply-v1" / "opaque").glob("*.json")
        file.write_text(content)
        assert load_opaque_cost("cpu") == OpaqueCost.assumed("cpu")

    def test_a_folder_that_cannot_be_written_is_logged(
        self, cache_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        cache_path.write_text("a file")
        assert save_opaque_cost("cpu", 5.0, None).calls_us == 5.0
        assert "the cost of an opaque operator cannot be kept" in caplog.text


class TestLeastSaving:
    def test_in_any_graph_the_rest_of_a_layer_is_added(self) -> None:
        cost = OpaqueCost(100.0, 5.0, "measured")
        assert cost.least_saving_us(is_captured=False) == pytest.approx(240.0)
        assert cost.least_saving_us(is_captured=False, added_us=20.0) == pytest.approx(160.0)

    def test_in_a_captured_graph_only_device_time_counts(self) -> None:
        assert OpaqueCost(100.0, 5.0, "measured").least_saving_us(is_captured=True) == 5.0

    def test_the_cpu_does_both(self) -> None:
        assert OpaqueCost(9.0, None, "measured").least_saving_us(is_captured=False) == 9.0
        assert OpaqueCost(9.0, None, "measured").least_saving_us(is_captured=True) == 9.0


class TestMeasure:
    @pytest.mark.slow
    def test_an_operator_is_compared_with_compiled_code(self) -> None:
        job = opaque_job("cpu", "cpu")
        (found,) = measure(job, 300).values()
        assert isinstance(found, CompiledTimes), found
        assert not found.is_inlined

    @pytest.mark.parametrize(
        ("pairs", "calls_us", "replays_us"),
        [
            ({"calls": (30.0, 20.0), "host": (32.0, 19.0), "replays": (5.0, 3.0)}, 13.0, 2.0),
            ({"calls": (20.0, 30.0), "host": (19.0, 32.0), "replays": (3.0, 5.0)}, 0.0, 0.0),
            ({"calls": (30.0, 20.0)}, 10.0, None),
        ],
    )
    def test_the_cost_is_the_difference(
        self,
        pairs: dict[str, tuple[float, float]],
        calls_us: float,
        replays_us: float | None,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        times = CompiledTimes("opaque", False, pairs)
        monkeypatch.setattr(opaque_measurement, "measure", lambda job, _: dict.fromkeys(job.keys, times))
        found = measure_opaque_cost("cpu", "cpu", 1.0)
        assert isinstance(found, OpaqueCost)
        assert (found.calls_us, found.replays_us) == (calls_us, replays_us)
        assert load_opaque_cost("cpu") == found

    def test_nothing_is_kept_of_a_measurement_on_a_busy_host(self, monkeypatch: pytest.MonkeyPatch) -> None:
        times = CompiledTimes("opaque", False, {"calls": (9000.0, 20.0)})
        monkeypatch.setattr(opaque_measurement, "measure", lambda job, _: dict.fromkeys(job.keys, times))
        assert measure_opaque_cost("cpu", "cpu", 1.0) == (
            "the host was busy: 8980 us were measured, and an operator costs at most 2000"
        )
        assert not load_opaque_cost("cpu").is_measured

    def test_nothing_is_kept_of_a_measurement_that_failed(self) -> None:
        assert measure_opaque_cost("cpu", "cpu", 0.0) == "it was not measured within 0 s"
        assert not load_opaque_cost("cpu").is_measured

    def test_both_sources_compute_what_the_reference_does(self, tmp_path: Path) -> None:
        """The kernel in Triton, which a GPU is measured with, runs in Triton's interpreter."""
        pytest.importorskip("triton")
        scripts = {"reference": opaque_measurement._REFERENCE, "torch_": opaque_measurement._IN_TORCH}
        for name, source in {**scripts, "triton_": opaque_measurement._IN_TRITON}.items():
            (tmp_path / f"{name}.py").write_text(source)
        (tmp_path / "check.py").write_text(
            "import torch, reference, torch_, triton_\n"
            "inputs = (torch.randn(2, 8, 64), torch.zeros(4, 16, 2, 64), torch.zeros(4, 16, 2, 64),\n"
            "    torch.tensor([0, 2, 4], dtype=torch.int32), torch.arange(4, dtype=torch.int32), 0.5)\n"
            "for module in (torch_, triton_):\n"
            "    for found, wanted in zip(module.run(*inputs), reference.run(*inputs), strict=True):\n"
            "        assert torch.equal(found, wanted), module\n"
        )
        environment = {**os.environ, "TRITON_INTERPRET": "1"}
        subprocess.run([sys.executable, tmp_path / "check.py"], check=True, env=environment)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
class TestOnGPU:
    def test_host_and_device_time_are_measured(self) -> None:
        from fib_compile.device import hardware_from_device

        found = measure_opaque_cost(hardware_from_device("cuda:0"), "cuda:0", 300)
        assert isinstance(found, OpaqueCost), found
        assert found.replays_us is not None
        assert found.is_measured

    def test_the_operator_is_opaque_in_both_sources(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from fib_compile.device import hardware_from_device

        job = opaque_job(hardware_from_device("cuda:0"), "cuda:0")
        monkeypatch.setattr(opaque_measurement, "find_spec", lambda _: None)
        plain = opaque_job(hardware_from_device("cuda:0"), "cuda:0")
        assert job.solution.sources != plain.solution.sources
        for one in (job, plain):
            (found,) = measure(attrs.evolve(one), 300).values()
            assert isinstance(found, CompiledTimes), found
            assert not found.is_inlined
            assert found.pairs_us.keys() == {"calls", "host", "replays"}
