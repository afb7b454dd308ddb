"""Device lock: one run at a time measures on a physical device, among all processes and users of a machine.

A lock is an ``flock`` on a file, named by the device's UUID. The kernel releases it when the process that holds it
ends, however that happens. The holder writes into the file who it is.

`lock_of` takes two of them: first one in a folder of this user, then one in a folder that all users share. Any user can
hold the shared one for ever, or make its folder unusable, and no mechanism without a privileged daemon prevents
that. So it is waited for only so long, and a run that cannot have it says so and goes on: it then excludes
the other runs of its own user. A user who wants to disturb measurements does not need the lock for that.

It is not a `filelock.FileLock`: that one opens paths rather than entries of a checked folder, and truncates the
file on every attempt, so that a waiting run would erase the holder's note.
"""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import re
import shlex
import stat
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import msgspec
import torch
from fib_schema import Problem, get_fib_cache_path
from fib_schema.display import escape_line

from ..errors import DeviceLockHeld, InvalidConfig, UnsafeFolder
from ..shared_folder import open_folder, user_name

FOLDER_VARIABLE = "FIB_BENCH_LOCKS"
"""The only folder of locks, for containers that share a device but not ``/tmp``."""
WAIT_VARIABLE = "FIB_BENCH_LOCK_SECONDS"
"""Longest wait of a run for the lock that all users share; an hour if it is not set."""
_WAIT_SECONDS = 3600.0
_FOLDER = Path("/tmp/fib-bench-locks")
_FOR_ALL, _PRIVATE = 0o1777, 0o700
_PLANTED = {
    errno.ELOOP: "it is a link",
    errno.EISDIR: "it is a folder",
    errno.ENXIO: "it is a socket",
    errno.EACCES: "other users cannot open it",
}
"""Kinds of entries that another user can put into a shared folder."""
_POLL_SECONDS = 0.005  # a timed pass of another run takes a few milliseconds
_NOTICE_SECONDS = 1.0
_MAX_BYTES = 2_000  # of the holder's note
_MAX_LETTERS = 200  # of its command line
T = TypeVar("T")


class _Holder(msgspec.Struct):
    """The holder's note: any user can write it, so it is only shown."""

    pid: int
    user: str
    command: str
    since: str

    def __str__(self) -> str:
        return escape_line(
            f"process {self.pid} of user {self.user} (`{self.command[:_MAX_LETTERS]}`) since {self.since}"
        )


class DeviceLock:
    """The lock of one device, for one thread; a context manager.

    Args:
        path: Its file, made if it is not there.
        on_wait: Called once with a message if another run holds the lock for more than a second; by default it
            prints to the standard error.
        is_private: Whether only this user may lock it; else all users may.

    Raises:
        UnsafeFolder: Another user could replace the folder or the file.
        OSError: The file cannot be made.
    """

    def __init__(self, path: Path, on_wait: Callable[[str], None] | None = None, *, is_private: bool = False) -> None:
        self.path = path
        self._on_wait = on_wait or _print
        self._descriptor = open_lock_file(path, is_private=is_private)
        self._is_held = False

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def __del__(self) -> None:
        with suppress(AttributeError, OSError):
            os.close(self._descriptor)

    @property
    def is_held(self) -> bool:
        """Whether this object holds the lock."""
        return self._is_held

    def acquire(self, timeout_seconds: float | None = None) -> None:
        """Wait until no other run holds the lock, and take it.

        Args:
            timeout_seconds: How long to wait at most; None waits for ever.

        Raises:
            DeviceLockHeld: Another run still holds it; the message says which, and since when.
        """
        begin, has_told = time.monotonic(), False
        while not self._try():
            waited = time.monotonic() - begin
            if timeout_seconds is not None and waited >= timeout_seconds:
                raise DeviceLockHeld(str(self.path), self.holder())
            if waited >= _NOTICE_SECONDS and not has_told:
                self._on_wait(f"waiting for device lock {self.path}: held by {self.holder()}")
                has_told = True
            time.sleep(_POLL_SECONDS)
        self._is_held = True
        self._write_note()

    def release(self) -> None:
        """Release the lock if it is held."""
        if self._is_held:
            with suppress(OSError):  # a full disk; the note is a courtesy
                os.ftruncate(self._descriptor, 0)
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            self._is_held = False

    def holder(self) -> str:
        """The holder of the lock and since when it is held, as stated in the lock file."""
        try:
            return str(msgspec.json.decode(os.pread(self._descriptor, _MAX_BYTES, 0), type=_Holder))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return "a process that left no note (`fuser` shows it)"

    def _try(self) -> bool:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _write_note(self) -> None:
        since = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        note = _Holder(os.getpid(), user_name(os.geteuid()), shlex.join(sys.argv)[:_MAX_LETTERS], since)
        with suppress(OSError):  # a full disk; the note is a courtesy
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, msgspec.json.encode(note), 0)


class SharedDeviceLock:
    """The lock of one device among the runs of this user and, as far as they allow it, those of other users.

    Args:
        own: The lock that only this user can take.
        shared: The lock that all users can take; None if it is not usable.
        wait_seconds: How long to wait for the shared one.
        on_wait: Called with a message if the run goes on without the shared one.
    """

    def __init__(
        self, own: DeviceLock, shared: DeviceLock | None, wait_seconds: float, on_wait: Callable[[str], None]
    ) -> None:
        self.own = own
        self.shared = shared
        self._wait_seconds = wait_seconds
        self._left_seconds = wait_seconds
        self._on_wait = on_wait

    @property
    def is_held(self) -> bool:
        """Whether this object holds the lock among the runs of this user."""
        return self.own.is_held

    def acquire(self) -> None:
        """Wait until no other run of this user holds the lock, then, for a limited time, for those of other users."""
        self.own.acquire()
        if self.shared is None:
            return
        try:
            self.shared.acquire(self._left_seconds)
            self._left_seconds = self._wait_seconds
        except DeviceLockHeld as error:
            if self._left_seconds:
                self._on_wait(
                    f"no longer waiting for device lock {error.path} after {self._left_seconds:g} s ({WAIT_VARIABLE}): "
                    f"held by {error.holder}; this run goes on, and runs of other users may disturb it"
                )
            self._left_seconds = 0.0  # from now on it is only tried

    def release(self) -> None:
        """Release what is held."""
        if self.shared is not None:
            self.shared.release()
        self.own.release()


def lock_of(device: torch.device) -> DeviceLock | SharedDeviceLock:
    """The lock of a device, not yet held.

    Raises:
        UnsafeFolder: Another user could replace the folder that `FOLDER_VARIABLE` names, or its file.
        OSError: The file cannot be made.
    """
    name = f"{identity_of(device)}.lock"
    if folder := os.environ.get(FOLDER_VARIABLE):
        return DeviceLock(Path(folder) / name)
    own = in_own_folder(name, partial(DeviceLock, is_private=True))
    try:
        shared = DeviceLock(_FOLDER / name)
    except (UnsafeFolder, OSError) as error:
        _print(f"runs of other users on this device are not excluded: {error}")
        shared = None
    return SharedDeviceLock(own, shared, _wait_seconds(), _print)


def room_of(device: torch.device) -> DeviceLock:
    """The lock of the one judge of this user that may exceed its share of a device's memory, not yet held.

    Raises:
        UnsafeFolder: Another user could replace the folder that `FOLDER_VARIABLE` names, or its file.
        OSError: The file cannot be made.
    """
    name, on_wait = f"{identity_of(device)}.room", _ignore
    if folder := os.environ.get(FOLDER_VARIABLE):
        return DeviceLock(Path(folder) / name, on_wait)
    return in_own_folder(name, partial(DeviceLock, on_wait=on_wait, is_private=True))


def in_own_folder(name: str, make: Callable[[Path], T]) -> T:
    """Make a lock among the runs of this user; if another user has taken the folder's name, in the cache.

    The name of the machine is part of that folder, because a cache may be shared among machines.
    """
    try:
        return make(_FOLDER.with_name(f"{_FOLDER.name}-{os.geteuid()}") / name)
    except (UnsafeFolder, OSError):
        return make(get_fib_cache_path() / f"{_FOLDER.name}-{platform.node()}" / name)


def _wait_seconds() -> float:
    """The limit of `WAIT_VARIABLE`.

    Raises:
        InvalidConfig: It is not a number of seconds.
    """
    text = os.environ.get(WAIT_VARIABLE)
    if not text:
        return _WAIT_SECONDS
    with suppress(ValueError):
        if (seconds := float(text)) >= 0:
            return seconds
    raise InvalidConfig((Problem("environment", WAIT_VARIABLE, f"{text!r} is not a number of seconds"),))


def identity_of(device: torch.device) -> str:
    """The device's UUID, which no other device has; ``cpu`` for the processors of this machine."""
    if device.type == "cpu":
        return "cpu"
    return re.sub(r"[^\w-]", "", str(torch.cuda.get_device_properties(device).uuid))


def open_lock_file(path: Path, *, is_private: bool) -> int:
    """Open a file of locks, made if it is not there, in a folder whose entries other users cannot replace.

    Args:
        path: The file.
        is_private: Whether its folder excludes other users.

    Returns:
        A descriptor, which the caller closes.

    Raises:
        UnsafeFolder: Another user could replace the folder or the file.
        OSError: The file cannot be made.
    """
    folder = open_folder(path.parent, _PRIVATE if is_private else _FOR_ALL)
    try:
        return _open_entry(folder, path)
    finally:
        os.close(folder)


def _open_entry(folder: int, path: Path) -> int:
    """Open the file by name within a checked folder.

    Linux refuses ``O_CREAT`` on another user's file in a sticky folder (``fs.protected_regular``), so the file is
    made first and opened without that flag.
    """
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with suppress(FileExistsError):
        descriptor = os.open(path.name, flags | os.O_CREAT | os.O_EXCL, 0o666, dir_fd=folder)
        os.fchmod(descriptor, 0o666)  # independent of the umask
        return descriptor
    try:
        descriptor = os.open(path.name, flags, dir_fd=folder)
    except OSError as error:
        if error.errno not in _PLANTED:
            raise
        owner = user_name(os.stat(path.name, dir_fd=folder, follow_symlinks=False).st_uid)
        raise UnsafeFolder(str(path), owner, _PLANTED[error.errno]) from error
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
        os.close(descriptor)
        raise UnsafeFolder(str(path), user_name(found.st_uid), "it is not a file, or has several names")
    return descriptor


def _ignore(message: str) -> None:
    """Say nothing: waits among the judges of one run are usual."""
    del message


def _print(message: str) -> None:
    with suppress(OSError):  # a closed stderr must not end the run
        print(escape_line(message), file=sys.stderr, flush=True)
