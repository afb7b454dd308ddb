"""WorkloadLog: each workload is stored once, also by several processes, and is durable when acknowledged."""

import json
import subprocess
import sys

import pytest
from fib_schema import DataWarning, RandomInput, SafetensorsInput, TraceSet, Workload

from .conftest import files_limited_to

torch = pytest.importorskip("torch", reason="blobs need torch")


@pytest.fixture
def root(tmp_path, definition):
    TraceSet(tmp_path).add_definitions([definition])
    return tmp_path


def workload(uuid, size=4):
    return Workload({"M": size}, {"A": RandomInput(), "B": RandomInput()}, uuid)


def lines_of(root, definition):
    file = root / "workloads" / definition.op_type / f"{definition.name}.jsonl"
    return [json.loads(line)["workload"]["uuid"] for line in file.read_text().splitlines()]


def test_appends_what_is_new_and_nothing_else(root, definition):
    log = TraceSet.from_path(root).workload_log()
    assert log.append(definition, {"a": workload("a"), "b": workload("b")}, {}) == ["a", "b"]
    assert log.append(definition, {"b": workload("b"), "c": workload("c")}, {}) == ["c"]
    assert lines_of(root, definition) == ["a", "b", "c"]
    assert log.append(definition, {}, {}) == []


def test_sees_what_another_log_has_appended(root, definition):
    first, second = (TraceSet.from_path(root).workload_log() for _ in range(2))
    first.append(definition, {"a": workload("a")}, {})
    assert second.append(definition, {"a": workload("a"), "b": workload("b")}, {}) == ["b"]
    assert first.append(definition, {"b": workload("b")}, {}) == []
    assert lines_of(root, definition) == ["a", "b"]


def test_a_torn_line_is_no_workload(root, definition):
    """Its writer never acknowledged it: who comes with the same must not take it for stored."""
    log = TraceSet.from_path(root).workload_log()
    log.append(definition, {"a": workload("a")}, {})
    file = root / "workloads" / definition.op_type / f"{definition.name}.jsonl"
    with file.open("a") as torn:
        torn.write('{"definition":"g","workload":{"uuid":"b","axes":{"M"')
    assert log.append(definition, {"b": workload("b")}, {}) == ["b"]
    with pytest.warns(DataWarning, match="torn"):
        assert [t.workload.uuid for t in TraceSet.from_path(root).workloads[definition.name]] == ["a", "b"]


def test_tensors_lie_where_the_workload_says(root, definition):
    log = TraceSet.from_path(root).workload_log()
    path = log.blob_path(definition, "a")
    stored = Workload({"M": 2}, {"A": SafetensorsInput(path, "A"), "B": RandomInput()}, "a")
    tensor = torch.arange(6).reshape(2, 3).T
    log.append(definition, {"a": stored}, {"a": {"A": tensor}})
    assert torch.equal(TraceSet.from_path(root).get_workload_blob_tensor(path)["A"], tensor)


def test_an_existing_blob_is_kept(root, definition):
    """A process that was killed between the two may have left it."""
    log = TraceSet.from_path(root).workload_log()
    blob = root / log.blob_path(definition, "a")
    blob.parent.mkdir(parents=True)
    blob.write_bytes(b"whole, for a file has its name only then")
    log.append(definition, {"a": workload("a")}, {"a": {"A": torch.ones(2)}})
    assert blob.read_bytes().startswith(b"whole")
    assert lines_of(root, definition) == ["a"]


def test_nothing_is_appended_if_a_blob_cannot_be_written(root, definition):
    log = TraceSet.from_path(root).workload_log()
    with files_limited_to(1), pytest.raises(OSError, match="too large"):
        log.append(definition, {"a": workload("a")}, {"a": {"A": torch.ones(2)}})
    assert not (root / "workloads").exists()
    assert list((root / "blob").rglob("*.*")) == []
    assert log.append(definition, {"a": workload("a")}, {"a": {"A": torch.ones(2)}}) == ["a"]


_APPEND_ALL = """
import sys
from fib_schema import RandomInput, TraceSet, Workload, blobs
blobs.format_tensors = lambda tensors: repr(tensors).encode()  # importing torch would take most of the time

data_set = TraceSet.from_path(sys.argv[1])
definition = data_set.get_definition("gemm")
log = data_set.workload_log()
print("ready", flush=True)
sys.stdin.readline()
for index in range(0, 60, 3):
    names = [f"w{index + step}" for step in range(3)]
    inputs = {"A": RandomInput(), "B": RandomInput()}
    workloads = {name: Workload({"M": 4}, inputs, name) for name in names}
    log.append(definition, workloads, {name: {"A": index} for name in names})
"""


def test_processes_that_append_the_same_store_each_once(root, definition):
    command = [sys.executable, "-c", _APPEND_ALL, str(root)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, **pipes) for _ in range(4)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        process.communicate(timeout=300)
        assert process.returncode == 0
    assert sorted(lines_of(root, definition)) == sorted(f"w{index}" for index in range(60))
