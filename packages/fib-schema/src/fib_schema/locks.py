"""Exclusive locks of a data set's folders, for all packages.

An account that may only read a file can still hold its `flock`. So no data file is locked, but a
hidden file ``.lock`` in its folder, which only accounts that may write to the folder can open. It is made by the first
writer and stays. The system releases the lock when its process dies.

Windows has no `flock`, and some mounts refuse it (Lustre without ``-o flock``, some FUSE and NFS mounts). There
`filelock` makes a lock file, on such mounts ``.lock.soft``. What remains of the protection there:

- Writers on all hosts exclude each other, if the mount creates files exclusively (``O_EXCL``).
- The lock file of a killed process is removed by the next writer on the same host. A writer on another host cannot
  know that the process is gone: it gives up after `LOCK_TIMEOUT_SECONDS` with an error that names the lock file.
- A host where `flock` works and one where it does not do not exclude each other.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path

try:
    from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, flock

    HAS_FLOCK = True
except ImportError:  # Windows
    HAS_FLOCK = False

LOCK_NAME = ".lock"
"""The file in a folder whose lock writers of the folder's files hold."""
LOCK_TIMEOUT_SECONDS = 60.0
"""A writer holds its lock for one write and one sync; longer means that it is gone."""
_FIRST_PAUSE_SECONDS, _POLL_SECONDS = 0.0005, 0.01  # a writer holds its lock for about 0.3 ms
_MAKING_SECONDS = 1.0
"""For so long, another account may have made a lock file without having given it its permissions."""
_REFUSED = frozenset({errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
"""Errors of `flock` on a file system that does not support it."""


def lock_folders_of(paths: Iterable[str], name: str = LOCK_NAME) -> Callable[[], None]:
    """Lock the folders of some files exclusively.

    Folders are locked in one order for all processes, so that two of them cannot wait for each other; a folder of two
    names is locked once. A process that is forked later shares the locks until they are released.

    Args:
        paths: The files, which need not exist, in folders that do; a link among them stands for itself.
        name: The lock file's name in each of them; locks of different names are independent.

    Returns:
        A function that releases all locks.

    Raises:
        TimeoutError: Another process does not release its lock.
        OSError: A lock file cannot be made or opened, for example because this account may not write to the folder.
    """
    releases: list[Callable[[], object]] = []
    try:
        if HAS_FLOCK:
            _lock_files({path[: path.rfind("/") + 1] + name for path in paths}, releases)  # 4 us less than `dirname`
        else:
            for folder in sorted({os.path.realpath(os.path.dirname(path)) for path in paths}):
                releases.append(_lock_by_library(os.path.join(folder, name)))
    except BaseException:
        call_all(releases)
        raise
    return partial(call_all, releases)


def call_all(actions: list[Callable[[], object]]) -> None:
    """Call functions, the last one first, each also if another one fails; `ExitStack` takes 2 us."""
    while actions:
        try:
            actions.pop()()
        except BaseException:
            call_all(actions)
            raise


def _lock_files(paths: Iterable[str], releases: list[Callable[[], object]]) -> None:
    opened: list[tuple[int, str]] = []
    for path in paths:
        descriptor = _open(path)
        releases.append(partial(os.close, descriptor))
        opened.append((descriptor, path))
    if len(opened) > 1:
        opened = _in_order(opened)
    for descriptor, path in opened:
        try:
            _flock(descriptor, path)
        except OSError as error:
            if error.errno not in _REFUSED:
                raise
            releases.append(_lock_by_library(f"{path}.soft"))
        else:
            releases.append(partial(flock, descriptor, LOCK_UN))


def _in_order(opened: Iterable[tuple[int, str]]) -> list[tuple[int, str]]:
    """The lock files in the order of their inodes, each once."""
    by_identity: dict[tuple[int, int], tuple[int, str]] = {}
    for descriptor, path in opened:
        status = os.fstat(descriptor)
        by_identity.setdefault((status.st_dev, status.st_ino), (descriptor, path))
    return [by_identity[identity] for identity in sorted(by_identity)]


def _open(path: str) -> int:
    """Open a lock file; make it if there is none."""
    flags = os.O_RDWR | os.O_NOFOLLOW
    while True:
        try:
            return os.open(path, flags)
        except FileNotFoundError:
            pass
        except PermissionError:
            if not _is_being_made(path):
                raise
            time.sleep(_POLL_SECONDS)
            continue
        with suppress(FileExistsError):
            descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                _give_to_writers(descriptor, os.stat(os.path.dirname(path) or "."))
            except BaseException:
                os.close(descriptor)
                raise
            return descriptor


def _give_to_writers(descriptor: int, folder: os.stat_result) -> None:
    """Let only accounts that may write to the folder open a new lock file."""
    made = os.fstat(descriptor)
    writers = stat.S_IMODE(folder.st_mode) & 0o022
    if os.geteuid() == 0 or made.st_gid != folder.st_gid:
        try:
            os.fchown(descriptor, folder.st_uid if os.geteuid() == 0 else -1, folder.st_gid)
        except PermissionError:  # this account is not in the folder's group, so that the file has another one
            writers &= 0o002
    os.fchmod(descriptor, 0o600 | writers | writers << 1)


def _is_being_made(path: str) -> bool:
    try:
        return abs(time.time() - os.lstat(path).st_ctime) < _MAKING_SECONDS
    except FileNotFoundError:
        return True


def _flock(descriptor: int, path: str) -> None:
    """Lock an open file.

    Raises:
        TimeoutError: Another process held it for `LOCK_TIMEOUT_SECONDS`.
    """
    pause, end = _FIRST_PAUSE_SECONDS, 0.0
    while True:
        try:
            flock(descriptor, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            now = time.monotonic()
            end = end or now + LOCK_TIMEOUT_SECONDS
            if now >= end:
                text = f"has been locked for {LOCK_TIMEOUT_SECONDS:g} s by {_holder_of(descriptor)}; end that process"
                raise TimeoutError(errno.ETIMEDOUT, text, path) from None
            time.sleep(pause)
            pause = min(2 * pause, _POLL_SECONDS)
        else:
            return


def _holder_of(descriptor: int) -> str:
    """The process that holds the lock of an open file, in words."""
    status = os.fstat(descriptor)
    wanted = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    try:
        held = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
        pid = next(fields[4] for fields in held if fields[1] == "FLOCK" and fields[5] == wanted)
        owner, command = os.stat(f"/proc/{pid}").st_uid, Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except (OSError, StopIteration, IndexError):
        return "another process"
    return f"process {pid} ({command}) of user {owner}"


def _lock_by_library(path: str) -> Callable[[], object]:
    """Hold a lock file of `filelock`; returns a function that releases it."""
    import filelock

    kind = filelock.SoftFileLock if HAS_FLOCK else filelock.FileLock
    lock = kind(path, timeout=LOCK_TIMEOUT_SECONDS, poll_interval=_POLL_SECONDS)
    try:
        lock.acquire()
    except filelock.Timeout as error:
        raise TimeoutError(errno.ETIMEDOUT, _held_text(path), path) from error
    return lock.release


def _held_text(file: str) -> str:
    try:
        pid, host = Path(file).read_text(encoding="utf-8", errors="replace").split("\n")[:2]
    except (OSError, ValueError):
        pid, host = "unknown", "an unknown host"
    return (
        f"another process holds this lock file for more than {LOCK_TIMEOUT_SECONDS:.0f} s "
        f"(pid {pid} on {host}); remove it if that process has ended"
    )
