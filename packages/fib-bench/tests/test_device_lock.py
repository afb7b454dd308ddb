"""One run at a time measures on a device."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from fib_bench.execution.device_lock import FOLDER_VARIABLE, lock_of
from filelock import Timeout

HOLDS = """
import sys, torch
from fib_bench.execution.device_lock import lock_of
lock = lock_of(torch.device("cpu"))
lock.acquire()
print(flush=True)
sys.stdin.read()
"""


def test_another_process_waits_until_the_holder_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "locks"))
    lock = lock_of(torch.device("cpu"))
    command = [sys.executable, "-c", HOLDS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(Timeout):
            lock.acquire(timeout=0)
        holder.kill()
    with lock.acquire(timeout=5):
        pass


def test_all_users_can_take_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "locks"
    monkeypatch.setenv(FOLDER_VARIABLE, str(folder))
    lock_of(torch.device("cpu"))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o1777
    assert stat.S_IMODE((folder / "cpu.lock").stat().st_mode) == 0o666


def test_the_folder_does_not_depend_on_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert not Path(lock_of(torch.device("cpu")).lock_file).is_relative_to(tmp_path)
