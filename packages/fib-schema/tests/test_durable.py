"""Appends of writers that are killed, that run at once, or that fail."""

import fcntl
import subprocess
import sys

import pytest
from fib_schema import RandomInput, TraceSet, Workload, append_jsonl_file, files

PROGRAM = """
import sys
import attrs
from fib_schema import TraceSet
root, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
made = TraceSet.from_path(root)
pattern = made.workloads["gemm"][0]
print("ready", flush=True)
sys.stdin.readline()
for number in range(count):
    workload = attrs.evolve(pattern.workload, uuid=f"{name}-{number}")
    made.add_traces([attrs.evolve(pattern, workload=workload)])
    print(workload.uuid, flush=True)
"""


def start_writer(root, name, count):
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(root), name, str(count)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def seeded(trace_set, make_trace):
    """A set with one workload trace, which the writers vary."""
    from fib_schema import Trace

    trace_set.add_traces([Trace("gemm", make_trace(uuid="seed").workload)])
    return trace_set.root


def test_concurrent_writers_lose_and_mix_nothing(seeded):
    writers = [start_writer(seeded, f"w{index}", 50) for index in range(4)]
    for writer in writers:
        writer.stdout.readline()
    for writer in writers:
        writer.communicate("go\n")
        assert writer.returncode == 0
    uuids = [trace.workload.uuid for trace in TraceSet.from_path(seeded).workloads["gemm"]]
    assert sorted(uuids[1:]) == sorted(f"w{w}-{n}" for w in range(4) for n in range(50))
    for index in range(4):
        mine = [uuid for uuid in uuids if uuid.startswith(f"w{index}-")]
        assert mine == [f"w{index}-{n}" for n in range(50)]


def test_an_empty_batch_touches_nothing(tmp_path):
    append_jsonl_file([], tmp_path / "a.jsonl")
    assert list(tmp_path.iterdir()) == []


def test_a_writer_waits_for_another_one_only_so_long(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LOCK_TIMEOUT_SECONDS", 0.01)
    path = tmp_path / "a.jsonl"
    workload = Workload({"M": 1}, {"A": RandomInput()}, "w")
    append_jsonl_file([workload], path)
    with path.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(TimeoutError, match=r"has been locked for 0.01 s.*a\.jsonl"):
            append_jsonl_file([workload], path)
    append_jsonl_file([workload], path)
    assert len(path.read_text().splitlines()) == 2
