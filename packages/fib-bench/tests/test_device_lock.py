"""Tests of the device lock: one run at a time measures on a device."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fib_bench.errors import DeviceLockHeld, InvalidConfig, UnsafeFolder
from fib_bench.judge.device_lock import FOLDER_VARIABLE, WAIT_VARIABLE, DeviceLock, SharedDeviceLock, lock_of
from fib_bench.shared_folder import user_name

VICTIM_UID, OTHER_UID = 60_598, 60_599

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


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The default folder that all users share, in a folder where everybody can make entries."""
    with tempfile.TemporaryDirectory(prefix="fib-tests-") as path:
        Path(path).chmod(0o1777)
        monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
        monkeypatch.setattr("fib_bench.judge.device_lock._FOLDER", Path(path, "locks"))
        yield Path(path, "locks")


def shared_lock() -> SharedDeviceLock:
    lock = lock_of(torch.device("cpu"))
    assert isinstance(lock, SharedDeviceLock)
    return lock


def test_two_runs_of_a_user_exclude_each_other_without_the_shared_lock(shared: Path) -> None:
    shared.touch()  # planted
    first, second = shared_lock(), shared_lock()
    assert first.shared is None
    first.acquire()
    with pytest.raises(DeviceLockHeld):
        second.own.acquire(0)
    first.release()
    second.acquire()
    assert second.is_held
    second.release()


def test_the_own_lock_is_private_whatever_the_umask(shared: Path) -> None:
    before = os.umask(0)
    try:
        lock = shared_lock()
    finally:
        os.umask(before)
    assert stat.S_IMODE(lock.own.path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(shared.stat().st_mode) == 0o1777


def test_a_shared_lock_that_is_held_for_ever_does_not_block(
    shared: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(WAIT_VARIABLE, "0.1")
    with DeviceLock(shared / "cpu.lock"):
        lock = shared_lock()
        for _ in range(2):
            lock.acquire()
            assert lock.is_held
            lock.release()
        assert capsys.readouterr().err.count("this run goes on, and runs of other users may disturb it") == 1
    lock.acquire()
    assert lock.shared is not None
    assert lock.shared.is_held
    lock.release()
    assert not lock.shared.is_held


@pytest.mark.parametrize("text", ["soon", "-1", "nan"])
def test_a_bad_limit_is_an_error(shared: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(WAIT_VARIABLE, text)
    with pytest.raises(InvalidConfig, match=WAIT_VARIABLE):
        lock_of(torch.device("cpu"))


PLANS = {
    "closed folder": "mkdir -m 700 $1",
    "folder that is not sticky": "mkdir -m 777 $1",
    "file": "touch $1",
    "pipe": "mkfifo -m 666 $1",
    "link": "ln -s /etc $1",
    "dangling link": "ln -s $1-missing $1",
    "lock is a pipe": "mkdir -m 1777 $1 && mkfifo -m 666 $1/cpu.lock",
    "lock is a link": "mkdir -m 1777 $1 && ln -s /etc/passwd $1/cpu.lock",
    "lock is a folder": "mkdir -m 1777 $1 && mkdir $1/cpu.lock",
    "lock has two names": "mkdir -m 1777 $1 && touch $1/cpu.lock && chmod 666 $1/cpu.lock && ln $1/cpu.lock $1/other",
    "lock is closed": "mkdir -m 1777 $1 && touch $1/cpu.lock && chmod 600 $1/cpu.lock",
    "own folder": f"mkdir -m 777 $1-{VICTIM_UID}",
    "link for the own folder": f"ln -s /etc $1-{VICTIM_UID}",
}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become other users")
@pytest.mark.parametrize("plan", PLANS.values(), ids=list(PLANS))
def test_another_user_cannot_block_or_redirect_it(shared: Path, monkeypatch: pytest.MonkeyPatch, plan: str) -> None:
    cache = shared.parent / "cache"
    cache.mkdir(0o700)
    os.chown(cache, VICTIM_UID, VICTIM_UID)
    monkeypatch.setenv("FIB_CACHE_PATH", str(cache))
    subprocess.run(["sh", "-ec", plan, "sh", str(shared)], check=True, user=OTHER_UID, group=OTHER_UID, extra_groups=[])
    if (pid := os.fork()) == 0:
        status = 1
        try:
            os.setgroups([])
            os.setresgid(VICTIM_UID, VICTIM_UID, VICTIM_UID)
            os.setresuid(VICTIM_UID, VICTIM_UID, VICTIM_UID)
            lock = shared_lock()
            lock.acquire()
            is_own = lock.own.path.stat().st_uid == VICTIM_UID and lock.own.path.parent.stat().st_uid == VICTIM_UID
            status = 0 if lock.is_held and is_own else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert not os.path.lexists(f"{shared}-missing")


def test_the_folder_does_not_depend_on_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    lock = shared_lock()
    assert not lock.own.path.is_relative_to(tmp_path)
    assert lock.shared is None or not lock.shared.path.is_relative_to(tmp_path)
