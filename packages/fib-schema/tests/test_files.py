"""Atomic writes: whole or not at all, and no leftovers."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from fib_schema import files
from fib_schema.errors import DataSetNotFound
from fib_schema.files import (
    atomic_create_all,
    atomic_write,
    explain_os_error,
    staged,
    write_output,
)

OTHER_UID = 60_599


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
        atomic_create_all({str(tmp_path / "y"): b"new"}, keeps_existing=True)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["x"]


def test_files_that_exist_are_left_when_many_are_created(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"first")
    atomic_create_all({str(tmp_path / "a"): b"second", str(tmp_path / "below" / "b"): b"b"}, keeps_existing=True)
    assert (tmp_path / "a").read_bytes() == b"first"
    assert (tmp_path / "below" / "b").read_bytes() == b"b"
    assert sorted(os.listdir(tmp_path)) == ["a", "below"]


def test_staged_content_appears_when_the_block_succeeds(tmp_path: Path) -> None:
    with staged(tmp_path / "file") as temporary:
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


def test_errors_name_the_target_and_not_the_temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "write_all", full)
    for write in (
        lambda path: atomic_write(path, b"new"),
        lambda path: atomic_create_all({str(path): b"new"}, keeps_existing=True),
        lambda path: write_output(path, b"new"),
    ):
        with pytest.raises(OSError, match="No space") as caught:
            write(tmp_path / "y")
        assert caught.value.filename == str(tmp_path / "y")

    def fill_a_folder() -> None:
        with staged(tmp_path / "folder") as temporary:
            temporary.mkdir()
            raise OSError(28, "No space left on device", str(temporary / "inside"))

    with pytest.raises(OSError, match="No space") as caught:
        fill_a_folder()
    assert caught.value.filename == str(tmp_path / "folder" / "inside")
    with pytest.raises(FileNotFoundError) as missing, staged(tmp_path / "folder"):
        (tmp_path / "source").read_bytes()
    assert missing.value.filename == str(tmp_path / "source")
    assert os.listdir(tmp_path) == []


def test_an_output_keeps_its_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")
    write_output(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"
    with pytest.raises(IsADirectoryError):
        write_output(tmp_path, b"new")
    assert sorted(os.listdir(tmp_path)) == ["link", "real"]


def test_an_output_may_be_a_device_or_a_pipe(tmp_path: Path) -> None:
    write_output("/dev/null", b"x")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_output(tmp_path / "pipe", b"piped")
    assert os.read(reader, 10) == b"piped"
    os.close(reader)
    reading, writing = os.pipe()
    (tmp_path / "stdout").symlink_to(f"/proc/self/fd/{writing}")  # as /dev/stdout
    write_output(tmp_path / "stdout", b"linked")
    assert os.read(reading, 10) == b"linked"
    os.close(reading)
    os.close(writing)


def test_either_all_files_are_created_or_none(tmp_path: Path) -> None:
    (tmp_path / "c").write_bytes(b"first")
    with pytest.raises(FileExistsError) as caught:
        atomic_create_all({str(tmp_path / name): b"second" for name in "abcd"}, keeps_existing=False)
    assert caught.value.filename == str(tmp_path / "c")
    assert os.listdir(tmp_path) == ["c"]
    assert (tmp_path / "c").read_bytes() == b"first"


def test_errors_with_a_text_of_their_own_keep_it() -> None:
    error = DataSetNotFound("/x")
    assert explain_os_error(error) == str(error)
    assert explain_os_error(OSError(28, "No space left on device", b"/x")).startswith("/x: the disk is full (No space")
    assert explain_os_error(OSError(5, "Input/output error", 3)) == "Input/output error"
