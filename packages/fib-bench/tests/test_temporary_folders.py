"""Temporary folders of runs: removed whatever they hold, swept after a kill, and nothing of others with them."""

import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest
from fib_bench.temporary_folders import TemporaryFolder, remove_abandoned

OTHER_UID = 60_599
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
HOLDS = """
import sys
from fib_bench.temporary_folders import TemporaryFolder
print(TemporaryFolder().path, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def shared(monkeypatch):
    """The folder for temporary files, which all users share; they cannot reach `tmp_path`."""
    with tempfile.TemporaryDirectory(prefix="fib-tests-") as path:
        shared = Path(path)
        shared.chmod(0o1777)
        monkeypatch.setattr(tempfile, "tempdir", path)
        monkeypatch.setenv("TMPDIR", path)
        yield shared


@contextmanager
def another_run():
    """A process that holds a folder, and the folder."""
    command = [sys.executable, "-c", HOLDS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process, Path(process.stdout.readline().strip())
        process.kill()


def nest(folder, levels):
    """Make nested folders, each with a file."""
    descriptor = os.open(folder, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("inner", dir_fd=descriptor)
        inner = os.open("inner", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = inner
        os.close(os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=descriptor))
    os.close(descriptor)


def test_it_is_removed_whatever_it_holds(shared, tmp_path):
    (tmp_path / "precious").write_text("kept")
    with TemporaryFolder() as folder:
        nest(folder.path, 1_500)
        (folder.path / "link").symlink_to(tmp_path)
        os.link(tmp_path / "precious", folder.path / "hard")
        os.mkfifo(folder.path / "pipe")
    assert list(shared.iterdir()) == []
    assert (tmp_path / "precious").read_text() == "kept"


def test_the_folder_of_a_killed_run_is_removed_and_that_of_a_live_one_is_not(shared):
    with another_run() as (killed, abandoned), another_run() as (_, held), TemporaryFolder() as own:
        nest(abandoned, 3)
        remove_abandoned()
        assert abandoned.is_dir()
        killed.kill()
        killed.wait()
        remove_abandoned()
        assert set(shared.iterdir()) == {held, own.path}


@needs_root
def test_folders_of_other_users_are_left_alone_unless_they_are_of_workers(shared):
    foreign = shared / "fib-bench-run-planted"
    foreign.mkdir()
    os.chown(foreign, OTHER_UID, OTHER_UID)
    remove_abandoned()
    assert foreign.is_dir()
    remove_abandoned({OTHER_UID})
    assert not foreign.exists()


def run_as_other(command, path):
    words = ["sh", "-c", command, "sh", path]
    done = subprocess.run(words, user=OTHER_UID, group=OTHER_UID, extra_groups=[], capture_output=True, check=False)
    return done.returncode


@needs_root
def test_another_user_can_neither_open_nor_replace_nor_hold_it(shared):
    with TemporaryFolder() as folder:
        assert run_as_other("true", "") == 0
        for attack in ("ls $1", "mv $1 $1-moved", "rmdir $1", "flock -n $1 true", "touch $1/file"):
            assert run_as_other(attack, str(folder.path)) != 0, attack
