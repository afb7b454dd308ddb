"""Seal: system calls that a worker loses for good once its function is warm, before it is timed.

After the seal no thread of the process can start threads or programs, make memory executable, move
executable memory, or write into other processes. A solution that takes the worker over can then use only
code that is mapped already, on threads that exist already; the judge lists both before the seal
(`fib_bench.worker.outside_checks`). What CUDA, Triton launches and torch need after a warm-up remains
allowed: ioctl, mmap without PROT_EXEC, munmap, futex, read, write, poll.

What a seccomp filter cannot do, because it sees numbers and no memory:

- It cannot refuse ``open("/proc/self/mem")``, through which a process writes over its own code whatever
  the page protection. Refusing every open for writing would break the CUDA driver, which opens its device
  files for each mapping. `outside_checks.modified_text` finds such writes, and
  `outside_checks.open_memory_files` finds descriptors that were opened before the seal.
- It cannot tell the pages of a library's pointer tables (GOT) from others, so ``mprotect`` without
  PROT_EXEC stays allowed: malloc needs it for the arenas of threads. `outside_checks.memory_digest`
  compares such pages.

Everything that is started or loaded later fails with ``EPERM``: a first import of an extension module, a
larger OpenMP team (libgomp aborts the process), a Triton compilation. Warm the function up before.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Mapping
from functools import cache

import attrs

from . import syscalls as kernel
from .seccomp import Filter, Refusal

_PROT_EXEC, _SHM_EXEC = 4, 0o100000
_MREMAP_FIXED, _MREMAP_DONTUNMAP = 2, 4
_PR_SET_SECCOMP, _PR_SET_MM, _PR_SET_PTRACER = 22, 35, 0x59616D61

_THREADS = "no new threads or processes"
_PROGRAMS = "no programs"
_CODE = "no new executable memory"
_MEMORY = "no writes into processes"
_KERNEL = "no rare interfaces"
_FREEZE = "no further filters, stays readable for the judge"

SEALED: Mapping[str, tuple[Refusal, ...]] = {
    _THREADS: (
        Refusal(("clone", "fork", "vfork")),
        Refusal(("clone3",), errno.ENOSYS),  # libc falls back to clone, which reports EPERM to the caller
    ),
    _PROGRAMS: (Refusal(("execve", "execveat", "uselib")),),
    _CODE: (
        Refusal(("mmap", "mmap2", "mprotect", "pkey_mprotect"), argument=2, mask=_PROT_EXEC, value=_PROT_EXEC),
        Refusal(("shmat",), argument=2, mask=_SHM_EXEC, value=_SHM_EXEC),
        # libc never moves memory to an address of its choice; a solution could lay its code over a library's
        *(Refusal(("mremap",), argument=3, mask=flag, value=flag) for flag in (_MREMAP_FIXED, _MREMAP_DONTUNMAP)),
        Refusal(("remap_file_pages", "modify_ldt")),
        Refusal(("personality",), argument=0, value=0xFFFFFFFF),  # READ_IMPLIES_EXEC; the value asks and sets nothing
    ),
    _MEMORY: (Refusal(("ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "pidfd_getfd")),),
    _KERNEL: (
        Refusal(("userfaultfd", "perf_event_open", "bpf", "memfd_secret", "kcmp")),
        Refusal(("io_uring_setup", "io_uring_enter", "io_uring_register")),
        Refusal(("unshare", "setns", "mount", "keyctl", "add_key", "request_key")),
    ),
    _FREEZE: (
        Refusal(("seccomp",)),
        *(
            Refusal(("prctl",), argument=0, mask=0xFFFFFFFF, value=option)
            for option in (kernel.PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_MM, _PR_SET_PTRACER)
        ),
    ),
}
"""The refusals of the seal, by measure."""


@attrs.frozen
class SealReport:
    """The measures of the seal that are in force.

    It comes from the worker, so it is a claim: `outside_checks.seccomp_filters` shows from outside that every
    thread has one filter more than before.

    Args:
        held: The measures that a probe of this process found in force.
        missing: The others, with the reasons.
        threads: How many threads the process has, all of which are sealed.
    """

    held: tuple[str, ...]
    missing: Mapping[str, str]
    threads: int

    @property
    def is_complete(self) -> bool:
        """Whether every measure is in force."""
        return not self.missing


def seal_process() -> SealReport:
    """Seal all threads of this process, for ever; a sealed process is only probed again.

    Needs no privileges: it sets no_new_privs. It raises nothing: a measure that is not possible is reported.
    """
    reason = "" if _is_sealed() else _install()
    missing = {name: reason or "the probe was not refused" for name in SEALED if not _PROBES[name]()}
    held = tuple(name for name in SEALED if name not in missing)
    return SealReport(held, missing, len(os.listdir("/proc/self/task")))  # noqa: PTH208 names only


def _is_sealed() -> bool:
    return all(probe() for probe in _PROBES.values())


def _install() -> str:
    """Install the filter on all threads; returns why it is not possible."""
    try:
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        _filter().load()
    except OSError as error:
        return str(error)
    return ""


@cache
def _filter() -> Filter:
    return Filter((refusal for refusals in SEALED.values() for refusal in refusals), all_threads=True)


# -- probes: calls that fail in any case, and with EPERM only where they are refused -----------


def _refuses(name: str, *arguments: int) -> bool:
    """Whether a system call of libc fails with EPERM."""
    ctypes.set_errno(0)
    result: int = getattr(kernel.LIBC, name)(*(ctypes.c_ulong(argument) for argument in arguments))
    return result == -1 and ctypes.get_errno() == errno.EPERM  # a C int, as which a pointer of -1 reads too


def _refuses_threads() -> bool:
    """CLONE_SIGHAND without CLONE_VM is invalid."""
    number = _CLONE.get(os.uname().machine)
    return number is not None and _refuses("syscall", number, 0x800, 0, 0, 0, 0)


def _refuses_programs() -> bool:
    """A program without a name is a bad address."""
    return _refuses("execve", 0, 0, 0)


def _refuses_code() -> bool:
    """A mapping of no bytes, and a protection of an odd address, are invalid."""
    return _refuses("mmap", 0, 0, _PROT_EXEC, 0x22, 2**64 - 1, 0) and _refuses("mprotect", 1, 4096, _PROT_EXEC)


def _refuses_memory() -> bool:
    """There is no process 0 to write to."""
    return _refuses("process_vm_writev", 0, 0, 0, 0, 0, 0)


def _refuses_kernel() -> bool:
    """No flags and no namespace: nothing happens where it is allowed."""
    return _refuses("unshare", 0)


def _refuses_filters() -> bool:
    """PR_SET_DUMPABLE takes 0 or 1."""
    return _refuses("prctl", kernel.PR_SET_DUMPABLE, 7, 0, 0, 0)


_CLONE = {"x86_64": 56, "aarch64": 220}
_PROBES: Mapping[str, Callable[[], bool]] = {
    _THREADS: _refuses_threads,
    _PROGRAMS: _refuses_programs,
    _CODE: _refuses_code,
    _MEMORY: _refuses_memory,
    _KERNEL: _refuses_kernel,
    _FREEZE: _refuses_filters,
}
