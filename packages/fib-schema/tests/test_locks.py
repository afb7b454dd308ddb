"""Locks where `flock` is refused, as on some Lustre, FUSE and NFS mounts; `flock` is made to fail."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fib_schema import RandomInput, Workload, append_jsonl_file, load_jsonl_file, locks, rewrite_jsonl_file
from fib_schema._durable import append_in_groups
from fib_schema.locks import lock_open_file

REFUSALS = [errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS]  # EOPNOTSUPP is ENOTSUP on Linux
WORKLOAD = Workload({"M": 1}, {"A": RandomInput()}, "w")


@pytest.fixture(params=REFUSALS, ids=lambda code: errno.errorcode[code])
def no_flock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    code: int = request.param

    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(locks, "flock", refuse)
    return code


def test_files_are_appended_to_and_rewritten_without_flock(tmp_path: Path, no_flock: int) -> None:
    file = tmp_path / "x.jsonl"
    append_jsonl_file([WORKLOAD, WORKLOAD], file)
    list(append_in_groups({str(file): [b"1"], str(tmp_path / "y.jsonl"): [b"2"]}))
    assert rewrite_jsonl_file(file, lambda lines: [])
    append_jsonl_file([WORKLOAD], file)
    assert sorted(os.listdir(tmp_path)) == ["x.jsonl", "y.jsonl"]
    assert load_jsonl_file(Workload, file) == [WORKLOAD]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to act as another user")
def test_a_user_who_may_only_read_delays_writers_for_a_limited_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "x.jsonl"
    append_jsonl_file([WORKLOAD], file)
    held, release = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        descriptor = os.open(file, os.O_RDONLY)
        os.setuid(65534)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.write(held[1], b"x")
        os.close(release[1])
        os.read(release[0], 1)
        os._exit(0)
    os.read(held[0], 1)
    monkeypatch.setattr(locks, "LOCK_TIMEOUT_SECONDS", 0.1)
    with pytest.raises(TimeoutError, match=rf"by process {child} \(.*\) of user 65534; end that process"):
        append_jsonl_file([WORKLOAD], file)
    for descriptor in (*held, *release):
        os.close(descriptor)
    os.waitpid(child, 0)
    append_jsonl_file([WORKLOAD], file)
    assert load_jsonl_file(Workload, file) == [WORKLOAD, WORKLOAD]


def test_another_error_of_flock_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int, operation: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(locks, "flock", fail)
    with pytest.raises(OSError, match="Input/output error"):
        append_jsonl_file([WORKLOAD], tmp_path / "x.jsonl")
    assert os.listdir(tmp_path) == []


WRITER = """
import errno, os, sys
from fib_schema import locks, rewrite_jsonl_file
from fib_schema._durable import append_in_groups
def refuse(descriptor, operation):
    raise OSError(errno.ENOSYS, "Function not implemented")
locks.flock = refuse
for number in range(30):
    list(append_in_groups({sys.argv[1]: [b"%s-%d" % (sys.argv[2].encode(), number)]}))
    if number % 20 == 0:
        rewrite_jsonl_file(sys.argv[1], lambda lines: [b"rewritten", *lines])
if sys.argv[2] == "killed":
    os.open(sys.argv[1], os.O_RDWR)
    locks.lock_name(sys.argv[1])
    os._exit(9)
"""


def test_no_line_is_lost_under_lock_files_and_that_of_a_killed_process_is_removed(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    names = ("a", "b", "killed")
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(file), name]) for name in names]
    assert [writer.wait(timeout=60) for writer in writers] == [0, 0, 9]
    subprocess.run([sys.executable, "-c", WRITER, str(file), "after"], check=True, timeout=60)
    lines = file.read_bytes().splitlines()
    for name in (*names, "after"):
        mine = [line for line in lines if line.startswith(f"{name}-".encode())]
        assert mine == [b"%s-%d" % (name.encode(), number) for number in range(30)]
    assert len(lines) == 4 * 32
    assert os.listdir(tmp_path) == ["x.jsonl"]


def test_a_lock_file_of_another_host_is_named_with_its_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "LOCK_TIMEOUT_SECONDS", 0.05)
    (tmp_path / ".x.jsonl.lock").write_text("4711\nelsewhere.example\n")
    with pytest.raises(TimeoutError, match=r"pid 4711 on elsewhere\.example.*remove it.*\.x\.jsonl\.lock"):
        locks.lock_name(str(tmp_path / "x.jsonl"))
    assert locks.lock_name(str(tmp_path / "x.jsonl"), waits=False) is None


def test_a_held_lock_is_not_waited_for_on_request(tmp_path: Path) -> None:
    path = str(tmp_path / "x")
    first, second = (os.open(path, os.O_RDWR | os.O_CREAT) for _ in range(2))
    try:
        unlock = lock_open_file(first, path)
        assert unlock is not None
        assert lock_open_file(second, path, waits=False) is None
        unlock()
        assert lock_open_file(second, path, waits=False) is not None
    finally:
        os.close(first)
        os.close(second)


def test_two_links_to_a_file_have_one_lock_file(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("x")
    unlock = locks.lock_name(str(tmp_path / "link"))
    assert unlock is not None
    assert locks.lock_name(str(tmp_path / "x"), waits=False) is None
    unlock()
