"""Tests of deduplication: equal workloads are removed, and no referenced or appended workload is lost."""

from __future__ import annotations

import json
import os
import select
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from fib_schema import (
    BuildSpec,
    Correctness,
    DataWarning,
    Environment,
    Evaluation,
    EvaluationStatus,
    Performance,
    ScalarInput,
    Solution,
    SourceFile,
    Trace,
    TraceSet,
    validate,
)
from fib_tracer import maintenance as dedup_module
from fib_tracer.maintenance import Removal, dedup, survey

from . import program_server
from .conftest import workloads
from .test_survey import gather_workload, stored

FILE = "workloads/gather/gather_h8.jsonl"


def uuids(root: Path) -> list[str]:
    return [workload.uuid for workload in workloads(root, "gather_h8")]


def blobs(root: Path) -> list[str]:
    return sorted(path.stem.removeprefix("gather_h8_") for path in (root / "blob").rglob("*.safetensors"))


def evaluated(trace: Trace) -> Trace:
    """A trace of an evaluation on a workload."""
    evaluation = Evaluation(
        EvaluationStatus.PASSED,
        Environment("cpu", {}),
        "2026-01-10T12:00:00",
        "",
        Correctness(0.0, 0.0),
        Performance(1.0, 2.0, 2.0),
    )
    return attrs.evolve(trace, solution="s", evaluation=evaluation)


def add_solution(root: Path) -> None:
    spec = BuildSpec("python", ["cpu"], "main.py::run", destination_passing_style=False)
    content = "def run(table, rows, mask, scale):\n    return table[rows] * scale\n"
    sources = [SourceFile("main.py", content)]
    TraceSet.from_path(root).add_solutions([Solution("s", "gather_h8", "ada", spec, sources)])


@pytest.fixture
def five(root: Path) -> list[Trace]:
    """Workloads a, b and d are equal; c has another scale, e other rows."""
    trace_set = TraceSet.from_path(root)
    made = [stored(trace_set, uuid, 3) for uuid in "ab"]
    made += [stored(trace_set, "c", 3, scale=0.25), stored(trace_set, "d", 3), stored(trace_set, "e", 4)]
    trace_set.add_traces(made)
    return made


def test_the_first_of_equal_workloads_is_kept(root: Path, five: list[Trace]) -> None:
    before = (root / FILE).read_bytes().splitlines()
    report = dedup(root)
    assert report.workloads == 5
    assert report.removals == [
        Removal("gather_h8", uuid, "a", f"{root / FILE}:{line}") for uuid, line in (("b", 2), ("d", 4))
    ]
    assert uuids(root) == ["a", "c", "e"]
    assert (root / FILE).read_bytes().splitlines() == [before[index] for index in (0, 2, 4)]
    assert blobs(root) == ["a", "c", "e"]
    assert len(report.blobs) == 2
    assert report.blob_bytes > 0
    assert validate(root).is_ok
    assert dedup(root).removals == []


def test_a_dry_run_reports_the_same_and_changes_nothing(root: Path, five: list[Trace]) -> None:
    before = (root / FILE).read_bytes()
    said = dedup(root, is_dry=True)
    assert (root / FILE).read_bytes() == before
    assert blobs(root) == ["a", "b", "c", "d", "e"]
    assert dedup(root).to_plain() == said.to_plain()


def test_workloads_that_traces_refer_to_are_kept(root: Path, five: list[Trace]) -> None:
    add_solution(root)
    TraceSet.from_path(root).add_traces([evaluated(five[1])])
    dedup(root)
    assert uuids(root) == ["b", "c", "e"]
    assert blobs(root) == ["b", "c", "e"]
    TraceSet.from_path(root).add_traces([five[0], evaluated(five[0])])
    dedup(root)
    assert sorted(uuids(root)) == ["a", "b", "c", "e"]


def test_a_blob_that_another_workload_names_is_kept(root: Path, five: list[Trace]) -> None:
    path = five[1].workload.inputs["rows"].path
    TraceSet.from_path(root).add_traces([gather_workload("f", 3, f"./{path}", scale=8.0)])
    dedup(root)
    assert uuids(root) == ["a", "c", "e", "f"]
    assert blobs(root) == ["a", "b", "c", "e"]


def test_equal_workloads_are_found_across_files(root: Path) -> None:
    trace_set = TraceSet.from_path(root)
    trace_set.add_traces([stored(trace_set, "a", 3), gather_workload("r", 5, None)])
    text = (root / FILE).read_text().replace('"uuid":"r"', '"uuid":"r2"')
    (root / "workloads/more").mkdir()
    (root / "workloads/more/gather_h8.jsonl").write_text(text)
    dedup(root)
    assert uuids(root) == ["a", "r"]
    assert (root / "workloads/more/gather_h8.jsonl").read_text() == ""


def test_workloads_are_equal_if_all_bytes_and_scalars_are(root: Path) -> None:
    trace_set = TraceSet.from_path(root)
    first, other = stored(trace_set, "a", 3), stored(trace_set, "b", 3)
    whole = attrs.evolve(first.workload, uuid="i", inputs={**first.workload.inputs, "scale": ScalarInput(1)})
    real = attrs.evolve(whole, uuid="f", inputs={**whole.inputs, "scale": ScalarInput(1.0)})
    trace_set.add_traces([first, *(attrs.evolve(first, workload=workload) for workload in (whole, real))])
    file = root / other.workload.inputs["rows"].path
    data = file.read_bytes()
    file.write_bytes(data[:-1] + b"\x01")
    trace_set.add_traces([other])
    assert dedup(root).removals == []


def test_a_repeated_line_is_removed_even_if_a_trace_refers_to_it(root: Path, five: list[Trace]) -> None:
    add_solution(root)
    TraceSet.from_path(root).add_traces([evaluated(five[4])])
    line = (root / FILE).read_bytes().splitlines()[4]
    with (root / FILE).open("ab") as file:
        file.write(line + b"\n")
    dedup(root)
    assert uuids(root) == ["a", "c", "e"]
    assert "e" in blobs(root)


def test_incomparable_workloads_are_kept_and_reported(root: Path, five: list[Trace]) -> None:
    (root / five[1].workload.inputs["rows"].path).unlink()
    with (root / FILE).open("ab") as file:
        file.write(b'{"definition":"gather_h8"}\n{"torn')
    with pytest.warns(DataWarning):
        report = dedup(root)
    assert [problem.source.rpartition(":")[2] for problem in report.problems] == ["6", "7", "2"]
    assert "does not exist; it was left unchanged" in report.problems[2].message
    assert (root / FILE).read_bytes().endswith(b'\n{"definition":"gather_h8"}\n{"torn')
    with pytest.warns(DataWarning):
        assert uuids(root) == ["a", "b", "c", "e"]


@pytest.mark.parametrize("is_dry", [True, False])
def test_bad_definitions_and_blobs_are_reported(root: Path, five: list[Trace], is_dry: bool) -> None:
    (root / "definitions" / "gather" / "bad.json").write_text("{")
    healthy = dedup(root, is_dry=True).removals
    (stored_tensors,) = {trace.workload.inputs["rows"].path for trace in five if trace.workload.uuid == "d"}
    (root / stored_tensors).write_bytes(b"rubbish")
    report = dedup(root, is_dry=is_dry)
    assert {problem.source.rpartition("/")[2] for problem in report.problems} == {"bad.json", "gather_h8.jsonl:4"}
    assert [removal for removal in report.removals if removal.uuid != "d"] == [r for r in healthy if r.uuid != "d"]


def test_orphans_are_removed_on_request(root: Path, five: list[Trace]) -> None:
    stored(TraceSet.from_path(root), "orphan", 3)
    dedup(root)
    assert "orphan" in blobs(root)
    report = dedup(root, removes_orphans=True)
    assert [Path(path).stem for path in report.blobs] == ["gather_h8_orphan"]
    assert blobs(root) == ["a", "c", "e"]


def test_temporary_files_of_killed_writers_are_orphans(root: Path, five: list[Trace]) -> None:
    """A young temporary file may still be written."""
    folder = next((root / "blob").rglob("*.safetensors")).parent
    old, young, other = (folder / name for name in (f".{'a' * 32}.tmp", f".{'b' * 32}.tmp", ".nfs0001"))
    for file in (old, young, other):
        file.write_bytes(b"half")
    for file in (old, other):
        os.utime(file, (0, 0))
    assert [Path(blob.path).name for blob in survey(TraceSet.from_path(root)).orphans] == [old.name]
    dedup(root)
    assert old.exists()
    assert [Path(path).name for path in dedup(root, removes_orphans=True).blobs] == [old.name]
    assert not old.exists()
    assert young.exists()
    assert other.exists()


def test_an_interrupt_between_lines_and_blobs_leaves_a_valid_set(
    root: Path, five: list[Trace], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(dedup_module, "_remove_blobs", stop)
    with pytest.raises(KeyboardInterrupt):
        dedup(root)
    assert validate(root).is_ok
    assert uuids(root) == ["a", "c", "e"]
    assert blobs(root) == ["a", "b", "c", "d", "e"]
    monkeypatch.undo()
    assert len(dedup(root, removes_orphans=True).blobs) == 2


TRACER = """
import sys
import torch
from fib_tracer import TracingConfig, TracingRuntime
runtime = TracingRuntime(sys.argv[1], TracingConfig("dump_int"))
table = torch.ones(6, 8)
for number in range(400):
    rows = torch.arange(1 + number % 40)
    runtime.collect("gather_h8", (table, rows), {"scale": float(number % 3)})
    if number % 5 == 0:
        runtime.flush()
runtime.flush()
print(runtime.error_counts())
"""


def copies_of(root: Path, round_: int) -> None:
    """Equal workloads under other uuids, as a merge of two sets leaves them."""
    trace_set = TraceSet.from_path(root)
    for trace in trace_set.workloads.get("gather_h8", [])[-10:]:
        uuid = f"copy-{round_}-{trace.workload.uuid[:20]}"
        if not trace.workload.uuid.startswith("copy"):
            trace_set.add_traces([attrs.evolve(trace, workload=attrs.evolve(trace.workload, uuid=uuid))])


@pytest.mark.slow
def test_nothing_is_lost_while_another_process_traces(root: Path) -> None:
    """All flushed workloads exist at the end, once, with their tensors."""
    tracer = program_server.start(TRACER, [str(root)], {})
    rounds = 0
    while not select.select([tracer.stdout], [], [], 0)[0]:  # it prints at its end
        rounds += 1
        copies_of(root, rounds)
        dedup(root, removes_orphans=True)
    assert tracer.communicate(timeout=60)[0] == "{}\n"
    assert tracer.returncode == 0
    dedup(root)
    found = {(w.axes["M"], w.inputs["scale"].value) for w in workloads(root, "gather_h8")}
    assert found == {(1 + number % 40, float(number % 3)) for number in range(400)}
    assert len(workloads(root, "gather_h8")) == len(found)
    report = validate(root)
    assert report.is_ok, report.to_text()


def test_an_engine_may_append_a_removed_workload_again(
    root: Path, silu: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    """The log reopens the file because it was replaced."""
    from fib_tracer import TracingConfig, enable_tracing

    runtime = enable_tracing(root, TracingConfig("dump_all"))
    silu(torch.ones(2, 8))
    runtime.flush()
    file = root / "workloads/activation/silu_h8.jsonl"
    line = json.loads(file.read_text())
    older = {**line, "workload": {**line["workload"], "uuid": "older"}}
    file.write_text(json.dumps(older) + "\n" + json.dumps(line) + "\n")
    assert [removal.equal_to for removal in dedup(root).removals] == ["older"]
    silu(torch.zeros(2, 8))
    runtime.flush()
    assert len(workloads(root, "silu_h8")) == 2
    assert validate(root).is_ok
