"""Tests of the device lock: one run at a time measures on a device."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fib_bench.errors import DeviceLockHeld, UnsafeFolder
from fib_bench.judge.device_lock import FOLDER_VARIABLE, DeviceLock, lock_of
from fib_bench.shared_folder import user_name

HOLDS = """
import sys, torch
from fib_bench.judge.device_lock import lock_of
lock = lock_of(torch.device("cpu"))
lock.acquire()
print(flush=True)
sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the locks."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "locks"))
    return tmp_path / "locks"


@contextmanager
def another_holder() -> Iterator[subprocess.Popen[bytes]]:
    """A process that holds the lock."""
    command = [sys.executable, "-c", HOLDS, "run --device cpu"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        yield holder
        holder.kill()


def test_another_process_waits_until_the_holder_has_ended(folder: Path) -> None:
    lock = lock_of(torch.device("cpu"))
    with another_holder() as holder:
        with pytest.raises(DeviceLockHeld):
            lock.acquire(0)
        holder.kill()
        holder.wait()
        lock.acquire(5)
    assert lock.is_held
    lock.release()


def test_the_error_names_the_holder(folder: Path) -> None:
    lock = lock_of(torch.device("cpu"))
    user = user_name(os.geteuid())
    with another_holder() as holder:
        held = rf"cpu\.lock is held by process {holder.pid} of user {user} \(`-c 'run --device cpu'`\) since 20\d\d-"
        with pytest.raises(DeviceLockHeld, match=held):
            lock.acquire(0)


def test_a_run_that_waits_says_so_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    clock = SimpleNamespace(monotonic=lambda: now, sleep=sleep)
    monkeypatch.setattr("fib_bench.judge.device_lock.time", clock)
    with DeviceLock(folder / "d.lock") as holder, pytest.raises(DeviceLockHeld):
        DeviceLock(folder / "d.lock", told.append).acquire(30)
    assert told == [f"waiting for device lock {folder / 'd.lock'}: held by {holder_text(told[0])}"]
    assert f"process {os.getpid()} of user" in told[0]
    assert not holder.is_held


def holder_text(message: str) -> str:
    return message.partition("held by ")[2]


def test_a_note_of_another_user_cannot_write_to_the_terminal(folder: Path) -> None:
    lock = DeviceLock(folder / "d.lock")
    (folder / "d.lock").write_text('{"pid": 1, "user": "\\u001b[2J", "command": "x", "since": "then"}')
    assert lock.holder() == r"process 1 of user \x1b[2J (`x`) since then"


@pytest.mark.parametrize("note", ["", "{", "\x00" * 5_000, '{"pid": "x"}'])
def test_a_damaged_note_is_no_error(folder: Path, note: str) -> None:
    lock = DeviceLock(folder / "d.lock")
    (folder / "d.lock").write_text(note)
    assert "left no note" in lock.holder()


def test_it_can_be_taken_again(folder: Path) -> None:
    lock = lock_of(torch.device("cpu"))
    for _ in range(2):
        with lock, pytest.raises(DeviceLockHeld):
            lock_of(torch.device("cpu")).acquire(0)


def test_all_users_can_take_it(folder: Path) -> None:
    umask = os.umask(0o077)
    try:
        lock_of(torch.device("cpu"))
    finally:
        os.umask(umask)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o1777
    assert stat.S_IMODE((folder / "cpu.lock").stat().st_mode) == 0o666


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_of_another_user_can_be_locked(folder: Path) -> None:
    lock_of(torch.device("cpu"))
    os.chown(folder / "cpu.lock", 60_599, 60_599)
    os.chown(folder, 60_599, 60_599)
    with lock_of(torch.device("cpu")) as lock:
        assert lock.is_held


def test_the_target_of_a_planted_folder_stays_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "home"
    target.mkdir(0o700)
    (tmp_path / "locks").symlink_to(target)
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "locks"))
    with pytest.raises(UnsafeFolder):
        lock_of(torch.device("cpu"))
    assert stat.S_IMODE(target.stat().st_mode) == 0o700


@pytest.mark.parametrize("is_hard", [False, True])
def test_the_target_of_a_planted_file_stays_as_it_is(folder: Path, tmp_path: Path, is_hard: bool) -> None:
    target = tmp_path / "secret"
    target.write_text("text")
    target.chmod(0o600)
    folder.mkdir()
    (folder / "cpu.lock").hardlink_to(target) if is_hard else (folder / "cpu.lock").symlink_to(target)
    with pytest.raises(UnsafeFolder, match=r"cpu\.lock of user"):
        lock_of(torch.device("cpu"))
    assert (target.read_text(), stat.S_IMODE(target.stat().st_mode)) == ("text", 0o600)


def test_the_folder_does_not_depend_on_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert not lock_of(torch.device("cpu")).path.is_relative_to(tmp_path)
