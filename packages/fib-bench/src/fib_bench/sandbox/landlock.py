"""Landlock: a worker reads the system and the Python environment, writes its own folders, and sees nothing else.

The system calls are made directly: PyPI's ``landlock`` 1.0.0.dev5 is an alpha without scopes and network rights.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

from . import syscalls as kernel
from .environment import readable_paths
from .model import Held, NotPossible, SandboxPaths, Threat

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # on every architecture
_CREATE_RULESET_VERSION = 1
_RULE_PATH_BENEATH, _RULE_NET_PORT = 1, 2

(
    EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, REMOVE_DIR, REMOVE_FILE, MAKE_CHAR, MAKE_DIR,
    MAKE_REG, MAKE_SOCK, MAKE_FIFO, MAKE_BLOCK, MAKE_SYM, REFER, TRUNCATE, IOCTL_DEV,
) = (1 << bit for bit in range(16))  # fmt: skip
_OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}  # how many of the above an ABI knows
_TCP = 0b11  # bind and connect
SCOPE_ABSTRACT_SOCKETS, SCOPE_SIGNALS = 1, 2
LOCAL_PORTS = (0, *range(49152, 49152 + 64))
"""TCP ports of profilers and sanitizers, and the one that means any, where there is no network namespace."""


@cache
def landlock_abi() -> int:
    """The Landlock ABI version of the kernel; 0 without Landlock."""
    version: int = kernel.LIBC.syscall(
        _CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint(_CREATE_RULESET_VERSION)
    )
    return max(version, 0)


def restrict(grants: Iterable[tuple[Path, int]], scopes: int, *, tcp: bool = False, ports: Iterable[int] = ()) -> None:
    """Deny this process and its children every file but those granted, and TCP where the kernel can.

    Requires no_new_privs. From ABI 6 on it also confines signals and abstract sockets, by the ``SCOPE_`` bits. Grants
    are rights to paths and what is below them; those that do not exist are left out. `tcp` leaves TCP to others; the
    ports may be used all the same.
    """
    abi = landlock_abi()
    handled = (1 << _FILE_RIGHTS[min(abi, max(_FILE_RIGHTS))]) - 1
    attributes = struct.pack("3Q", handled, _TCP if abi >= 4 and not tcp else 0, scopes if abi >= 6 else 0)
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    ruleset = kernel.checked(kernel.LIBC.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(size), 0), "landlock")
    try:
        for path, rights in grants:
            _allow(ruleset, path, rights & handled)
        for port in ports if abi >= 4 and not tcp else ():
            rule = struct.pack("=QQ", _TCP, port)
            kernel.checked(kernel.LIBC.syscall(_ADD_RULE, ruleset, _RULE_NET_PORT, rule, 0), f"landlock: port {port}")
        kernel.checked(kernel.LIBC.syscall(_RESTRICT_SELF, ruleset, 0), "landlock")
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: Path, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # the process cannot reach it anyway
    try:
        if not path.is_dir():
            rights &= _OF_FILES
        rule = struct.pack("=Qi", rights, descriptor)
        kernel.checked(kernel.LIBC.syscall(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, rule, 0), f"landlock: {path}")
    finally:
        os.close(descriptor)


_READ = EXECUTE | READ_FILE | READ_DIR
_USE = READ_FILE | WRITE_FILE | READ_DIR | IOCTL_DEV
_OWN = (
    _READ | WRITE_FILE | REMOVE_DIR | REMOVE_FILE | MAKE_DIR | MAKE_REG | MAKE_SOCK | MAKE_FIFO | MAKE_SYM
    | REFER | TRUNCATE
)  # fmt: skip
_SHARE = _OWN & ~(EXECUTE | MAKE_SOCK | MAKE_FIFO | MAKE_SYM)
_DEVICES = ("null", "zero", "full", "random", "urandom")
_DEVICES_OF_CUDA = ("nvidia*", "nvhost*", "nvmap", "dxg")  # the others are of Tegra and WSL
_ABI_WITH_MOVES = 2  # before it, files cannot be moved between folders, as compilers' caches do
_ABI_WITH_SCOPES = 6


def is_usable() -> bool:
    """Whether the kernel's Landlock is recent enough to permit the file accesses of honest workers."""
    return landlock_abi() >= _ABI_WITH_MOVES


def confine_files(paths: SandboxPaths, held: Held) -> frozenset[Threat]:
    """Grant the readable paths, the devices and the worker's own folders, and deny all other files.

    Landlock also keeps a worker off the memory of every process outside its own domain.
    """
    if not is_usable():
        raise NotPossible(f"the kernel has Landlock {landlock_abi()}, needed: {_ABI_WITH_MOVES} (Linux 5.19)")
    scopes = SCOPE_SIGNALS
    # CUDA maps the judge's memory through an abstract socket, and a profiled call speaks through one to its profiler,
    # which is outside of the call's domain; the domain of the profiler holds both and is closed.
    is_call = paths.policy.local_sockets and not paths.policy.starts_call
    if not paths.policy.shares_device_memory and not is_call:
        scopes |= SCOPE_ABSTRACT_SOCKETS
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    ports = LOCAL_PORTS if paths.policy.local_sockets else ()
    restrict(_grants(paths), scopes, tcp=bool(ports) and "namespaces" in held, ports=ports)
    threats = {Threat.FILES, Threat.MEMORY}
    return frozenset(threats | {Threat.SIGNALS} if landlock_abi() >= _ABI_WITH_SCOPES else threats)


def _grants(paths: SandboxPaths) -> Iterator[tuple[Path, int]]:
    for path in readable_paths():
        for part in without_hidden(path, paths.policy.hidden):
            yield part, _READ
    for name in _DEVICES:
        yield Path("/dev") / name, _USE
    yield Path("/dev/shm"), _SHARE  # locks between processes
    if paths.policy.is_cuda:
        for path in cuda_device_files() if paths.device_files is None else paths.device_files:
            yield path, _USE
        yield Path("/proc"), _READ  # driver and profilers have not run without it
    for path in kernel_files():
        yield path, _READ
    own = Path("/proc/self").resolve()
    keep_in_memory(own / "task")
    yield own, _READ
    yield own / "task", _READ | WRITE_FILE | TRUNCATE  # for the names of threads
    if paths.policy.starts_call:
        yield Path("/proc"), _READ | WRITE_FILE | TRUNCATE  # for the names of the call's threads
    yield paths.folder, _OWN
    yield paths.cache, _OWN


@cache
def kernel_files() -> Mapping[Path, int]:
    """The entries of ``/proc`` that belong to no process and that every user may read, with open descriptors.

    Entries of processes are not among them: every user of a machine reads command lines, which can have tokens.
    """
    found = {}
    for path in Path("/proc").iterdir():
        with suppress(OSError):  # the process cannot reach it
            if not path.name.isdigit() and not path.is_symlink() and path.stat().st_mode & stat.S_IROTH:
                found[path] = keep_in_memory(path)
    return found


def forget_kernel_files() -> None:
    """Close these descriptors in a worker: those of the fork server keep the entries in memory."""
    if kernel_files.cache_info().currsize:
        for descriptor in kernel_files().values():
            os.close(descriptor)
        kernel_files.cache_clear()


def keep_in_memory(path: Path) -> int:
    """A descriptor that keeps an entry of ``/proc`` in memory: a grant ends when the system replaces its inode."""
    return os.open(path, os.O_PATH | os.O_CLOEXEC)


def cuda_device_files() -> tuple[Path, ...]:
    """The device files of CUDA on this machine; empty in a confined process, which cannot list ``/dev``."""
    return tuple(path for pattern in _DEVICES_OF_CUDA for path in Path("/dev").glob(pattern))


def without_hidden(path: Path, hidden: Iterable[Path]) -> list[Path]:
    """A folder, or everything in it except the hidden folders."""
    inside = [one for one in hidden if one.is_relative_to(path)]
    if not inside:
        return [path]
    if path in inside:
        return []
    return [part for child in path.iterdir() for part in without_hidden(child, inside)]
