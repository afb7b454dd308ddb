"""Times in compiled graphs: what is kept of them, how they are measured, and what ``fib-apply warm`` says."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from fib_apply import ApplyKey, compiled_measurement, compiled_times, warm_command
from fib_apply.cli import main
from fib_apply.compiled_measurement import CompiledJob, measure
from fib_apply.compiled_times import CompiledTimes, CompiledTimesCache
from fib_apply.opaque_cost import OpaqueCost, host_model, save_opaque_cost
from fib_schema import (
    Definition,
    RandomInput,
    SafetensorsInput,
    Solution,
    SourceFile,
    TensorSpec,
    TraceSet,
    Workload,
)

KEY = ApplyKey({"M": 2})
COST = OpaqueCost(100.0, 5.0, "measured on a host", is_measured=True)
FASTER = CompiledTimes("fast", False, {"calls": (9.0, 12.0)})
SLOWER = CompiledTimes("fast", False, {"calls": (12.0, 9.0)})
SOURCE = "def run(x):\n    return 2 * x\n"
SLOW_REFERENCE = """
import torch

def run(x):
    large = torch.ones(800, 800)
    return 2 * x + (large @ large)[0, 0] - 800
"""


@pytest.fixture(autouse=True)
def cache_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "cache"
    monkeypatch.setenv("FIB_CACHE_PATH", str(path))
    return path


@pytest.fixture
def solution(new_solution: Callable[..., Solution]) -> Solution:
    return value_returning(new_solution("fast"), SOURCE)


def value_returning(solution: Solution, source: str) -> Solution:
    spec = attrs.evolve(solution.spec, destination_passing_style=False)
    return attrs.evolve(solution, spec=spec, sources=[SourceFile("main.py", source)])


class TestCache:
    def test_keeps_times(self, definition: Definition, solution: Solution) -> None:
        cache = CompiledTimesCache.in_folder()
        assert cache.load(definition, solution, KEY, "cpu") is None
        cache.save(definition, solution, KEY, "cpu", SLOWER)
        assert CompiledTimesCache.in_folder().load(definition, solution, KEY, "cpu") == SLOWER

    def test_finds_nothing_of_another_subject(
        self, definition: Definition, solution: Solution, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cache = CompiledTimesCache.in_folder()
        cache.save(definition, solution, KEY, "cpu", SLOWER)
        changed = attrs.evolve(definition, reference=SLOW_REFERENCE)
        assert cache.load(changed, solution, KEY, "cpu") is None
        assert cache.load(definition, value_returning(solution, f"{SOURCE}#"), KEY, "cpu") is None
        assert cache.load(definition, solution, ApplyKey({"M": 3}), "cpu") is None
        assert cache.load(definition, solution, KEY, "NVIDIA_H200") is None
        engine = attrs.evolve(solution, name="engine")
        assert cache.load(definition, solution, KEY, "cpu", engine) is None
        cache.save(definition, solution, KEY, "cpu", FASTER, engine)
        assert cache.load(definition, solution, KEY, "cpu", engine) == FASTER
        assert cache.load(definition, solution, KEY, "cpu", value_returning(engine, f"{SOURCE}# changed")) is None
        assert cache.load(definition, solution, KEY, "cpu") == SLOWER
        with monkeypatch.context() as patch:
            patch.setattr(compiled_times, "host_model", lambda: "another CPU")
            assert cache.load(definition, solution, KEY, "cpu") is None
        monkeypatch.setattr(compiled_times, "library_versions", lambda: {"torch": "0.1"})
        assert CompiledTimesCache.in_folder().load(definition, solution, KEY, "cpu") is None

    @pytest.mark.parametrize(
        "content",
        [
            "", "{", "[]", "null", "[" * 100_000, "\x00\xff",
            '{"format": 1, "is_inlined": false, "pairs_us": {"calls": [1, 2]}}',
            '{"format": 2, "is_inlined": 0, "pairs_us": {"calls": [1, 2]}}',
            '{"format": 2, "is_inlined": false, "pairs_us": {}}',
            '{"format": 2, "is_inlined": false, "pairs_us": {"calls": [1]}}',
            '{"format": 2, "is_inlined": false, "pairs_us": {"calls": 3}}',
            '{"format": 2, "is_inlined": false, "pairs_us": {"calls": [1, NaN]}}',
            '{"format": 2, "is_inlined": false, "pairs_us": {"calls": [-1, 2]}}',
            '{"format": 2, "is_inlined": false, "pairs_us": {"calls": [1, Infinity]}}',
            '{"format": 2, "is_inlined": false, "pairs_us": {"naps": [1, 2]}}',
        ],
    )  # fmt: skip
    def test_a_damaged_file_holds_no_times(
        self, definition: Definition, solution: Solution, cache_path: Path, content: str
    ) -> None:
        cache = CompiledTimesCache.in_folder()
        cache.save(definition, solution, KEY, "cpu", SLOWER)
        (file,) = (cache_path / "apply-v1" / "compiled").glob("*.json")
        file.write_bytes(content.encode("latin-1"))
        assert cache.load(definition, solution, KEY, "cpu") is None

    def test_a_folder_that_others_can_write_is_not_read(
        self, definition: Definition, solution: Solution, cache_path: Path
    ) -> None:
        cache = CompiledTimesCache.in_folder()
        cache.save(definition, solution, KEY, "cpu", SLOWER)
        (cache_path / "apply-v1" / "compiled").chmod(0o777)
        assert cache.load(definition, solution, KEY, "cpu") is None

    def test_a_folder_that_cannot_be_written_is_logged(
        self, definition: Definition, solution: Solution, cache_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        cache_path.write_text("a file")
        cache = CompiledTimesCache.in_folder()
        cache.save(definition, solution, KEY, "cpu", SLOWER)
        assert "times of fast in compiled graphs cannot be kept" in caplog.text
        assert cache.load(definition, solution, KEY, "cpu") is None


class TestDecision:
    def worth(
        self, pairs: dict[str, tuple[float, float]], *, is_inlined: bool = False, is_captured: bool = False
    ) -> bool:
        return CompiledTimes("fast", is_inlined, pairs).is_worth_it(COST, is_captured=is_captured)

    def test_calls_and_replays_must_be_faster(self) -> None:
        assert FASTER.is_worth_it(COST, is_captured=False)
        assert not SLOWER.is_worth_it(COST, is_captured=False)
        assert not self.worth({"calls": (1.0, 2.0), "replays": (1.0, 1.0)}, is_inlined=True)

    def test_an_opaque_operator_must_save_enough_for_a_graph_that_waits_for_the_host(self) -> None:
        # 240 us saved on the device, 90 us added to the host: 90 us and 140 us of other host time are needed.
        enough = {"calls": (300.0, 500.0), "host": (290.0, 200.0), "replays": (250.0, 490.0)}
        assert self.worth(enough)
        assert not self.worth({**enough, "host": (310.0, 200.0)})
        assert self.worth({**enough, "host": (310.0, 200.0)}, is_inlined=True)

    def test_an_opaque_operator_that_adds_no_host_time_need_only_be_faster(self) -> None:
        assert self.worth({"calls": (300.0, 301.0), "host": (200.0, 200.0), "replays": (250.0, 251.0)})

    def test_only_replays_count_where_graphs_are_captured(self) -> None:
        pairs = {"calls": (900.0, 500.0), "host": (900.0, 200.0), "replays": (250.0, 251.0)}
        assert self.worth(pairs, is_captured=True)
        assert not self.worth(pairs)
        assert not self.worth({**pairs, "replays": (251.0, 250.0)}, is_captured=True)


class TestMeasure:
    def job(self, definition: Definition, solution: Solution, *sizes: int) -> CompiledJob:
        return CompiledJob(definition, solution, [ApplyKey({"M": size}) for size in sizes or (2,)], "cpu", "cpu")

    def test_a_job_survives_its_way_to_the_child(self, definition: Definition, solution: Solution) -> None:
        job = self.job(definition, solution, 2, 3)
        assert attrs.evolve(CompiledJob.from_json(job.to_json()), keys=job.keys) == job
        job = attrs.evolve(job, values={KEY.encode: {"x": [1]}}, baseline=solution)
        assert attrs.evolve(CompiledJob.from_json(job.to_json()), keys=job.keys) == job

    def test_given_values_reach_the_call(self, definition: Definition, solution: Solution) -> None:
        inputs = {**definition.inputs, "pages": TensorSpec(["M"], "int32"), "factor": TensorSpec(None, "float32")}
        reference = "def run(x, pages, factor):\n    return factor * x\n"
        paged = attrs.evolve(definition, inputs=inputs, reference=reference)
        source = """
def run(x, pages, factor):
    raise ValueError(f"{pages.tolist()} {pages.dtype} {factor}")
"""
        job = self.job(paged, value_returning(solution, source))
        job = attrs.evolve(job, values={KEY.encode: {"pages": [7, 5], "factor": 0.25}})
        assert measure(job, 300) == {KEY: "ValueError: [7, 5] torch.int32 0.25"}

    def test_a_solution_that_is_slower_than_fused_code(self, definition: Definition, solution: Solution) -> None:
        slow = value_returning(solution, "import time\ndef run(x):\n    time.sleep(0.002)\n    return 2 * x\n")
        found = measure(self.job(definition, slow), 300)[KEY]
        assert isinstance(found, CompiledTimes), found
        assert not found.is_inlined
        assert not found.is_worth_it(COST, is_captured=False)
        assert found.pairs_us["calls"][0] > 2000

    def test_a_solution_that_is_faster(self, definition: Definition, solution: Solution) -> None:
        slow = attrs.evolve(definition, reference=SLOW_REFERENCE)
        found = measure(self.job(slow, solution), 300)[KEY]
        assert isinstance(found, CompiledTimes), found
        assert found.is_worth_it(COST, is_captured=False)

    def test_the_baseline_is_compiled_in_place_of_the_reference(
        self, definition: Definition, solution: Solution
    ) -> None:
        raising = attrs.evolve(definition, reference="def run(x):\n    raise ValueError('the reference is called')\n")
        baseline = attrs.evolve(value_returning(solution, "def run(y):\n    return y + y\n"), name="engine")
        job = attrs.evolve(self.job(raising, solution), baseline=baseline)
        assert isinstance(measure(job, 300)[KEY], CompiledTimes)
        passing = attrs.evolve(baseline, spec=attrs.evolve(baseline.spec, destination_passing_style=True))
        problem = "RuntimeError: the baseline engine is not a Python function that returns its results"
        assert measure(attrs.evolve(job, baseline=passing), 300) == {KEY: problem}

    def test_problems_are_stated(self, definition: Definition, solution: Solution) -> None:
        raising = value_returning(solution, "def run(x):\n    raise ValueError('no')\n")
        assert measure(self.job(definition, raising), 300) == {KEY: "ValueError: no"}

    def test_a_child_that_ends_has_measured_nothing(self, definition: Definition, solution: Solution) -> None:
        ending = value_returning(solution, "import os\ndef run(x):\n    os._exit(3)\n")
        assert measure(self.job(definition, ending), 300) == {KEY: "its process ended with status 3"}

    def test_what_a_solution_prints_or_leaves_behind_is_no_result(
        self, definition: Definition, solution: Solution
    ) -> None:
        source = """
import os, time
if os.fork() == 0:
    time.sleep(1000)
    os._exit(0)
def run(x):
    print('{"is_inlined": true, "pairs_us": {"calls": [1.0, 2.0]}}', flush=True)
    os.write(1, b'"forged"')
    raise ValueError("no")
"""
        began = time.monotonic()
        found = measure(self.job(definition, value_returning(solution, source)), 300)
        assert found == {KEY: "ValueError: no"}
        assert time.monotonic() - began < 250  # it did not wait for the process that was left behind

    def test_listeners_of_the_environment_do_not_change_the_graph(
        self, definition: Definition, solution: Solution, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FIB_ENABLE_APPLY", "0")
        monkeypatch.setenv("FIB_ENABLE_TRACING", "1")
        monkeypatch.setenv("FIB_APPLY_CONFIG", "/no/such/file")
        assert isinstance(measure(self.job(definition, solution), 300)[KEY], CompiledTimes)

    def test_a_deadline_ends_a_child_that_hangs(self, definition: Definition, solution: Solution) -> None:
        hanging = attrs.evolve(definition, reference="def run(x):\n    while True:\n        x = 2 * x\n")
        assert measure(self.job(hanging, solution), 15) == {KEY: "it was not measured within 15 s"}

    def test_a_deadline_ends_the_child(self, definition: Definition, solution: Solution) -> None:
        assert measure(self.job(definition, solution), 0.0) == {KEY: "it was not measured within 0 s"}

    def test_what_was_measured_before_the_child_ended_counts(self) -> None:
        output = b'"no"\n{"is_inlined": false, "pairs_us": {"calls": [9.0, 12.0]}}\n{"is_inl'
        assert list(compiled_measurement._parse_lines("fast", output)) == ["no", FASTER]


class TestWarm:
    @pytest.fixture
    def dataset(
        self, tmp_path: Path, definition: Definition, solution: Solution, new_trace: Callable[..., Any]
    ) -> Path:
        (tmp_path / "data").mkdir()
        traces = TraceSet.from_path(tmp_path / "data")
        traces.add_definitions([definition])
        traces.add_solutions([solution])
        traces.add_traces([new_trace("fast", m=2), new_trace("fast", m=3)])
        return tmp_path / "data"

    @pytest.fixture(autouse=True)
    def jobs(self, monkeypatch: pytest.MonkeyPatch) -> list[Sequence[ApplyKey]]:
        """The keys of each measurement, which finds the solution slower at one and fails at the other."""
        jobs: list[Sequence[ApplyKey]] = []

        def fake(job: CompiledJob, timeout_seconds: float) -> dict[ApplyKey, CompiledTimes | str]:
            assert timeout_seconds > 0
            jobs.append(job.keys)
            return {key: SLOWER if key == KEY else "it broke" for key in job.keys}

        monkeypatch.setattr(warm_command, "measure", fake)
        monkeypatch.setattr(
            warm_command, "measure_opaque_cost", lambda hardware, *_: save_opaque_cost(hardware, 4.0, None)
        )
        monkeypatch.setattr(warm_command, "local_hardware", lambda: ("cpu",))
        monkeypatch.setattr(warm_command, "list_cuda_devices", list)
        return jobs

    def test_measures_what_is_not_known(
        self, dataset: Path, jobs: list[Sequence[ApplyKey]], capfd: pytest.CaptureFixture[str]
    ) -> None:
        command = ["warm", str(dataset), "--compiled-seconds", "60"]
        for _ in range(2):
            assert main(command) == 0
            output = capfd.readouterr()
            assert output.out.splitlines()[-2:] == [
                f"on cpu: an opaque operator adds 4 us (measured on {host_model()})",
                "in compiled graphs: 1 key measured, 1 left to the compiler, 1 not measured",
            ]
            assert "compiled: scale, M=3: it broke" in output.err
        assert jobs == [[KEY, ApplyKey({"M": 3})], [ApplyKey({"M": 3})]]
        assert main([*command, "--json"]) == 0
        written = json.loads(capfd.readouterr().out)
        assert written["opaque_operators"] == [
            {"hardware": "cpu", "calls_us": 4.0, "replays_us": None, "problem": None}
        ]
        first, second = written["compiled"]
        assert first == {
            "definition": "scale", "solution": "fast", "axes": {"M": 2}, "is_worth_it": False,
            "pairs_us": {"calls": [12.0, 9.0]}, "problem": None,
        }  # fmt: skip
        assert second["problem"] == "it broke"

    def test_recorded_integers_and_the_baseline_reach_the_measurement(
        self,
        dataset: Path,
        definition: Definition,
        solution: Solution,
        new_trace: Callable[..., Any],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        pytest.importorskip("safetensors")
        traces = TraceSet.from_path(dataset)
        inputs = {**definition.inputs, "pages": TensorSpec(["M"], "int32")}
        paged = attrs.evolve(
            definition, name="paged", inputs=inputs, reference="def run(x, pages):\n    return 2 * x\n"
        )
        traces.add_definitions([paged])
        names = {"reader": 0.001, "engine": 0.5}
        paging = value_returning(solution, "def run(x, pages):\n    return 2 * x\n")
        traces.add_solutions([attrs.evolve(paging, name=name, definition="paged") for name in names])
        path = traces.add_workload_blob_tensor("paged", "w2", {"pages": torch.tensor([1, 0], dtype=torch.int32)})
        workload = Workload({"M": 2}, {"x": RandomInput(), "pages": SafetensorsInput(path, "pages")}, "w2")
        traces.add_traces(
            [
                attrs.evolve(new_trace(name, ms, m=2, definition="paged"), workload=workload)
                for name, ms in names.items()
            ]
        )
        found: list[CompiledJob] = []

        def keep(job: CompiledJob, timeout_seconds: float) -> dict[ApplyKey, CompiledTimes | str]:
            del timeout_seconds
            found.append(job)
            return dict.fromkeys(job.keys, "it broke")

        monkeypatch.setattr(warm_command, "measure", keep)
        command = ["warm", str(dataset), "--compiled-seconds", "60", "--definitions", "paged", "--baseline", "engine"]
        assert main(command) == 0
        (job,) = found
        assert job.solution.name == "reader"
        assert job.baseline is not None
        assert job.baseline.name == "engine"
        assert dict(job.values) == {KEY.encode: {"pages": [1, 0]}}

    def test_explain_shows_both_times_and_the_decision(self, dataset: Path, capfd: pytest.CaptureFixture[str]) -> None:
        main(["warm", str(dataset), "--compiled-seconds", "60"])
        capfd.readouterr()
        assert main(["explain", str(dataset), "--definition", "scale", "--hardware", "cpu"]) == 0
        assert capfd.readouterr().out.endswith(
            "  in compiled graphs, as measured\n"
            f"    an opaque operator adds 4 us (measured on {host_model()})\n"
            "    M=2: the function is compiled: fast as an opaque operator was measured against compiled code: "
            "12.0 against 9.0 us (calls)\n"
        )

    def test_measures_nothing_without_a_gpu_unless_asked(
        self, dataset: Path, jobs: list[Sequence[ApplyKey]], capfd: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["warm", str(dataset)]) == 0
        assert "compiled" not in capfd.readouterr().out
        assert not jobs

    def test_the_time_is_a_limit_for_all(
        self, dataset: Path, jobs: list[Sequence[ApplyKey]], capfd: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["warm", str(dataset), "--compiled-seconds", "1e-9"]) == 0
        output = capfd.readouterr().out
        assert "0 keys measured, 0 left to the compiler, 2 not measured" in output
        assert "on cpu: not measured: the time for measurements was over; an opaque operator adds 10 us" in output
        assert not jobs

    @pytest.mark.parametrize("seconds", ["-1", "nan", "inf", "soon"])
    def test_the_time_is_a_number(self, dataset: Path, seconds: str, capfd: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit) as exit_error:
            main(["warm", str(dataset), f"--compiled-seconds={seconds}"])
        assert exit_error.value.code == 2
        assert "expected a number of seconds, 0 or more" in capfd.readouterr().err


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
class TestOnGPU:
    def test_calls_and_replays_are_measured(self, definition: Definition, solution: Solution) -> None:
        from fib_compile.device import hardware_from_device

        hardware = hardware_from_device("cuda:0")
        spec = attrs.evolve(solution.spec, target_hardware=(hardware,))
        job = CompiledJob(definition, attrs.evolve(solution, spec=spec), [KEY], hardware, "cuda:0")
        found = measure(job, 300)[KEY]
        assert isinstance(found, CompiledTimes), found
        assert found.pairs_us.keys() == {"calls", "host", "replays"}
