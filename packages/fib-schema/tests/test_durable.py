"""Appends of writers that are killed, that run at once, or that fail."""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fib_schema import DataWarning, TraceSet, append_jsonl_file, rewrite_jsonl_file

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


@pytest.mark.slow
def test_no_acknowledged_record_is_lost_when_writers_are_killed(seeded):
    """Eight processes append up to 1,000 records each and are killed at random moments."""
    rng = random.Random(7)
    writers = [start_writer(seeded, f"w{index}", 1000) for index in range(4)]
    for writer in writers:
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        writer.stdin.write("go\n")
        writer.stdin.flush()
    acknowledged = []
    for writer in writers:
        for _ in range(rng.randrange(20, 400)):
            acknowledged.append(writer.stdout.readline().strip())
        writer.send_signal(signal.SIGKILL)
    for writer in writers:
        acknowledged += writer.stdout.read().splitlines()
        writer.wait()
        writer.stdin.close()
        writer.stdout.close()
    acknowledged = [uuid for uuid in acknowledged if uuid]
    lines = (seeded / "workloads" / "gemm" / "gemm.jsonl").read_bytes().split(b"\n")
    whole = [line for line in lines if is_whole(line)]
    torn = [line for line in lines if line and not is_whole(line)]
    opened = TraceSet.from_path(seeded)
    if torn:
        with pytest.warns(DataWarning):
            found = opened.workloads["gemm"]
        assert len(opened.problems) >= len(torn)
    else:
        found = opened.workloads["gemm"]
        assert opened.problems == ()
    uuids = [trace.workload.uuid for trace in found]
    assert len(uuids) == len(set(uuids)) == len(whole)
    assert set(acknowledged) <= set(uuids)
    assert len(acknowledged) > 100


def is_whole(line):
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


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


def test_rewriting_keeps_what_is_chosen_and_the_mode(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    file.write_bytes(b"1\n2\n3\ntorn")
    file.chmod(0o640)
    assert rewrite_jsonl_file(file, lambda lines: [line for line in lines if line != b"2"])
    assert file.read_bytes() == b"1\n3\ntorn"
    assert file.stat().st_mode & 0o777 == 0o640
    inode = file.stat().st_ino
    assert not rewrite_jsonl_file(file, lambda lines: lines)
    assert file.stat().st_ino == inode
    assert sorted(os.listdir(tmp_path)) == [".lock", "x.jsonl"]


def test_rewriting_follows_a_link(tmp_path: Path) -> None:
    (tmp_path / "real.jsonl").write_bytes(b"1\n2\n")
    (tmp_path / "link.jsonl").symlink_to("real.jsonl")
    assert rewrite_jsonl_file(tmp_path / "link.jsonl", lambda lines: lines[1:])
    assert (tmp_path / "link.jsonl").is_symlink()
    assert (tmp_path / "real.jsonl").read_bytes() == b"2\n"


def test_a_rewriting_that_fails_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    file.write_bytes(b"1\n")

    def fail(lines: object) -> list[bytes]:
        raise ValueError(lines)

    with pytest.raises(ValueError, match="1"):
        rewrite_jsonl_file(file, fail)
    assert file.read_bytes() == b"1\n"
    with pytest.raises(FileNotFoundError):
        rewrite_jsonl_file(tmp_path / "none.jsonl", fail)


APPENDER = """
import sys
from fib_schema.appending import append_new_lines
for number in range(60):
    append_new_lines(sys.argv[1], lambda _: [b"%s-%d" % (sys.argv[2].encode(), number)])
"""


def test_no_appended_line_is_lost_while_the_file_is_rewritten(tmp_path: Path) -> None:
    """A writer that waits for the lock on a file that is replaced meanwhile appends to the new one."""
    file = tmp_path / "x.jsonl"
    file.write_bytes(b"first\n")
    processes = [subprocess.Popen([sys.executable, "-c", APPENDER, str(file), name]) for name in "ab"]
    rounds = 0
    while any(process.poll() is None for process in processes):
        rounds += 1
        added = b"round-%d" % rounds
        rewrite_jsonl_file(file, lambda lines, added=added: [added, *lines])
    assert all(process.wait() == 0 for process in processes)
    lines = file.read_bytes().splitlines()
    for name in "ab":
        assert [line for line in lines if line.startswith(f"{name}-".encode())] == [
            b"%s-%d" % (name.encode(), number) for number in range(60)
        ]
    assert len(lines) == 121 + rounds
