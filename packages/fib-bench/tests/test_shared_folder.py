"""Tests of shared folders: links are not followed, and other users cannot replace entries."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from fib_bench.errors import UnsafeFolder
from fib_bench.shared_folder import open_folder, user_name

FOR_ALL, OWN = 0o1777, 0o700
OTHER_UID = 60_599
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders away")


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("mode", [FOR_ALL, OWN])
def test_is_made_with_the_mode_whatever_the_umask(tmp_path: Path, mode: int) -> None:
    umask = os.umask(0o077)
    try:
        descriptor = open_folder(tmp_path / "a" / "b", mode)
    finally:
        os.umask(umask)
    assert os.path.samestat(os.fstat(descriptor), (tmp_path / "a" / "b").stat())
    os.close(descriptor)
    assert mode_of(tmp_path / "a" / "b") == mode


def test_ones_own_gets_the_mode(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir(0o755)
    os.close(open_folder(tmp_path / "own", FOR_ALL))
    assert mode_of(tmp_path / "own") == FOR_ALL


def test_the_target_of_a_planted_link_stays_as_it_is(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir(0o700)
    (tmp_path / "locks").symlink_to(target)
    with pytest.raises(UnsafeFolder, match=r"locks of user \w+ is not usable: it is a link or no folder; remove it"):
        open_folder(tmp_path / "locks", FOR_ALL)
    assert mode_of(target) == 0o700
    assert list(target.iterdir()) == []


def test_a_dangling_link_makes_nothing(tmp_path: Path) -> None:
    (tmp_path / "locks").symlink_to(tmp_path / "target")
    with pytest.raises(UnsafeFolder, match="it is a link"):
        open_folder(tmp_path / "locks", FOR_ALL)
    assert not (tmp_path / "target").exists()


def test_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "locks").touch()
    with pytest.raises(UnsafeFolder, match="no folder"):
        open_folder(tmp_path / "locks", FOR_ALL)


@needs_root
@pytest.mark.parametrize(
    ("found", "wanted", "problem"),
    [
        (0o777, FOR_ALL, "it belongs to another user and is not sticky"),
        (0o1755, FOR_ALL, "other users cannot write to it"),
        (0o1777, OWN, "it belongs to another user"),
        (0o700, OWN, "it belongs to another user"),
    ],
)
def test_an_unsafe_one_of_another_user_is_refused_by_name(
    tmp_path: Path, found: int, wanted: int, problem: str
) -> None:
    folder = tmp_path / "foreign"
    folder.mkdir()
    os.chown(folder, OTHER_UID, OTHER_UID)
    folder.chmod(found)
    with pytest.raises(UnsafeFolder, match=rf"of user {user_name(OTHER_UID)} is not usable: {problem}.*; remove it"):
        open_folder(folder, wanted)
    assert mode_of(folder) == found


@needs_root
def test_a_sticky_one_of_another_user_is_shared(tmp_path: Path) -> None:
    folder = tmp_path / "foreign"
    folder.mkdir()
    os.chown(folder, OTHER_UID, OTHER_UID)
    folder.chmod(FOR_ALL)
    os.close(open_folder(folder, FOR_ALL))
    assert folder.stat().st_uid == OTHER_UID
