"""System calls and facts that Python's ``os`` lacks: process attributes, capabilities, namespaces, free memory."""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from collections.abc import Sequence
from pathlib import Path

LIBC = ctypes.CDLL(None, use_errno=True)

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_KEEPCAPS = 8
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_RAISE = 2
_PR_CAP_AMBIENT_CLEAR_ALL = 4

_MS_NOSUID, _MS_NODEV, _MS_REC, _MS_PRIVATE = 0x2, 0x4, 0x4000, 0x40000

CAP_CHOWN, CAP_DAC_READ_SEARCH, CAP_SETGID, CAP_SETUID, CAP_SYS_ADMIN = 0, 2, 6, 7, 21
_CAPABILITY_VERSION = 0x20080522
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 0x1

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET, CLONE_NEWCGROUP = (
    0x00020000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000, 0x02000000,
)  # fmt: skip


def checked(result: int, what: str) -> int:
    """The result of a system call; `OSError` if it failed."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def prctl(option: int, value: int, more: int = 0) -> None:
    """Change an attribute of the process."""
    checked(LIBC.prctl(option, *(ctypes.c_ulong(number) for number in (value, more, 0, 0))), f"prctl({option})")


def protect_memory() -> None:
    """Keep other processes of the same user from reading this one's memory, environment and descriptors.

    For the judge and the fork server: it holds even where a worker cannot be confined.
    """
    prctl(PR_SET_DUMPABLE, 0)


def free_memory_bytes() -> int:
    """The memory that new allocations can have without swapping: free pages, and caches that can be dropped."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("MemAvailable:"))) << 10


def has_capability(number: int) -> bool:
    """Whether the process has a capability, in force or to be put in force."""
    lines = Path("/proc/self/status").read_text().splitlines()
    permitted = int(next(line.split()[1] for line in lines if line.startswith("CapPrm:")), 16)
    return bool(permitted >> number & 1)


def keep_capabilities(kept: Sequence[int]) -> None:
    """Drop all capabilities but these, which programs that are started inherit."""
    bits = sum(1 << number for number in kept)
    low, high = bits & 0xFFFFFFFF, bits >> 32
    header = struct.pack("Ii", _CAPABILITY_VERSION, 0)
    checked(LIBC.capset(header, struct.pack("6I", low, low, low, high, high, high)), "capset")
    prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    for number in kept:
        prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, number)


def enter_namespaces(flags: int) -> None:
    """Leave namespaces for new ones, or fail half way. In a new user namespace the user stays what it is."""
    uid, gid = os.geteuid(), os.getegid()
    checked(LIBC.unshare(flags), "unshare")
    if flags & CLONE_NEWUSER:
        own = Path("/proc/self")
        (own / "setgroups").write_text("deny")
        (own / "uid_map").write_text(f"{uid} {uid} 1")
        (own / "gid_map").write_text(f"{gid} {gid} 1")


def enable_loopback() -> None:
    """Switch the loopback device of this network namespace on."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        fcntl.ioctl(one, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))


def mount_empty_memory(folder: str) -> None:
    """Mount an empty file system in memory over a folder, for this process and its children only."""
    checked(LIBC.unshare(CLONE_NEWNS), "unshare")
    checked(LIBC.mount(b"none", b"/", None, ctypes.c_ulong(_MS_REC | _MS_PRIVATE), None), "mount /")
    flags = ctypes.c_ulong(_MS_NOSUID | _MS_NODEV)
    checked(LIBC.mount(b"tmpfs", folder.encode(), b"tmpfs", flags, b"mode=1777"), f"mount {folder}")
