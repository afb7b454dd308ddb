"""Stores on systems that lack calls of Linux: macOS and Windows, imitated by removing the calls."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fib_schema import append_jsonl_file, files, load_jsonl_file, locks, rewrite_jsonl_file
from fib_schema.files import atomic_write

WITHOUT = {
    "macos": "for name in ('fdatasync', 'O_CLOEXEC'): delattr(os, name)",
    "windows": (
        "sys.modules['fcntl'] = None\n"
        "for name in ('fdatasync', 'O_DIRECTORY', 'O_CLOEXEC', 'pread', 'fchmod', 'fork', 'register_at_fork'):\n"
        "    delattr(os, name)"
    ),
}
PROGRAM = """
import os, sys, warnings
warnings.simplefilter("ignore")  # without fcntl, filelock says that its locks are soft
{without}
from pathlib import Path
from fib_schema import AxisVar, Definition, Trace, TraceSet, Workload, migrate, rewrite_jsonl_file, validate
root = Path(sys.argv[1])
(root / "set").mkdir()
reference = "def run():\\n    return 1\\n"
made = TraceSet.from_path(root / "set")
made.add_definitions([Definition("copy", "pointwise", {{"n": AxisVar()}}, {{}}, {{}}, reference)])
workloads = {{name: Workload({{"n": 1}}, {{}}, name) for name in "abc"}}
made.add_traces([Trace("copy", workloads["a"])])
made.add_traces([Trace("copy", workloads["b"])])
log = made.workload_log()
assert log.append(made.definitions["copy"], workloads, {{}}) == ["c"]
assert log.remove_tensors(made.definitions["copy"], ["blob/none"]) == []
path = root / "set/workloads/pointwise/copy.jsonl"
assert rewrite_jsonl_file(path, lambda lines: lines[1:])
again = TraceSet.from_path(root / "set")
print([trace.workload.uuid for trace in again.workloads["copy"]], again.problems)
print(validate(root / "set").is_ok, migrate(root / "set", root / "new").is_ok)
print(sorted(str(file.relative_to(root)) for file in root.rglob("*.json*") if file.is_file()))
"""


@pytest.mark.parametrize("system", WITHOUT)
def test_a_set_is_written_and_read_without_the_calls(tmp_path: Path, system: str) -> None:
    program = PROGRAM.format(without=WITHOUT[system])
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [
        "['b', 'c'] ()",
        "True True",
        "['new/definitions/pointwise/copy.json', 'new/workloads/pointwise/copy.jsonl', "
        "'set/definitions/pointwise/copy.json', 'set/workloads/pointwise/copy.jsonl']",
    ], done.stderr


APPENDER = """
import sys
from fib_schema import _durable, locks
locks.HAS_FLOCK = False
for number in range(60):
    list(_durable.append_in_groups({sys.argv[1]: [b"%s-%d" % (sys.argv[2].encode(), number)]}))
"""


def test_no_line_is_lost_under_lock_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes append while this one rewrites, all of them with `filelock` in place of `flock`."""
    monkeypatch.setattr(locks, "HAS_FLOCK", False)
    file = tmp_path / "x.jsonl"
    file.write_bytes(b"first\n")
    appenders = [subprocess.Popen([sys.executable, "-c", APPENDER, str(file), name]) for name in "ab"]
    rewrites = 0
    while any(appender.poll() is None for appender in appenders):
        rewrites += 1
        rewrite_jsonl_file(file, lambda lines, added=b"rewrite-%d" % rewrites: [added, *lines])
    assert all(appender.wait() == 0 for appender in appenders)
    lines = file.read_bytes().splitlines()
    for name in "ab":
        mine = [line for line in lines if line.startswith(f"{name}-".encode())]
        assert mine == [b"%s-%d" % (name.encode(), number) for number in range(60)]
    assert len(lines) == 121 + rewrites


def test_a_lock_file_is_no_file_of_the_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_trace) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(locks, "HAS_FLOCK", False)
    append_jsonl_file([make_trace()], tmp_path / "x.jsonl")
    assert all(name == "x.jsonl" or name.startswith(".") for name in os.listdir(tmp_path))
    assert len(load_jsonl_file(type(make_trace()), tmp_path / "x.jsonl")) == 1


def test_a_rename_waits_for_readers_of_the_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows refuses to replace a file that a reader has open."""
    replace, refusals = os.replace, iter([PermissionError(13, "in use"), PermissionError(13, "in use")])

    def refuse_twice(source: Path, target: Path) -> None:
        if error := next(refusals, None):
            raise error
        replace(source, target)

    monkeypatch.setattr(files, "_RENAME_WAITS_SECONDS", (0.0, 0.0))
    monkeypatch.setattr(os, "replace", refuse_twice)
    atomic_write(tmp_path / "x", b"new")
    assert (tmp_path / "x").read_bytes() == b"new"
    refusals = iter([PermissionError(13, "in use")] * 3)
    with pytest.raises(PermissionError, match="in use"):
        atomic_write(tmp_path / "x", b"newer")
    assert os.listdir(tmp_path) == ["x"]
