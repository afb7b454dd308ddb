"""Users and capabilities of workers: a uid that no other process has, and no privileges.

A worker's uid is reserved by a lock on a file of that name, so that concurrent workers of any judge on the
machine never share one. The fork server holds the lock until the worker and all its children have ended: the
worker sends the locked descriptor over a socket pair, and the server leaves the message unread until then.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from fib_schema.private_files import UnsafePath, private_folder

from . import landlock
from . import syscalls as kernel
from .environment import NOBODY, is_open_to, unreadable_path
from .model import LIMIT_VARIABLE, Level, NotPossible, SandboxPaths, SandboxPolicy, SandboxState, Threat

SPARE_UIDS = range(60_600, 61_184)
"""Uids of neither people nor services nor containers, by systemd's table of users."""
_LOCK_FOLDERS = (Path("/run/fib-bench-uids"), Path("/tmp/fib-bench-uids"))  # the second where /run is read-only


def reserve_uid(policy: SandboxPolicy, name: str, channel: socket.socket) -> int:
    """Reserve a uid that no process has; usually the same one for the same name, so that caches stay usable.

    Args:
        policy: The settings of all workers.
        name: What the worker runs, as a word that stays the same from run to run.
        channel: The worker's end of a socket pair.

    Returns:
        The uid. It stays reserved until the other end of the pair is closed.

    Raises:
        NotPossible: This process cannot change its user, or could not work as another one.
    """
    require_other_user(policy)
    folder = _open_lock_folder()
    try:
        for uid in _candidates(name):
            if (descriptor := _lock(folder, uid)) is None:
                continue
            socket.send_fds(channel, [b"u"], [descriptor])
            os.close(descriptor)  # the solution must not be able to release the lock
            return uid
    finally:
        os.close(folder)
    raise NotPossible(f"all users from {SPARE_UIDS.start} to {SPARE_UIDS.stop - 1} are in use or not mapped")


def require_other_user(policy: SandboxPolicy) -> None:
    """Check that workers can become another user and still read what they need.

    Raises:
        NotPossible: They cannot.
    """
    if policy.limit < Level.CONFINED:
        raise NotPossible(f"{LIMIT_VARIABLE} is {int(policy.limit)}")
    if policy.is_cuda:
        raise NotPossible("CUDA hands memory over among processes of one user only")
    needed = (kernel.CAP_CHOWN, kernel.CAP_SETGID, kernel.CAP_SETUID)
    if os.geteuid() != 0 or not all(map(kernel.has_capability, needed)):
        raise NotPossible("only root can become another user")
    may_keep = landlock.is_usable() and kernel.has_capability(kernel.CAP_DAC_READ_SEARCH)  # within Landlock's grants
    if (closed := unreadable_path(NOBODY)) and not may_keep:
        raise NotPossible(f"{closed} is not readable for other users; make it readable for others")


def _candidates(name: str) -> Iterator[int]:
    """All mapped uids, the one that the name's digest selects first."""
    first = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8])
    ranges = [tuple(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
    for step in range(len(SPARE_UIDS)):
        uid = SPARE_UIDS[(first + step) % len(SPARE_UIDS)]
        if any(start <= uid < start + count for start, _, count in ranges):
            yield uid


def _open_lock_folder() -> int:
    reasons = []
    for folder in _LOCK_FOLDERS:
        try:
            return os.open(private_folder(folder), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (OSError, UnsafePath) as error:
            reasons.append(str(error))
    raise NotPossible(f"no folder for the locks of users: {'; '.join(reasons)}")


def _lock(folder: int, uid: int) -> int | None:
    """A descriptor that holds the lock of a uid; None if a worker holds it or a process has the uid."""
    flags = os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(f"{uid}.lock", flags, 0o600, dir_fd=folder)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    if _is_in_use(uid):  # by a process that takes no lock, or that has outlived its fork server
        os.close(descriptor)
        return None
    return descriptor


def _is_in_use(uid: int) -> bool:
    """Whether a process of this PID namespace has a uid; one system call, for any user."""
    try:
        os.getpriority(os.PRIO_USER, uid)
    except ProcessLookupError:
        return False
    return True


# -- the measures ------------------------------------------------------------------------------


def change_user(state: SandboxState) -> frozenset[Threat]:
    """Become the reserved user, which owns no process and no file but the worker's."""
    paths, uid = state.paths, state.paths.uid
    if uid is None:
        raise NotPossible(paths.why_no_uid)
    os.chown(paths.folder, uid, uid)
    kept = _kept_capabilities(paths, uid)
    kernel.prctl(kernel.PR_SET_KEEPCAPS, 1)
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    kernel.keep_capabilities(kept)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)
    return frozenset({Threat.MEMORY, Threat.SIGNALS})


def drop_privileges(state: SandboxState) -> frozenset[Threat]:
    """Drop all capabilities, and set no_new_privs so that no program grants any.

    This also keeps the device's settings (clocks, power limit, compute mode) out of reach: NVIDIA's kernel
    driver accepts changes from processes with ``CAP_SYS_ADMIN`` only, whatever their uid.
    """
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    is_bounded = "landlock" in state.held
    kernel.keep_capabilities(_kept_capabilities(state.paths, os.getuid()) if is_bounded else ())
    return frozenset({Threat.PRIVILEGES})


def _kept_capabilities(paths: SandboxPaths, uid: int) -> tuple[int, ...]:
    """The one to read files, if present, bounded by Landlock, and needed to read the environment."""
    able = kernel.has_capability(kernel.CAP_DAC_READ_SEARCH)
    if not able or not landlock.is_usable() or paths.policy.limit < Level.CONFINED:
        return ()
    is_open = all(is_open_to(uid, path) for path in (paths.folder, paths.cache))
    return () if is_open and not unreadable_path(uid) else (kernel.CAP_DAC_READ_SEARCH,)
