"""Exclusive locks on files of a data set, for all packages: `flock` where it works, else lock files.

With `flock` the system releases a lock when its process dies, and nothing appears beside the file. Who may open the
file may hold it, also a user who may only read it: waiting ends after `LOCK_TIMEOUT_SECONDS` with an error that names
the holder.

Windows has no `flock`, and some mounts refuse it (Lustre without ``-o flock``, some FUSE and NFS mounts). There a lock
file ``.NAME.lock`` of `filelock` stands beside the file. What remains of the protection there:

- Writers on all hosts exclude each other, if the mount creates files exclusively (``O_EXCL``).
- The lock file of a killed process is removed by the next writer on the same host. A writer on another host cannot
  know that the process is gone: it gives up after `LOCK_TIMEOUT_SECONDS` with an error that names the lock file.
- Two hard links of one file have two lock files and do not exclude each other, nor do a host where `flock` works and
  one where it does not.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

try:
    from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, flock

    HAS_FLOCK = True
except ImportError:  # Windows
    HAS_FLOCK = False

LOCK_TIMEOUT_SECONDS = 60.0
"""A writer holds its lock for one write and one sync; longer means that it is gone."""
_FIRST_PAUSE_SECONDS, _POLL_SECONDS = 0.0005, 0.01  # a writer holds its lock for about 0.3 ms
_REFUSED = frozenset({errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
"""Errors of `flock` on a file system that does not support it."""


def lock_open_file(descriptor: int, path: str, *, waits: bool = True) -> Callable[[], object] | None:
    """Lock an open file or folder exclusively.

    Args:
        descriptor: The open file. A process that is forked later shares the lock until it is released.
        path: Its path, for a lock file where `flock` is refused.
        waits: Whether to wait for another holder.

    Returns:
        A function that releases the lock; None if another one holds it and `waits` is not set.

    Raises:
        TimeoutError: Another process does not release its lock.
        OSError: The file cannot be locked.
    """
    if HAS_FLOCK:
        try:
            has_lock = _try_flock(descriptor, path, LOCK_TIMEOUT_SECONDS if waits else 0.0)
        except OSError as error:
            if error.errno not in _REFUSED:
                raise
        else:
            return partial(flock, descriptor, LOCK_UN) if has_lock else None
    return lock_name(path, waits=waits)


def _try_flock(descriptor: int, path: str, seconds: float) -> bool:
    """Lock an open file; with 0 seconds, returns False if another process holds it.

    Raises:
        TimeoutError: Another process held it for so many seconds.
    """
    pause, end = _FIRST_PAUSE_SECONDS, 0.0
    while True:
        try:
            flock(descriptor, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            if not seconds:
                return False
            now = time.monotonic()
            end = end or now + seconds
            if now >= end:
                text = (
                    f"has been locked for {seconds:g} s by {_holder_of(descriptor)}; end that process, or keep others "
                )
                raise TimeoutError(errno.ETIMEDOUT, text + "from opening the file by its permissions", path) from None
            time.sleep(pause)
            pause = min(2 * pause, _POLL_SECONDS)
        else:
            return True


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


def lock_name(path: str, *, waits: bool = True) -> Callable[[], object] | None:
    """Lock a path, which need not exist, exclusively by a lock file; otherwise like `lock_open_file`."""
    import filelock

    target = Path(os.path.realpath(path))
    file = str(target.with_name(f".{target.name}.lock"))
    kind = filelock.SoftFileLock if HAS_FLOCK else filelock.FileLock
    lock = kind(file, timeout=LOCK_TIMEOUT_SECONDS, poll_interval=_POLL_SECONDS)
    try:
        lock.acquire(blocking=waits)
    except filelock.Timeout as error:
        if not waits:
            return None
        raise TimeoutError(errno.ETIMEDOUT, _held_text(file), file) from error
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
