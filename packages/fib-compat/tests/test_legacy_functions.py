"""Functions of the first release."""

from __future__ import annotations

from pathlib import Path

from flashinfer_bench import AxisConst, AxisVar, BuildSpec, RandomInput, Solution, SourceFile, Trace, Workload
from flashinfer_bench.bench.timing import time_runnable
from flashinfer_bench.compile.builder import create_pkg_name, write_sources_to_dir, write_sources_to_temp
from flashinfer_bench.compile.builders import CUDABuilder, TVMFFIBuilder
from flashinfer_bench.compile.registry import BuilderRegistry, get_registry
from flashinfer_bench.data import json_codec
from flashinfer_bench.data.definition import ALLOWED_DTYPES

SOURCES = [SourceFile(path="main.py", content="def run(): ...\n"), SourceFile(path="sub/more.py", content="é = 1\n")]
SPEC = BuildSpec(language="cuda", target_hardware=["H200"], entry_point="main.py::run")
SOLUTION = Solution(name="s", definition="d", author="a", spec=SPEC, sources=SOURCES)


def test_sources_are_written_below_a_folder(tmp_path: Path) -> None:
    write_sources_to_dir(str(tmp_path), SOURCES)
    assert (tmp_path / "sub" / "more.py").read_text("utf-8") == "é = 1\n"
    folders = {write_sources_to_temp(str(tmp_path / "base"), SOURCES, pkg="p") for _ in range(2)}
    assert [(Path(folder) / "p" / "main.py").exists() for folder in folders] == [True, True]
    assert [Path(folder).parent.name for folder in folders] == ["base", "base"]


def test_package_names_identify_the_content() -> None:
    other = SOLUTION.model_copy(update={"name": "t"})  # type: ignore[attr-defined]
    assert create_pkg_name(SOLUTION, "p_") == create_pkg_name(other, "p_")
    assert create_pkg_name(SOLUTION, "p_").startswith("p_")
    assert SOLUTION.requires_build()  # type: ignore[attr-defined]


def test_aliases_are_the_same_objects() -> None:
    assert CUDABuilder is TVMFFIBuilder
    assert get_registry() is BuilderRegistry.get_instance()
    assert "bfloat16" in ALLOWED_DTYPES


def test_records_round_trip_through_json(tmp_path: Path) -> None:
    workload = Workload(axes={"n": 3}, inputs={"x": RandomInput()}, uuid="w")
    traces = [Trace(definition=name, workload=workload) for name in ("a", "b", "c")]
    path = tmp_path / "traces.jsonl"
    json_codec.save_jsonl_file(traces[:1], path)
    json_codec.append_jsonl_line(path, traces[1])
    json_codec.append_jsonl_lines(path, traces[2:])
    assert json_codec.load_jsonl_file(path, Trace) == traces
    json_codec.save_json_file(AxisVar(), tmp_path / "axis.json")
    assert json_codec.load_json_file(tmp_path / "axis.json", AxisVar) == AxisVar()
    assert json_codec.dict_to_dataclass(json_codec.dataclass_to_dict(SOLUTION), Solution) == SOLUTION
    assert json_codec.from_json(json_codec.to_json(AxisConst(value=1)), AxisConst).value == 1


def test_time_runnable_calls_and_times_a_function() -> None:
    calls: list[int] = []
    latency_ms = time_runnable(calls.append, {"x": 1}, warmup=1, iters=5, device="cpu")
    assert 0 <= latency_ms < 1000
    assert len(calls) >= 6
