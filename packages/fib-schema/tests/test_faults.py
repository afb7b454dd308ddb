"""Appends whose system calls fail or end the process, at each call in turn."""

import errno
import os
import stat
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import attrs
import pytest
from fib_schema import RandomInput, Trace, TraceSet, Workload, append_jsonl_file, migrate

from .conftest import files_limited_to

CALLS = ("open", "write", "fdatasync", "fsync", "mkdir", "lseek", "read", "fstat")
"""System calls of an append."""


def trace(definition, uuid="w"):
    return Trace(definition, Workload({"M": 1, "K": 2}, {"A": RandomInput(), "B": RandomInput()}, uuid))


def wide_set(root, definition, count):
    """A set of many definitions in two folders; half of them have a file of workloads."""
    names = [f"d{number:04}" for number in range(count)]
    made = [attrs.evolve(definition, name=name, op_type=f"op{index % 2}") for index, name in enumerate(names)]
    opened = TraceSet(root, {item.name: item for item in made})
    opened.add_traces([trace(name, "first") for name in names[::2]])
    return opened


def contents(root):
    found = {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}
    return {name: content for name, content in found.items() if content}


def uuids(root, definition):
    found = [path.read_bytes().splitlines() for path in root.rglob(f"{definition}.jsonl")]
    return [line.rpartition(b'"uuid":"')[2].split(b'"')[0].decode() for lines in found for line in lines]


@contextmanager
def failing_call(code, number):
    """Let one call out of `CALLS` fail, counted from 0 over all of them."""
    count = 0
    real = {name: getattr(os, name) for name in CALLS}

    def counted(name):
        def call(*arguments, **options):
            nonlocal count
            count += 1
            if count - 1 == number:
                paths = [os.fspath(path) for path in arguments if isinstance(path, str | os.PathLike)]
                raise OSError(code, os.strerror(code), *paths[:1])
            return real[name](*arguments, **options)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in CALLS:
            patch.setattr(os, name, counted(name))
        yield lambda: count


def open_files():
    """The descriptors of this process, each with what it is of; those of earlier tests may be closed at any time."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # that of the listing
            found.add((name, os.readlink(f"/proc/self/fd/{name}")))
    return found


@pytest.mark.parametrize("code", [errno.ENOSPC, pytest.param(errno.EMFILE, marks=pytest.mark.slow)])
def test_any_call_that_fails_leaves_all_files_as_they_were_or_nothing_is_missing(tmp_path, definition, code):
    """Six files, of which three are new."""
    for number in range(1000):
        root = tmp_path / str(number)
        opened = wide_set(root, definition, 6)
        before = contents(root)
        opened_before = open_files()
        with failing_call(code, number) as count, suppress(OSError):
            opened.add_traces([trace(name) for name in opened.definitions])
        added = {name for name in opened.workloads if opened.workloads[name][-1].workload.uuid == "w"}
        assert open_files() <= opened_before
        after = contents(root)
        assert {Path(path).stem for path in after if after[path] != before.get(path)} == added
        assert all(uuids(root, name)[-1] == "w" for name in added)
        assert [[t.workload.uuid for t in opened.workloads[name]] for name in opened.workloads] == [
            uuids(root, name) for name in opened.workloads
        ]
        if count() <= number:
            break
    assert number > 30


def test_a_batch_that_fails_half_way_keeps_what_is_durable(tmp_path, definition):
    opened = wide_set(tmp_path, definition, 8)
    path = tmp_path / "workloads" / "op0" / "d0004.jsonl"
    path.unlink()
    path.mkdir()
    with pytest.raises(IsADirectoryError, match=r"Is a directory.*d0004\.jsonl"):
        opened.add_traces([trace(name) for name in opened.definitions])
    added = set(list(opened.definitions)[:4])
    for name in opened.definitions:
        if name != "d0004":
            assert ("w" in uuids(tmp_path, name)) == (name in added)
            assert (opened.workloads.get(name, [])[-1:] == [trace(name)]) == (name in added)


KILLED = """
import os, sys
from fib_schema.files import append_new_lines
root, calls = sys.argv[1], sys.argv[2:]
real = {name: getattr(os, name) for name in calls}
def run(number):
    def counted(name):
        def call(*arguments, **options):
            nonlocal number
            number -= 1
            if number < 0:
                os._exit(9)
            return real[name](*arguments, **options)
        return call
    for name in calls:
        setattr(os, name, counted(name))
    folder = os.path.join(root, str(number))
    for index in range(8):
        append_new_lines(os.path.join(folder, f"{index % 2}/{index}.jsonl"), lambda _: [b"new", b"new"])
for number in range(0, 200, 3):
    for index in range(4):
        os.makedirs(f"{root}/{number}/{index % 2}", exist_ok=True)
        with open(f"{root}/{number}/{index % 2}/{index}.jsonl", "wb") as file:
            file.write(b"old\\n")
    if not os.fork():  # 50 times faster than starting an interpreter
        run(number)
        os._exit(0)
    if os.waitstatus_to_exitcode(os.wait()[1]) == 0:
        break
"""


def test_a_writer_that_is_killed_at_any_call_loses_no_earlier_line(tmp_path):
    """Whole lines follow whole lines."""
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), *CALLS], check=True)
    roots = sorted(tmp_path.iterdir(), key=lambda root: int(root.name))
    assert 15 < len(roots) < 60
    for root in roots:
        left = contents(root)
        assert all(left[f"{index % 2}/{index}.jsonl"].startswith(b"old\n") for index in range(4))
        assert set(b"".join(left.values()).split()) <= {b"old", b"new"}
    assert sum(content.count(b"new\n") for content in left.values()) == 16


def test_a_full_disk_is_reported_with_the_path(tmp_path, definition):
    opened = wide_set(tmp_path, definition, 4)
    before = contents(tmp_path)
    with files_limited_to(1000), pytest.raises(OSError, match=r"workloads/op0/d0002\.jsonl"):
        opened.add_traces([trace("d0002", f"w{n}") for n in range(50)])
    assert contents(tmp_path) == before


def test_only_regular_files_are_appended_to(tmp_path):
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "full.jsonl").symlink_to("/dev/full")
    for name in ("pipe.jsonl", "full.jsonl"):
        with pytest.raises(OSError, match=f"is not a regular file.*{name}"):
            append_jsonl_file([trace("x")], tmp_path / name)
    assert stat.S_ISFIFO((tmp_path / "pipe.jsonl").stat().st_mode)


def test_a_migration_that_fails_leaves_no_target(tmp_path, definition):
    wide_set(tmp_path / "old", definition, 4).add_definitions(
        [attrs.evolve(definition, name="x", description="x" * 2000)]
    )
    target = tmp_path / "new"
    for _ in range(2):
        with files_limited_to(1000), pytest.raises(OSError, match=r"new/definitions/gemm/x\.json"):
            migrate(tmp_path / "old", target)
        assert not contents(tmp_path / "new")
        assert all(not path.name.startswith(".") for path in tmp_path.iterdir())
    target.mkdir()
    assert migrate(tmp_path / "old", target).counts["definitions"] == 1


def test_a_migration_that_is_killed_leaves_no_part_of_a_set(tmp_path, definition):
    TraceSet(tmp_path / "old").add_definitions([definition])
    program = "import os, sys\nos.sync = lambda: os._exit(9)\nfrom fib_schema import migrate\nmigrate(*sys.argv[1:])"
    words = [sys.executable, "-c", program, str(tmp_path / "old"), str(tmp_path / "new")]
    assert subprocess.run(words, check=False).returncode == 9
    assert not (tmp_path / "new").exists()
    assert migrate(tmp_path / "old", tmp_path / "new").is_ok
