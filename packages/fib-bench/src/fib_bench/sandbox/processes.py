"""Limits, namespaces, users and capabilities of a worker.

Limits bound files, descriptors, tasks and, on the CPU, memory. Namespaces give a network without devices and no shared
memory of others. A worker's uid is reserved by a lock on a file of that name, so that concurrent workers of any judge
on the machine never share one. The fork server holds the lock until the worker and all its children have ended: the
worker sends the locked descriptor over a socket pair, and the server leaves the message unread until then.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

from fib_schema.files import UnsafePath, private_folder

from . import landlock
from . import syscalls as kernel
from .environment import NOBODY, is_open_to, unreadable_path
from .model import LIMIT_VARIABLE, Held, Level, NotPossible, SandboxPaths, SandboxPolicy, Threat

_LARGEST_FILE = 16 << 30
_MAX_DESCRIPTORS = 65_536
_SHARE_OF_MEMORY = 0.8
_COUNTED_BY_NAMESPACE = (5, 14)  # from this kernel on, RLIMIT_NPROC counts each user namespace separately


def most_tasks() -> int:
    """The limit of processes and threads of a worker: enough for a compiler and some teams of threads per core."""
    return 512 + 32 * (os.cpu_count() or 1)


def tasks_on_machine() -> int:
    """The number of processes and threads on the machine."""
    return int(Path("/proc/loadavg").read_text().split()[3].partition("/")[2])


def limit(paths: SandboxPaths, held: Held) -> frozenset[Threat]:
    """Forbid core dumps, bound files and descriptors, and bound processes where the system can.

    On the CPU, private writable memory is bounded per process. CUDA reserves more address space than
    there is memory, so no bound is possible there; the kernel ends the worker first when memory is short.
    """
    _bound(resource.RLIMIT_CORE, 0)
    _bound(resource.RLIMIT_FSIZE, _LARGEST_FILE)
    _bound(resource.RLIMIT_NOFILE, _MAX_DESCRIPTORS)
    _bound(resource.RLIMIT_NPROC, most_tasks() + _foreign_tasks(held))
    if not paths.policy.is_cuda:
        _bound(resource.RLIMIT_DATA, int(_SHARE_OF_MEMORY * kernel.free_memory_bytes()))
    return frozenset({Threat.RESOURCES})


def _bound(kind: int, most: int) -> None:
    _, hard = resource.getrlimit(kind)
    value = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (value, value))


def _foreign_tasks(held: Held) -> int:
    """The number of tasks that the system counts as the worker's although they are not."""
    release = tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])
    has_namespace = Threat.MEMORY in held.get("namespaces", ()) and release >= _COUNTED_BY_NAMESPACE
    return 0 if has_namespace or "user" in held else tasks_on_machine()


def enter(paths: SandboxPaths, held: Held) -> frozenset[Threat]:
    """Enter new network and IPC namespaces; an ordinary user does so within a user namespace."""
    del held
    if paths.policy.shares_device_memory:
        raise NotPossible("CUDA hands memory over within one network namespace only")
    flags = wanted_namespaces()
    is_user = bool(flags & kernel.CLONE_NEWUSER)
    if is_user and (closed := unreadable_path(os.getuid())):
        raise NotPossible(f"{closed} is not readable in a user namespace; make it readable for others")
    if reason := why_not(flags):
        raise NotPossible(reason)
    kernel.enter_namespaces(flags)
    if paths.policy.local_sockets:
        kernel.enable_loopback()
    with suppress(OSError):  # no threat depends on it
        kernel.mount_empty_memory("/dev/shm")
    return frozenset({Threat.NETWORK, Threat.MEMORY} if is_user else {Threat.NETWORK})


def wanted_namespaces() -> int:
    """The ``CLONE_`` flags of the namespaces that this process would enter."""
    flags = kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC
    return flags if kernel.has_capability(kernel.CAP_SYS_ADMIN) else flags | kernel.CLONE_NEWUSER


@cache
def why_not(flags: int) -> str:
    """Reason that namespaces cannot be entered; empty if they can. A child process tries: it can fail half way."""
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        try:
            kernel.prctl(kernel.PR_SET_DUMPABLE, 1)  # as in a worker
            kernel.enter_namespaces(flags)
        except OSError as error:
            os.write(write_end, str(error).encode())
        finally:
            os._exit(0)
    os.close(write_end)
    os.waitpid(pid, 0)
    with os.fdopen(read_end, "rb") as answer:
        return answer.read().decode()


SPARE_UIDS = range(60_600, 61_184)
"""Uids of neither people nor services nor containers, by systemd's table of users."""
_LOCK_FOLDERS = (Path("/run/fib-bench-uids"), Path("/tmp/fib-bench-uids"))  # the second where /run is read-only


def reserve_uid(policy: SandboxPolicy, name: str, channel: socket.socket) -> int:
    """Reserve a uid that no process has; usually the same for the same name, so that caches stay usable.

    It stays reserved until the other end of the socket pair, to which `channel` belongs, is closed.
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
    """Check that workers can become another user and still read what they need; else `NotPossible`."""
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


def change_user(paths: SandboxPaths, held: Held) -> frozenset[Threat]:
    """Become the reserved user, which owns no process and no file but the worker's."""
    del held
    uid = paths.uid
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


def drop_privileges(paths: SandboxPaths, held: Held) -> frozenset[Threat]:
    """Drop all capabilities, and set no_new_privs so that no program grants any.

    This also keeps the device's settings (clocks, power limit, compute mode) out of reach: NVIDIA's kernel
    driver accepts changes from processes with ``CAP_SYS_ADMIN`` only, whatever their uid.
    """
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    is_bounded = "landlock" in held
    kernel.keep_capabilities(_kept_capabilities(paths, os.getuid()) if is_bounded else ())
    return frozenset({Threat.PRIVILEGES})


def _kept_capabilities(paths: SandboxPaths, uid: int) -> tuple[int, ...]:
    """The one to read files, if present, bounded by Landlock, and needed to read the environment."""
    able = kernel.has_capability(kernel.CAP_DAC_READ_SEARCH)
    if not able or not landlock.is_usable() or paths.policy.limit < Level.CONFINED:
        return ()
    is_open = all(is_open_to(uid, path) for path in (paths.folder, paths.cache))
    return () if is_open and not unreadable_path(uid) else (kernel.CAP_DAC_READ_SEARCH,)
