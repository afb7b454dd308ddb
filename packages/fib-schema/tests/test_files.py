"""Atomic writes: whole or not at all, and no leftovers."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from fib_schema import files
from fib_schema.files import atomic_create_all, atomic_write, is_temporary, staged, temporary_path


def test_a_replaced_file_is_old_or_new_and_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "below" / "x.json"
    atomic_write(path, b"old")
    atomic_write(path, b"new", durable=True)
    assert path.read_bytes() == b"new"
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        atomic_write(tmp_path / "folder", b"x")
    assert sorted(os.listdir(tmp_path)) == ["below", "folder"]
    assert os.listdir(path.parent) == ["x.json"]


def test_an_exclusive_write_never_replaces_another_file(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    atomic_write(path, b"first", exclusive=True)
    with pytest.raises(FileExistsError):
        atomic_write(path, b"second", exclusive=True)
    assert path.read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["x.bin"]


def test_a_mode_holds_whatever_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o077)
    try:
        for mode in (0o600, 0o644):
            atomic_write(tmp_path / "x", b"", mode=mode)
            assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == mode
        atomic_write(tmp_path / "x", b"")
        assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o600
    finally:
        os.umask(old)


def test_a_write_that_fails_leaves_the_old_content_and_no_temporary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x"
    atomic_write(path, b"old")

    def full(descriptor: int, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "write_all", full)
    with pytest.raises(OSError, match="No space"):
        atomic_write(path, b"new")
    with pytest.raises(OSError, match="No space"):
        atomic_create_all({str(tmp_path / "y"): b"new"})
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["x"]


def test_files_that_exist_are_left_when_many_are_created(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"first")
    atomic_create_all({str(tmp_path / "a"): b"second", str(tmp_path / "below" / "b"): b"b"})
    assert (tmp_path / "a").read_bytes() == b"first"
    assert (tmp_path / "below" / "b").read_bytes() == b"b"
    assert sorted(os.listdir(tmp_path)) == ["a", "below"]


def test_staged_content_appears_when_the_block_succeeds(tmp_path: Path) -> None:
    with staged(tmp_path / "file") as temporary:
        assert is_temporary(temporary.name)
        temporary.write_text("content")
        assert not (tmp_path / "file").exists()
    with staged(tmp_path / "below" / "folder") as temporary:
        temporary.mkdir()
        (temporary / "x").touch()
    assert (tmp_path / "file").read_text() == "content"
    assert os.listdir(tmp_path / "below" / "folder") == ["x"]


def test_staged_content_is_removed_when_the_block_fails(tmp_path: Path) -> None:
    def fail(make: Callable[[Path], None]) -> None:
        with staged(tmp_path / "target") as temporary:
            make(temporary)
            raise ZeroDivisionError

    for make in (Path.touch, Path.mkdir):
        with pytest.raises(ZeroDivisionError):
            fail(make)
    with pytest.raises(FileNotFoundError), staged(tmp_path / "target"):
        pass
    assert os.listdir(tmp_path) == []


def test_a_folder_that_another_process_made_first_is_kept_on_request(tmp_path: Path) -> None:
    def stage(*, keeps_existing: bool) -> None:
        with staged(tmp_path / "folder", keeps_existing=keeps_existing) as temporary:
            temporary.mkdir()
            (temporary / "mine").touch()
            (tmp_path / "folder").mkdir(exist_ok=True)
            (tmp_path / "folder" / "theirs").touch()

    stage(keeps_existing=True)
    with pytest.raises(OSError, match="folder"):
        stage(keeps_existing=False)
    assert os.listdir(tmp_path) == ["folder"]
    assert os.listdir(tmp_path / "folder") == ["theirs"]


def test_temporary_names_are_recognised(tmp_path: Path) -> None:
    assert is_temporary(temporary_path(tmp_path).name)
    assert not any(map(is_temporary, ("x.tmp", ".x.tmp", "a.json", f"{'a' * 32}.tmp")))
