"""Locks of folders: who can hold them."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from fib_schema import RandomInput, Workload, append_jsonl_file, appending

OWNER, MEMBER, READER, GROUP = 65531, 65532, 65533, 65530
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to act as other accounts")
WORKLOAD = Workload({"M": 1}, {"A": RandomInput()}, "w")


def in_child(action: Callable[[], object], uid: int = 0, gid: int = 0) -> str:
    """The result or the error of an action of another account, which has no other group."""
    out, into = os.pipe()
    child = os.fork()
    if not child:
        try:
            if uid:
                os.setgroups([])
                os.setgid(gid)
                os.setuid(uid)
            found = str(action())
        except OSError as error:
            found = type(error).__name__
        os.write(into, found.encode())
        os._exit(0)
    os.close(into)
    with os.fdopen(out) as stream:
        found = stream.read()
    os.waitpid(child, 0)
    return found


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that other accounts can reach."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@needs_root
def test_an_account_that_may_only_read_cannot_delay_writers(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It locks all that it can open, as hard as it can, for as long as the writer writes."""
    file = shared / "x.jsonl"
    append_jsonl_file([WORKLOAD], file)
    held, release = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        os.setgroups([])
        os.setgid(READER)
        os.setuid(READER)
        locked = 0
        for path in (shared, file, shared / ".lock"):
            with suppress(OSError):
                descriptor = os.open(path, os.O_RDONLY)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                locked += 1
                fcntl.lockf(descriptor, fcntl.LOCK_SH)
        os.write(held[1], b"%d" % locked)
        os.close(release[1])
        os.read(release[0], 1)
        os._exit(0)
    assert os.read(held[0], 1) == b"2"
    monkeypatch.setattr(appending, "LOCK_TIMEOUT_SECONDS", 0.0)
    append_jsonl_file([WORKLOAD], file)
    for descriptor in (*held, *release):
        os.close(descriptor)
    os.waitpid(child, 0)
    assert in_child(lambda: append_jsonl_file([WORKLOAD], file), READER, READER) == "PermissionError"


@needs_root
@pytest.mark.parametrize("mode", [0o2775, 0o775, 0o777, 0o1777])
@pytest.mark.parametrize("first", [0, OWNER, MEMBER])
def test_all_accounts_that_may_write_share_the_lock(shared: Path, mode: int, first: int) -> None:
    """The owner, a member of the folder's group, and root, whoever of them writes first; a stranger if he may write."""
    folder = shared / "set"
    folder.mkdir()
    os.chown(folder, OWNER, GROUP)
    folder.chmod(mode)
    file = folder / "x.jsonl"

    def append() -> None:
        os.umask(0)
        append_jsonl_file([WORKLOAD], file)

    writers = [0, OWNER, MEMBER]
    writers.remove(first)
    stranger = in_child(append, READER, READER)
    assert stranger == ("None" if mode & 0o002 else "PermissionError")
    for uid in (first, *writers):
        assert in_child(append, uid, GROUP) == "None"
    assert in_child(lambda: os.open(folder / ".lock", os.O_RDONLY) > 0, READER, READER) == (
        "True" if mode & 0o002 else "PermissionError"
    )
