"""The system calls behind `isolation`, which Python does not have.

Landlock is called directly: PyPI's ``landlock`` 1.0.0.dev5 is an alpha without scopes and network rights.
seccomp filters come from the system's libseccomp, called directly too: its binding ``pyseccomp`` had its
last release in January 2021, and needs that library as well.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

import attrs

_LIBC = ctypes.CDLL(None, use_errno=True)

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_KEEPCAPS = 8
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_RAISE = 2
_PR_CAP_AMBIENT_CLEAR_ALL = 4

CAP_CHOWN, CAP_DAC_READ_SEARCH, CAP_SETGID, CAP_SETUID, CAP_SYS_ADMIN = 0, 2, 6, 7, 21
_CAPABILITY_VERSION = 0x20080522

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET, CLONE_NEWCGROUP = (
    0x00020000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000, 0x02000000,
)  # fmt: skip


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def prctl(option: int, value: int, more: int = 0) -> None:
    """Change an attribute of the process.

    Raises:
        OSError: The system refuses.
    """
    _checked(_LIBC.prctl(option, *(ctypes.c_ulong(number) for number in (value, more, 0, 0))), f"prctl({option})")


# -- capabilities and namespaces ---------------------------------------------------------------


def has_capability(number: int) -> bool:
    """Whether the process has a capability, in force or to be put in force."""
    lines = Path("/proc/self/status").read_text().splitlines()
    permitted = int(next(line.split()[1] for line in lines if line.startswith("CapPrm:")), 16)
    return bool(permitted >> number & 1)


def keep_capabilities(kept: Sequence[int]) -> None:
    """Drop all capabilities but these, which programs that are started inherit.

    Raises:
        OSError: The system refuses.
    """
    bits = sum(1 << number for number in kept)
    low, high = bits & 0xFFFFFFFF, bits >> 32
    header = struct.pack("Ii", _CAPABILITY_VERSION, 0)
    _checked(_LIBC.capset(header, struct.pack("6I", low, low, low, high, high, high)), "capset")
    prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    for number in kept:
        prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, number)


def enter_namespaces(flags: int) -> None:
    """Leave namespaces for new ones. In a new user namespace the user stays what it is.

    Raises:
        OSError: The system refuses; then the process may be left half way.
    """
    uid, gid = os.geteuid(), os.getegid()
    _checked(_LIBC.unshare(flags), "unshare")
    if flags & CLONE_NEWUSER:
        own = Path("/proc/self")
        (own / "setgroups").write_text("deny")
        (own / "uid_map").write_text(f"{uid} {uid} 1")
        (own / "gid_map").write_text(f"{gid} {gid} 1")


# -- Landlock ----------------------------------------------------------------------------------

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # on every architecture
_CREATE_RULESET_VERSION = 1
_RULE_PATH_BENEATH = 1

(
    EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, REMOVE_DIR, REMOVE_FILE, MAKE_CHAR, MAKE_DIR,
    MAKE_REG, MAKE_SOCK, MAKE_FIFO, MAKE_BLOCK, MAKE_SYM, REFER, TRUNCATE, IOCTL_DEV,
) = (1 << bit for bit in range(16))  # fmt: skip
_OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}  # how many of the above an ABI knows
_TCP = 0b11  # bind and connect
SCOPE_ABSTRACT_SOCKETS, SCOPE_SIGNALS = 1, 2


@cache
def landlock_abi() -> int:
    """The version of Landlock that the kernel offers; 0 where it offers none."""
    version: int = _LIBC.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint(_CREATE_RULESET_VERSION))
    return max(version, 0)


def landlock(grants: Iterable[tuple[Path, int]], scopes: int) -> None:
    """Refuse this process and all that it starts every file but those granted, and TCP where the kernel can.

    Needs no new privileges. Signals and abstract sockets reach nothing outside where the kernel can.

    Args:
        grants: Paths with what may be done to them and to what is below; those that do not exist are left out.
        scopes: ``SCOPE_`` bits.

    Raises:
        OSError: The system refuses.
    """
    abi = landlock_abi()
    handled = (1 << _FILE_RIGHTS[min(abi, max(_FILE_RIGHTS))]) - 1
    attributes = struct.pack("3Q", handled, _TCP if abi >= 4 else 0, scopes if abi >= 6 else 0)
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    ruleset = _checked(_LIBC.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(size), 0), "landlock")
    try:
        for path, rights in grants:
            _allow(ruleset, path, rights & handled)
        _checked(_LIBC.syscall(_RESTRICT_SELF, ruleset, 0), "landlock")
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: Path, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # what cannot be reached need not be allowed
    try:
        if not path.is_dir():
            rights &= _OF_FILES
        rule = struct.pack("=Qi", rights, descriptor)
        _checked(_LIBC.syscall(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, rule, 0), f"landlock: {path}")
    finally:
        os.close(descriptor)


# -- seccomp -----------------------------------------------------------------------------------

_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NOT_EQUAL, _MASKED_EQUAL = 1, 7
_LEAVE_MITIGATIONS = 7  # SCMP_FLTATR_CTL_SSB


class _Comparison(ctypes.Structure):
    _fields_ = (("arg", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64))


@attrs.frozen
class Refusal:
    """System calls that are refused.

    Args:
        calls: Their names; those that the library does not know are left out.
        number: What they fail with.
        argument: Only by this argument (counted from 0); None refuses them whatever the arguments.
        mask: Only if the argument's bits under this mask
        value: are these. Without a mask: only if the argument is another than this.
    """

    calls: tuple[str, ...]
    number: int = errno.EPERM
    argument: int | None = None
    mask: int | None = None
    value: int = 0

    def comparisons(self) -> list[_Comparison]:
        """The condition, as libseccomp takes it."""
        if self.argument is None:
            return []
        if self.mask is None:
            return [_Comparison(self.argument, _NOT_EQUAL, self.value, 0)]
        return [_Comparison(self.argument, _MASKED_EQUAL, self.mask, self.value)]


class Filter:
    """A seccomp filter that allows what is not refused; made once, loaded after forks.

    Raises:
        OSError: There is no libseccomp, or it cannot make the filter.
    """

    def __init__(self, refusals: Iterable[Refusal]) -> None:
        self._library = _libseccomp()
        self._context = self._library.seccomp_init(_ALLOW)
        if not self._context:
            raise OSError("libseccomp makes no filter")
        self._library.seccomp_attr_set(self._context, _LEAVE_MITIGATIONS, 1)  # else old kernels slow the process down
        for refusal in refusals:
            self._refuse(refusal)

    def _refuse(self, refusal: Refusal) -> None:
        conditions = refusal.comparisons()
        array = (_Comparison * max(len(conditions), 1))(*conditions)
        for name in refusal.calls:
            number = self._library.seccomp_syscall_resolve_name(name.encode())
            if number < 0:
                continue  # too new for the library, or of another architecture
            code = self._library.seccomp_rule_add_array(
                self._context, _ERRNO | refusal.number, number, len(conditions), array
            )
            if code < 0:
                raise OSError(-code, f"libseccomp cannot refuse {name}: {os.strerror(-code)}")

    def load(self) -> None:
        """Put it in force for this process and all that it starts, for ever. Needs no new privileges.

        Raises:
            OSError: The system refuses.
        """
        code = self._library.seccomp_load(self._context)
        if code < 0:
            raise OSError(-code, f"seccomp: {os.strerror(-code)}")


@cache
def _libseccomp() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL("libseccomp.so.2")
    except OSError as error:
        raise OSError("there is no libseccomp.so.2 (Debian: libseccomp2)") from error
    library.seccomp_init.restype = ctypes.c_void_p
    library.seccomp_init.argtypes = [ctypes.c_uint32]
    library.seccomp_attr_set.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32]
    library.seccomp_load.argtypes = [ctypes.c_void_p]
    library.seccomp_rule_add_array.argtypes = [
        ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint, ctypes.POINTER(_Comparison),
    ]  # fmt: skip
    return library
