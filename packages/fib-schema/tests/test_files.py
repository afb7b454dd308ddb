"""Atomic writes: whole or not at all, and no leftovers."""

import os
import stat
from pathlib import Path

import pytest
from fib_schema.errors import DataSetNotFound
from fib_schema.files import atomic_create_all, atomic_write, explain_os_error, staged, write_output

from .conftest import files_limited_to


def test_a_replaced_file_is_old_or_new_and_leaves_nothing_behind(tmp_path):
    path = tmp_path / "below" / "x.json"
    atomic_write(path, b"old")
    atomic_write(path, b"new", durable=True)
    assert path.read_bytes() == b"new"
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        atomic_write(tmp_path / "folder", b"x")
    assert sorted(os.listdir(tmp_path)) == ["below", "folder"]
    assert os.listdir(path.parent) == ["x.json"]


def test_a_mode_holds_whatever_the_umask(tmp_path):
    old = os.umask(0o077)
    try:
        for mode in (0o600, 0o644):
            atomic_write(tmp_path / "x", b"", mode=mode)
            assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == mode
        atomic_write(tmp_path / "x", b"")
        assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o600
    finally:
        os.umask(old)


def test_a_write_that_fails_leaves_the_old_content_and_no_temporary(tmp_path):
    path = tmp_path / "x"
    atomic_write(path, b"old")
    with files_limited_to(1):
        with pytest.raises(OSError, match="too large"):
            atomic_write(path, b"new")
        with pytest.raises(OSError, match="too large"):
            atomic_create_all({str(tmp_path / "y"): b"new"}, keeps_existing=True)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["x"]


def test_files_that_exist_are_left_when_many_are_created(tmp_path):
    (tmp_path / "a").write_bytes(b"first")
    atomic_create_all({str(tmp_path / "a"): b"second", str(tmp_path / "below" / "b"): b"b"}, keeps_existing=True)
    assert (tmp_path / "a").read_bytes() == b"first"
    assert (tmp_path / "below" / "b").read_bytes() == b"b"
    assert sorted(os.listdir(tmp_path)) == ["a", "below"]


def test_staged_content_appears_when_the_block_succeeds(tmp_path):
    with staged(tmp_path / "file") as temporary:
        temporary.write_text("content")
        assert not (tmp_path / "file").exists()
    with staged(tmp_path / "below" / "folder") as temporary:
        temporary.mkdir()
        (temporary / "x").touch()
    assert (tmp_path / "file").read_text() == "content"
    assert os.listdir(tmp_path / "below" / "folder") == ["x"]


def test_staged_content_is_removed_when_the_block_fails(tmp_path):
    def fail(make):
        with staged(tmp_path / "target") as temporary:
            make(temporary)
            raise ZeroDivisionError

    for make in (Path.touch, Path.mkdir):
        with pytest.raises(ZeroDivisionError):
            fail(make)
    with pytest.raises(FileNotFoundError), staged(tmp_path / "target"):
        pass
    assert os.listdir(tmp_path) == []


def test_a_folder_that_another_process_made_first_is_kept_on_request(tmp_path):
    def stage(*, keeps_existing):
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


def test_errors_name_the_target_and_not_the_temporary(tmp_path):
    for write in (
        lambda path: atomic_write(path, b"new"),
        lambda path: atomic_create_all({str(path): b"new"}, keeps_existing=True),
        lambda path: write_output(path, b"new"),
    ):
        with files_limited_to(1), pytest.raises(OSError, match="too large") as caught:
            write(tmp_path / "y")
        assert caught.value.filename == str(tmp_path / "y")

    def fill_a_folder():
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


def test_an_output_keeps_its_link(tmp_path):
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")
    write_output(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"
    with pytest.raises(IsADirectoryError):
        write_output(tmp_path, b"new")
    assert sorted(os.listdir(tmp_path)) == ["link", "real"]


def test_an_output_may_be_a_device_or_a_pipe(tmp_path):
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


def test_either_all_files_are_created_or_none(tmp_path):
    (tmp_path / "c").write_bytes(b"first")
    with pytest.raises(FileExistsError) as caught:
        atomic_create_all({str(tmp_path / name): b"second" for name in "abcd"}, keeps_existing=False)
    assert caught.value.filename == str(tmp_path / "c")
    assert os.listdir(tmp_path) == ["c"]
    assert (tmp_path / "c").read_bytes() == b"first"


def test_errors_with_a_text_of_their_own_keep_it():
    error = DataSetNotFound("/x")
    assert explain_os_error(error) == str(error)
    assert explain_os_error(OSError(28, "No space left on device", b"/x")).startswith("/x: the disk is full (No space")
    assert explain_os_error(OSError(5, "Input/output error", 3)) == "Input/output error"
