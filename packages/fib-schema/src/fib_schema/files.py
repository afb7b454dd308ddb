"""Files, for all packages: atomic publication, durable appends, reading of files of others, private folders of caches.

Content is written under a temporary name beside the target and renamed, so that a reader sees the old content or the
new, never a part, and a killed writer leaves only a hidden temporary. `atomic_write` and `atomic_create_all` write
bytes; `staged` is for content that another program or several steps produce; `write_output` is for files that a user
names. Their errors name the target.

A writer that appends locks its file with `flock`, ends a line that another writer left torn, writes its lines, and
syncs them before it returns. If anything fails, the file is cut back to its former size; a new one stays empty. The
system releases the lock when its process dies. A mount that refuses `flock` cannot be written to.

A cache holds code that is executed. `private_folder` makes a folder with mode 0700. It is used only if it belongs to
this user or to root, if no other user may write to it, and if no other user can put another folder in its place. A
folder of this user that others may read was published by this user on purpose, and is accepted. Members of a group that
may write to a folder above the cache are trusted: many systems give each user a group of its own.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, flock
from pathlib import Path
from typing import BinaryIO

from .errors import FibError

_ROOT = 0
_UNKNOWN = 65534
"""The owner that a user namespace shows for users outside of it."""
_READING = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def temporary_path(folder: str | os.PathLike[str]) -> Path:
    """An unused hidden path in a folder, for content that is renamed or removed later."""
    return Path(folder, f".{os.urandom(16).hex()}.tmp")


@contextlib.contextmanager
def staged(path: str | os.PathLike[str], *, keeps_existing: bool = False) -> Iterator[Path]:
    """A temporary path at which the block makes a file or a folder; it is renamed to `path` when the block succeeds.

    If the block fails, the temporary is removed. Nothing is synced: use it for caches and reproducible output.

    A file is replaced; a folder only if it is empty. With `keeps_existing`, a rename that fails because another process
    made the target first is no error.

    Raises:
        OSError: The rename failed; the target is unchanged.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_path(target.parent)
    try:
        with naming(target, temporary):
            yield temporary
            try:
                os.replace(temporary, target)
            except OSError:
                if not (keeps_existing and target.exists()):
                    raise
    finally:
        _remove(temporary)


def atomic_write(path: str | os.PathLike[str], data: bytes, *, durable: bool = False, mode: int | None = None) -> None:
    """Write a whole file, whose folder is made if it does not exist.

    Content and name of a `durable` one are on the disk when this returns. Without a mode, permissions are by the umask.

    Raises:
        OSError: It could not be written; the target is unchanged.
    """
    folders = make_folders(Path(path).parent)
    with staged(path) as temporary:
        _write_new(temporary, data, mode=mode, durable=durable)
    if durable:
        sync_paths(folders)


def write_output(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file that a user named, such as a report or a picture; its folder is made if it does not exist.

    A regular file is replaced atomically. A link is followed, and a device or a pipe is written to.

    Raises:
        OSError: It could not be written; a regular file is unchanged.
    """
    if os.path.exists(path) and not os.path.isfile(path):
        with naming(path), open(path, "wb", buffering=0) as stream:  # by this path: /dev/stdout may lead to a pipe
            write_all(stream.fileno(), data)
    else:
        atomic_write(os.path.realpath(path), data)


def atomic_create_all(contents: Mapping[str, bytes], *, keeps_existing: bool) -> None:
    """Write new files, given their contents by path, durably.

    All are written first and synced together, so that the file system commits them at once. A file that exists is left
    unchanged with `keeps_existing`; otherwise it is an error, and no file is made.

    Raises:
        FileExistsError: A file exists, and `keeps_existing` is not set; none was made.
        OSError: Some could not be written. With `keeps_existing`, others may have been; without it, none was made.
    """
    folders = {folder for name in contents for folder in make_folders(Path(name).parent)}
    wanted = [name for name in contents if not (keeps_existing and os.path.exists(name))]
    pending = {name: temporary_path(os.path.dirname(name)) for name in wanted}
    named: list[str] = []
    try:
        for name, temporary in pending.items():
            with naming(name, temporary):
                _write_new(temporary, contents[name])
        for name, temporary in pending.items():
            with naming(name, temporary):
                sync_paths([temporary])
        for name, temporary in pending.items():
            try:
                with naming(name, temporary):
                    os.link(temporary, name)
                named.append(name)
            except FileExistsError:  # another process was faster
                if not keeps_existing:
                    raise
    except BaseException:
        for name in () if keeps_existing else named:
            _remove(Path(name))
        raise
    finally:
        for temporary in pending.values():
            _remove(temporary)
    sync_paths(folders)


def make_folders(folder: Path) -> list[Path]:
    """Make a folder and those above it; returns those whose entries changed, for `sync_paths`."""
    made = [folder]
    while not made[-1].is_dir():
        made.append(made[-1].parent)
    with naming(folder):
        for path in reversed(made):
            path.mkdir(exist_ok=True)
    return made


def copy_file(source: str | os.PathLike[str], target: Path, *, may_link: bool) -> None:
    """Copy a file, which may be a link, with its times and permissions to a new path, whose folder is made.

    `may_link` allows a hard link: for files that are never written again.
    """
    make_folders(target.parent)
    real = os.path.realpath(source)
    if may_link:
        with contextlib.suppress(OSError):
            os.link(real, target)
            return
    shutil.copy2(real, target)


def sync_paths(paths: Iterable[Path]) -> None:
    """Make the contents of files and the entries of folders durable."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all bytes: one call writes less if it is interrupted or the disk is nearly full."""
    written = os.write(descriptor, data)
    while written < len(data):
        written += os.write(descriptor, memoryview(data)[written:])


# -- errors --------------------------------------------------------------------------------------------

_WORDS = {
    errno.ENOSPC: ("the disk is full", "free space or choose another folder"),
    errno.EDQUOT: ("the quota of the disk is used up", "free space or choose another folder"),
    errno.EROFS: ("the file system is read-only", "choose a writable folder"),
    errno.EFBIG: ("the file exceeds the limit of sizes", "raise the limit (ulimit -f) or choose another file system"),
    errno.EACCES: ("access is denied", "check owner and permissions, or choose another path"),
    errno.EPERM: ("the operation is not permitted", "check owner and permissions, or choose another path"),
    errno.EMFILE: ("too many files are open", "raise the limit (ulimit -n)"),
}


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


@contextlib.contextmanager
def naming(target: str | os.PathLike[str], temporary: Path | None = None) -> Iterator[None]:
    """Name the target in an `OSError` of the block that names no file, or the temporary or something below it."""
    try:
        yield
    except OSError as error:
        names = [str(name) for name in (error.filename, error.filename2) if isinstance(name, str | Path)]
        inside = [name for name in names if temporary is not None and name.startswith(str(temporary))]
        if error.errno is None or (names and not inside):
            raise
        below = inside[-1].removeprefix(str(temporary)) if inside else ""
        raise OSError(error.errno, error.strerror, os.fspath(target) + below) from error


# -- system calls --------------------------------------------------------------------------------------


def _write_new(path: Path, data: bytes, *, mode: int | None = None, durable: bool = False) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if mode is None else mode)
    try:
        write_all(descriptor, data)
        if mode is not None:
            os.chmod(path, mode)  # whatever the umask
        if durable:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    """Remove a temporary that may be gone; one that cannot be removed must not hide the error that led here."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        shutil.rmtree(path, ignore_errors=True)


# -- reading ---------------------------------------------------------------------------------------


def open_regular(path: str | os.PathLike[str], buffer_bytes: int = -1) -> BinaryIO:
    """Open a regular file, or a link to one, for reading, without waiting; `buffer_bytes` is that of `open`.

    Raises:
        OSError: There is no such file, it cannot be read, or it is of another kind; `strerror` says why.
    """
    return os.fdopen(_opened(path)[0], "rb", buffering=buffer_bytes)


def read_regular(path: str | os.PathLike[str], limit_bytes: int) -> bytes:
    """The content of a regular file. It has no buffer, because opening a data set reads thousands of files.

    Raises:
        OSError: As `open_regular`, or the file is larger than `limit_bytes`.
    """
    descriptor, size = _opened(path)
    try:
        if size > limit_bytes:
            raise OSError(errno.EFBIG, f"it has {size} bytes, and at most {limit_bytes} are read", os.fspath(path))
        data = os.read(descriptor, size)
        while len(data) < size and (part := os.read(descriptor, size - len(data))):
            data += part
        return data
    finally:
        os.close(descriptor)


def _opened(path: str | os.PathLike[str]) -> tuple[int, int]:
    """The descriptor and the size of a regular file."""
    descriptor = os.open(path, _READING)
    status = os.fstat(descriptor)
    kind = stat.S_IFMT(status.st_mode)
    if kind == stat.S_IFREG:
        return descriptor, status.st_size
    os.close(descriptor)
    raise OSError(errno.EINVAL, f"it is {_KINDS.get(kind, 'something else')}, not a regular file", os.fspath(path))


# -- private folders of caches ---------------------------------------------------------------------


class UnsafePath(FibError, PermissionError):
    """A file or folder of a cache that another user can change."""

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


def private_folder(path: str | os.PathLike[str]) -> Path:
    """Make a folder for this user alone, with those above it, unless it exists; it must not be a link.

    Returns:
        The folder without links above it: use this path, because a link can change.

    Raises:
        UnsafePath: Another user can change what is in it.
        OSError: It cannot be made.
    """
    folder = _resolved(path)
    if not os.path.lexists(folder):
        for above in reversed([one for one in folder.parents if not one.is_dir()]):
            above.mkdir(0o755, exist_ok=True)  # a umask of 0 would let others replace what is in it
        with contextlib.suppress(FileExistsError):  # another process was faster
            folder.mkdir(0o700)
            folder.chmod(0o700)  # whatever the umask and the defaults of the folder above
    _check(folder)
    return folder


def find_private_folder(path: str | os.PathLike[str]) -> Path | None:
    """The folder that `private_folder` made earlier; None if there is none.

    Raises:
        UnsafePath: Another user can change what is in it.
    """
    return private_folder(path) if os.path.lexists(_resolved(path)) else None


def read_private(path: str | os.PathLike[str]) -> bytes:
    """Read a regular file of this user or of root, in a folder of `private_folder`, that no other user may write to.

    Raises:
        UnsafePath: It is not a regular file, or another user can change it.
        OSError: It cannot be read.
    """
    try:
        descriptor = os.open(path, _READING | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _unsafe(path, "is a link") from error
        raise
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise _unsafe(path, "is not a regular file")
        _check_owner(path, found)
        return file.read()


def _resolved(path: str | os.PathLike[str]) -> Path:
    """The path with the links above it resolved."""
    absolute = Path(os.path.abspath(path))
    return Path(os.path.realpath(absolute.parent)) / absolute.name


def _check(folder: Path) -> None:
    found = os.lstat(folder)
    if stat.S_ISLNK(found.st_mode):
        raise _unsafe(folder, "is a link")
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    _check_owner(folder, found)
    for above in folder.parents:
        found = os.lstat(above)
        if not _is_trusted(found.st_uid) and not (found.st_uid == _UNKNOWN and _in_user_namespace()):
            raise _unsafe(folder, f"lies below {above}, which belongs to user {found.st_uid}")
        if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
            raise _unsafe(folder, f"lies below {above}, where every user may replace folders")


def _check_owner(path: str | os.PathLike[str], found: os.stat_result) -> None:
    if not _is_trusted(found.st_uid):
        raise _unsafe(path, f"belongs to user {found.st_uid}")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise _unsafe(path, f"may be written by other users (mode {stat.S_IMODE(found.st_mode):04o})")


def _is_trusted(uid: int) -> bool:
    return uid in (os.geteuid(), _ROOT)


def _in_user_namespace() -> bool:
    """Whether owners outside of this process's namespace are shown as one unknown user."""
    try:
        return Path("/proc/self/uid_map").read_text().split() != ["0", "0", "4294967295"]
    except OSError:
        return False


def _unsafe(path: str | os.PathLike[str], problem: str) -> UnsafePath:
    remedy = "delete it, or set FIB_CACHE_PATH to a folder of your own"
    return UnsafePath(errno.EPERM, f"{problem}; {remedy}", str(path))


# -- paths of data sets and caches -----------------------------------------------------------------


def get_fib_dataset_path() -> Path:
    """The data set's root: ``FIB_DATASET_PATH``, else ``~/.cache/flashinfer_bench/dataset``."""
    return _path_variable("FIB_DATASET_PATH", "dataset")


def get_fib_cache_path() -> Path:
    """The root of our caches: ``FIB_CACHE_PATH``, else ``~/.cache/flashinfer_bench/cache``."""
    return _path_variable("FIB_CACHE_PATH", "cache")


def _path_variable(variable: str, folder: str) -> Path:
    if value := os.environ.get(variable):
        return Path(value).expanduser().absolute()  # a subprocess may have another working directory
    return Path.home() / ".cache" / "flashinfer_bench" / folder


LOCK_TIMEOUT_SECONDS = 60.0
"""A writer holds its lock for one write and one sync; longer means that it is gone."""
_FIRST_PAUSE_SECONDS, _POLL_SECONDS = 0.0005, 0.01  # a writer holds its lock for about 0.3 ms
_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC


def append_new_lines(path: str, choose: Callable[[int], Sequence[bytes]]) -> Sequence[bytes]:
    """Append lines that are chosen under the lock, depending on what the file holds by then; returns them, durable.

    Given the file's descriptor, `choose` returns them without their newlines. File and folder need not exist. A process
    that is killed may leave lines that it never acknowledged, the last one torn, or an empty file.

    Raises:
        TimeoutError: Another process held the lock for `LOCK_TIMEOUT_SECONDS`; nothing was appended.
        OSError: Nothing was appended.
    """
    with naming(path):
        descriptor = _open(path)
        try:
            _lock(descriptor, path)
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, "is not a regular file; lines cannot be appended to it")
            if lines := choose(descriptor):
                _append(descriptor, path, status.st_size, lines)
            return lines
        finally:
            with suppress(OSError):  # such as that of a lock that was not taken
                flock(descriptor, LOCK_UN)  # a process that was forked meanwhile has the descriptor too
            os.close(descriptor)


def _open(path: str) -> int:
    """Open a file; make it, and its folder, if there is none."""
    try:
        return os.open(path, _FLAGS)
    except FileNotFoundError:
        sync_paths(make_folders(Path(path).parent))
        return os.open(path, _FLAGS | os.O_CREAT, 0o666)


def _append(descriptor: int, path: str, size: int, lines: Sequence[bytes]) -> None:
    """Write lines durably behind the last byte, or cut the file back to its size."""
    is_torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"  # the next line must not continue that one
    try:
        write_all(descriptor, b"\n" * is_torn + b"\n".join(lines) + b"\n")
        getattr(os, "fdatasync", os.fsync)(descriptor)  # macOS has no fdatasync
        if not size:  # the file may be new
            sync_paths([Path(os.path.realpath(path)).parent])
    except BaseException:
        with suppress(OSError):  # must not hide the error that led here
            os.ftruncate(descriptor, size)
        raise


def _lock(descriptor: int, path: str) -> None:
    """Take the exclusive lock of an open file."""
    pause, end = _FIRST_PAUSE_SECONDS, time.monotonic() + LOCK_TIMEOUT_SECONDS
    while True:
        try:
            return flock(descriptor, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                text = f"has been locked for {LOCK_TIMEOUT_SECONDS:g} s by another process, which lslocks names; end it"
                raise TimeoutError(errno.ETIMEDOUT, text, path) from None
            time.sleep(pause)
            pause = min(2 * pause, _POLL_SECONDS)
