"""Atomic publication of files and folders, for all packages.

Content is written under a temporary name beside the target and renamed, so that a reader sees the
old content or the new, never a part, and a killed writer leaves only a hidden temporary.
`atomic_write` and `atomic_create_all` write bytes; `staged` is for content that another program or
several steps produce; `write_output` is for files that a user names. Their errors name the target.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from .folder_walk import remove_tree, walk

_TEMPORARY = re.compile(r"\.[0-9a-f]{32}\.tmp")
BINARY = getattr(os, "O_BINARY", 0)
"""A flag for `os.open`: Windows translates newlines without it."""
_RENAME_WAITS_SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0) if sys.platform == "win32" else ()
"""Waits before a rename is tried again: Windows refuses to replace a file while a reader has it open."""


def temporary_path(folder: str | os.PathLike[str]) -> Path:
    """An unused hidden path in a folder, for content that is renamed or removed later."""
    return Path(folder, f".{os.urandom(16).hex()}.tmp")


def is_temporary(name: str) -> bool:
    """Whether a file or folder has a name that `temporary_path` makes."""
    return _TEMPORARY.fullmatch(name) is not None


@contextlib.contextmanager
def staged(path: str | os.PathLike[str], *, keeps_existing: bool = False) -> Iterator[Path]:
    """A temporary path at which the block makes a file or a folder; it is renamed to `path` when the block succeeds.

    If the block fails, the temporary is removed. Nothing is synced: use it for caches and reproducible output.

    Args:
        path: The target. A file is replaced; a folder only if it is empty.
        keeps_existing: Whether a rename that fails because another process made the target first is not an error.

    Raises:
        OSError: The rename failed; the target is unchanged.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_path(target.parent)
    try:
        with _naming(target, temporary):
            yield temporary
            try:
                _replace(temporary, target)
            except OSError:
                if not (keeps_existing and target.exists()):
                    raise
    finally:
        _remove(temporary)


def atomic_write(
    path: str | os.PathLike[str],
    data: bytes,
    *,
    durable: bool = False,
    exclusive: bool = False,
    mode: int | None = None,
) -> None:
    """Write a whole file.

    Args:
        path: The target; its folder is made if it does not exist.
        data: The content.
        durable: Whether content and name are on the disk when this returns.
        exclusive: Whether an existing target is an error instead of being replaced.
        mode: Permissions; None leaves them to the umask.

    Raises:
        FileExistsError: The target exists, and `exclusive` is set.
        OSError: It could not be written; the target is unchanged.
    """
    target = Path(path)
    folders = make_folders(target.parent)
    temporary = temporary_path(target.parent)
    try:
        with naming(target):
            _write_new(temporary, data, mode=mode, durable=durable)
            (_name_new if exclusive else _replace)(temporary, target)
    finally:
        _remove(temporary)
    if durable:
        sync_folders(folders)


def write_output(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file that a user named, such as a report or a picture.

    A regular file is replaced atomically and keeps its permissions. A link is followed, and a device or a pipe is
    written to, unless it belongs to another user and lies in a folder that all users share, such as ``/tmp``.

    Args:
        path: The target; its folder is made if it does not exist.
        data: The content.

    Raises:
        OSError: It could not be written; a regular file is unchanged.
    """
    target = Path(path)
    _refuse_planted(target)
    try:
        found = os.stat(target)
    except FileNotFoundError:
        found = None
    if found is not None and not stat.S_ISREG(found.st_mode):
        with naming(path), open(path, "wb", buffering=0) as stream:  # by this path: /dev/stdout may lead to a pipe
            write_all(stream.fileno(), data)
        return
    is_own = found is not None and (not hasattr(os, "geteuid") or found.st_uid == os.geteuid())
    mode = stat.S_IMODE(found.st_mode) if found is not None and is_own else None
    atomic_write(os.path.realpath(target) if target.is_symlink() else target, data, mode=mode)


def _refuse_planted(target: Path) -> None:
    """Refuse a link, pipe or device that another user may have put into a folder that all users share.

    Linux does so too where ``fs.protected_symlinks`` and ``fs.protected_fifos`` are set.
    """
    if not hasattr(os, "geteuid"):
        return
    try:
        found, folder = os.lstat(target), os.stat(target.parent)
    except OSError:
        return  # there is none, or writing tells
    is_shared = folder.st_mode & stat.S_ISVTX and folder.st_mode & stat.S_IWOTH
    is_foreign = found.st_uid not in {os.geteuid(), folder.st_uid}
    if is_shared and is_foreign and not stat.S_ISREG(found.st_mode):
        raise PermissionError(errno.EACCES, "belongs to another user, in a folder that all users share", str(target))


def atomic_create_all(contents: Mapping[str, bytes], *, keeps_existing: bool) -> None:
    """Write new files durably.

    All are written first and synced together, so that the file system commits them at once.

    Args:
        contents: By path.
        keeps_existing: Whether a file that exists is left unchanged; otherwise it is an error, and no file is made.

    Raises:
        FileExistsError: A file exists, and `keeps_existing` is not set; none was made.
        OSError: Some could not be written. With `keeps_existing`, others may have been; without it, none was made.
    """
    folders = {folder for name in contents for folder in make_folders(Path(name).parent)}
    pending: dict[str, Path] = {}
    named: list[str] = []
    try:
        for name, data in contents.items():
            if not (keeps_existing and os.path.exists(name)):
                pending[name] = temporary_path(os.path.dirname(name))
                with naming(name):
                    _write_new(pending[name], data)
        for name, temporary in pending.items():
            with naming(name):
                _sync_file(temporary)
        for name, temporary in pending.items():
            try:
                with naming(name):
                    _name_new(temporary, Path(name))
            except FileExistsError:  # another process was faster
                if not keeps_existing:
                    raise
            else:
                named.append(name)
    except BaseException:
        for name in () if keeps_existing else named:
            _remove(Path(name))
        raise
    finally:
        for temporary in pending.values():
            _remove(temporary)
    sync_folders(folders)


def make_folders(folder: Path) -> list[Path]:
    """Make a folder and those above it; returns those whose entries changed, for `sync_folders`."""
    made = [folder]
    while not made[-1].is_dir():
        made.append(made[-1].parent)
    with naming(folder):
        for path in reversed(made):  # `Path.mkdir` recurses over the parents
            path.mkdir(exist_ok=True)
    return made


def copy_file(source: str | os.PathLike[str], target: Path, *, may_link: bool) -> None:
    """Copy a file with its times and permissions; the folder of the target is made if it does not exist.

    Args:
        source: The file; a link is followed.
        target: A path that does not exist.
        may_link: Whether a hard link is made where the file system allows it: for files that are never written again.

    Raises:
        OSError: The file could not be read or written.
    """
    make_folders(target.parent)
    real = os.path.realpath(source)
    if may_link:
        with contextlib.suppress(OSError):
            os.link(real, target)
            return
    import shutil  # 3 ms that importing the package need not pay

    shutil.copy2(real, target)


def sync_folders(folders: Iterable[Path]) -> None:
    """Make the entries of folders durable, where the system can open a folder: Windows cannot."""
    for folder in folders if hasattr(os, "O_DIRECTORY") else ():
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Make a folder durable with everything in it; no link is followed."""
    folders = [folder]
    for entry in walk(folder):
        if entry.is_dir(follow_symlinks=False):
            folders.append(Path(entry.path))
        elif entry.is_file(follow_symlinks=False):
            with contextlib.suppress(PermissionError):  # a hard link to a file of another user
                _sync_file(Path(entry.path))
    sync_folders(folders)


def sync_data(descriptor: int) -> None:
    """Make the data of an open file durable; macOS and Windows have no `os.fdatasync`."""
    getattr(os, "fdatasync", os.fsync)(descriptor)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all bytes: one call writes less if it is interrupted or the disk is nearly full."""
    written = os.write(descriptor, data)
    while written < len(data):
        written += os.write(descriptor, memoryview(data)[written:])


# -- errors --------------------------------------------------------------------------------------------

_WORDS = {
    errno.ENOSPC: ("the disk is full", "free space or choose another folder"),
    errno.EROFS: ("the file system is read-only", "choose a writable folder"),
    errno.EFBIG: ("the file exceeds the limit of sizes", "raise the limit (ulimit -f) or choose another file system"),
    errno.EACCES: ("access is denied", "check owner and permissions, or choose another path"),
    errno.EPERM: ("the operation is not permitted", "check owner and permissions, or choose another path"),
    errno.EMFILE: ("too many files are open", "raise the limit (ulimit -n)"),
}
if hasattr(errno, "EDQUOT"):  # Windows has it under another number, where the errors above say the same
    _WORDS[errno.EDQUOT] = ("the quota of the disk is used up", "free space or choose another folder")


def explain_os_error(error: OSError) -> str:
    """An error of the system as a message: the path, the problem in words and the remedy.

    Classes that have a text of their own, such as `DataSetNotFound`, keep it.
    """
    if error.errno is None or type(error).__str__ is not OSError.__str__:
        return str(error)
    path = error.filename if error.filename2 is None else error.filename2
    place = f"{os.fsdecode(path)}: " if isinstance(path, str | bytes) else ""
    if error.errno not in _WORDS:
        return f"{place}{error.strerror}"
    problem, remedy = _WORDS[error.errno]
    return f"{place}{problem} ({error.strerror}); {remedy}"


def named_error(error: OSError, path: str | os.PathLike[str]) -> OSError:
    """Return an error of the system with the name of a file, and other errors unchanged."""
    return OSError(*error.args) if error.errno is None else OSError(error.errno, error.strerror, os.fspath(path))


@contextlib.contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Name a file in the `OSError` of a block: errors of descriptors name none, and others name the temporary."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise named_error(error, path) from error


@contextlib.contextmanager
def _naming(target: Path, temporary: Path) -> Iterator[None]:
    """Name the target in an error of the disk, and in one that names the temporary."""
    try:
        yield
    except OSError as error:
        paths = [str(path) for path in (error.filename, error.filename2) if path is not None]
        inside = next((path for path in reversed(paths) if path.startswith(str(temporary))), None)
        if error.errno is None or (inside is None and error.errno not in _WORDS) or (inside is None and paths):
            raise
        place = str(target) + ("" if inside is None else inside.removeprefix(str(temporary)))
        raise OSError(error.errno, error.strerror, place) from error


# -- system calls --------------------------------------------------------------------------------------


def _write_new(path: Path, data: bytes, *, mode: int | None = None, durable: bool = False) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | BINARY
    descriptor = os.open(path, flags, 0o666 if mode is None else mode)
    try:
        write_all(descriptor, data)
        if mode is not None:
            os.chmod(path, mode)  # whatever the umask
        if durable:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        sync_data(descriptor)
    finally:
        os.close(descriptor)


def _name_new(source: Path, target: Path) -> None:
    """Give a file a name that no file has.

    Where the file system has no hard links (SMB, exFAT), an empty file takes the name first, which a reader may see
    for an instant and a killed process may leave.

    Raises:
        FileExistsError: A file has the name.
    """
    try:
        os.link(source, target)
    except FileExistsError:
        raise
    except OSError:
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | BINARY, 0o666))
        try:
            _replace(source, target)
        except BaseException:
            _remove(target)
            raise


def _replace(source: Path, target: Path) -> None:
    for seconds in _RENAME_WAITS_SECONDS:
        try:
            os.replace(source, target)
        except PermissionError:
            time.sleep(seconds)
        else:
            return
    os.replace(source, target)


def _remove(path: Path) -> None:
    """Remove a temporary that may be gone; one that cannot be removed must not hide the error that led here."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        remove_tree(path)
