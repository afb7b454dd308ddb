"""Folders of caches belong to one user; what another one could change is refused."""

import os

import pytest
from fib_schema.files import UnsafePath, find_private_folder, private_folder, read_private

pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="needs POSIX permissions")
needs_root = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give files away")
OTHER = 12_345


def mode_of(path):
    return path.stat().st_mode & 0o7777


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_a_new_folder_is_private_whatever_the_umask(tmp_path, umask):
    before = os.umask(umask)
    try:
        folder = private_folder(tmp_path / "cache")
    finally:
        os.umask(before)

    assert mode_of(folder) == 0o700


def test_the_mode_of_an_existing_folder_is_kept(tmp_path):
    for mode in (0o700, 0o750, 0o755, 0o500):
        (tmp_path / f"{mode:o}").mkdir()
        (tmp_path / f"{mode:o}").chmod(mode)
        assert mode_of(private_folder(tmp_path / f"{mode:o}")) == mode


def test_a_missing_folder_is_not_made_by_a_search(tmp_path):
    assert find_private_folder(tmp_path / "cache") is None
    assert not (tmp_path / "cache").exists()
    assert find_private_folder(private_folder(tmp_path / "cache")) == tmp_path / "cache"


def test_links_above_are_resolved_and_the_folder_is_none(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert private_folder(tmp_path / "link" / "cache") == tmp_path / "real" / "cache"

    (tmp_path / "cache").symlink_to(tmp_path / "real")
    for find in (private_folder, find_private_folder):
        with pytest.raises(UnsafePath, match="cache: is a link; delete it, or set FIB_CACHE_PATH"):
            find(tmp_path / "cache")


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702, 0o1777])
def test_a_folder_that_others_may_write_is_refused(tmp_path, mode):
    private_folder(tmp_path / "cache").chmod(mode)

    with pytest.raises(UnsafePath, match=f"may be written by other users \\(mode {mode:04o}\\)"):
        private_folder(tmp_path / "cache")


def test_a_file_in_place_of_the_folder_is_an_error(tmp_path):
    (tmp_path / "cache").touch()

    with pytest.raises(NotADirectoryError):
        private_folder(tmp_path / "cache")


def test_a_file_is_read(tmp_path):
    (tmp_path / "file").write_bytes(b"data")

    assert read_private(tmp_path / "file") == b"data"
    with pytest.raises(FileNotFoundError):
        read_private(tmp_path / "none")


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "writable"])
def test_what_is_no_private_file_is_refused_at_once(tmp_path, kind):
    path = tmp_path / "file"
    match kind:
        case "link":
            path.symlink_to(__file__)
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "writable":
            path.touch()
            path.chmod(0o666)

    with pytest.raises(OSError, match=r"is a link|regular file|other users|Is a directory"):
        read_private(path)


@needs_root
def test_what_belongs_to_another_user_is_refused(tmp_path):
    folder = private_folder(tmp_path / "above" / "cache")
    (folder / "file").touch()
    for path in (folder / "file", folder, folder.parent):
        os.chown(path, OTHER, OTHER)
        with pytest.raises(UnsafePath, match=f"belongs to user {OTHER}"):
            read_private(path) if path.is_file() else private_folder(folder)
        os.chown(path, 0, 0)
