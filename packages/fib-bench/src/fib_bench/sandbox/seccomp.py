"""seccomp: filters of the system calls that workers are refused, from their start and from the seal on.

Filters are built by the system's libseccomp, called directly: its binding ``pyseccomp`` had its last
release in January 2021, and needs that library as well.

Seal: system calls that a worker loses for good once its function is warm, before it is timed.

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
from collections.abc import Iterable, Iterator
from functools import cache

import attrs

from . import syscalls as kernel
from .landlock import landlock_abi
from .model import Held, SandboxPaths, Threat

_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NOT_EQUAL, _MASKED_EQUAL = 1, 7
_ALL_THREADS, _LEAVE_MITIGATIONS = 4, 7  # SCMP_FLTATR_CTL_TSYNC, SCMP_FLTATR_CTL_SSB


class _Comparison(ctypes.Structure):
    _fields_ = (("arg", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64))


@attrs.frozen
class Refusal:
    """System calls that a filter refuses.

    Args:
        calls: Their names; names that libseccomp does not know are left out.
        number: The ``errno`` that they fail with.
        argument: The argument that decides, counted from 0; None refuses them whatever the arguments.
        mask: Refuse if the argument's bits under this mask equal `value`. Without a mask, refuse if the
            argument differs from `value`.
        value: The value to compare with.
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
    """A seccomp filter that allows everything but some refusals; built once, loaded after forks.

    With `all_threads` it applies to every thread of the process (``SECCOMP_FILTER_FLAG_TSYNC``), else only to the
    calling thread and to threads that it starts. `OSError` if libseccomp is missing or cannot make it.
    """

    def __init__(self, refusals: Iterable[Refusal], *, all_threads: bool = False) -> None:
        self._library = _libseccomp()
        self._context = self._library.seccomp_init(_ALLOW)
        if not self._context:
            raise OSError("libseccomp makes no filter")
        self._library.seccomp_attr_set(self._context, _LEAVE_MITIGATIONS, 1)  # else old kernels slow the process down
        self._library.seccomp_attr_set(self._context, _ALL_THREADS, int(all_threads))
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
        """Install the filter for this process and its children; it cannot be removed. Requires no_new_privs."""
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


_STREAM, _DATAGRAM, _RAW, _PACKET = 1, 2, 3, 10  # kinds of sockets; CUDA listens on one of another kind
_NAMESPACES = (
    kernel.CLONE_NEWNS, kernel.CLONE_NEWUTS, kernel.CLONE_NEWIPC, kernel.CLONE_NEWUSER, kernel.CLONE_NEWPID,
    kernel.CLONE_NEWNET, kernel.CLONE_NEWCGROUP,
)  # fmt: skip
_AF_UNIX = 1
_INTERNET = (2, 10)  # AF_INET, AF_INET6
_ABI_WITH_PORTS = 4
_RARE_FAMILIES = (16, 17, 38, 40)  # AF_NETLINK, AF_PACKET, AF_ALG, AF_VSOCK

REFUSALS: tuple[Refusal, ...] = (
    # other processes
    Refusal(("ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "kcmp", "pidfd_getfd")),
    Refusal(("prlimit64", "sched_setparam", "sched_setscheduler", "sched_setattr"), argument=0, value=0),
    Refusal(("migrate_pages", "move_pages"), argument=0, value=0),
    Refusal(("setpriority", "ioprio_set"), argument=1, value=0),
    # namespaces and mounts
    Refusal(("unshare", "setns", "mount", "umount2", "pivot_root", "chroot", "open_tree", "move_mount", "fsopen")),
    Refusal(("fsconfig", "fsmount", "fspick", "mount_setattr", "open_by_handle_at", "quotactl", "quotactl_fd")),
    *(Refusal(("clone",), argument=0, mask=flag, value=flag) for flag in _NAMESPACES),
    Refusal(("clone3",), errno.ENOSYS),  # a filter cannot read its flags; callers fall back to clone
    # interfaces with a history of vulnerabilities
    Refusal(("bpf", "perf_event_open", "userfaultfd", "fanotify_init", "lookup_dcookie", "syslog")),
    Refusal(("io_uring_setup", "io_uring_enter", "io_uring_register")),
    Refusal(("keyctl", "add_key", "request_key")),
    Refusal(("shmget", "semget", "msgget", "mq_open"), errno.EACCES),
    # the machine
    Refusal(("kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module", "reboot", "acct")),
    Refusal(("swapon", "swapoff", "settimeofday", "clock_settime", "clock_adjtime", "adjtimex", "iopl", "ioperm")),
    Refusal(("sethostname", "setdomainname", "vhangup")),
)
_NO_SOCKETS = (Refusal(("socket",), errno.EACCES),)
_ONLY_SOCKETS_OF_CUDA = (
    Refusal(("socket",), errno.EACCES, argument=0, value=_AF_UNIX),
    # as if no daemon were there: NVIDIA's libraries continue without theirs, but fail where access is denied
    *(
        Refusal(("socket",), errno.ECONNREFUSED, argument=1, mask=0xF, value=kind)
        for kind in (_STREAM, _DATAGRAM, _RAW)
    ),
)


_ONLY_LOCAL_SOCKETS = (
    *(Refusal(("socket",), errno.EACCES, argument=1, mask=0xF, value=kind) for kind in (_RAW, _PACKET)),
    *(Refusal(("socket",), errno.EACCES, argument=0, mask=0xFF, value=family) for family in _RARE_FAMILIES),
)


def _no_internet(abi: int) -> Iterator[Refusal]:
    """Refusals in the machine's own network: all but TCP, whose ports Landlock bounds, or that, too."""
    for family in _INTERNET:
        if abi < _ABI_WITH_PORTS:
            yield Refusal(("socket",), errno.EACCES, argument=0, mask=0xFF, value=family)
    if abi >= _ABI_WITH_PORTS:
        yield Refusal(("socket",), errno.EACCES, argument=1, mask=0xF, value=_DATAGRAM)


def refuse_calls(paths: SandboxPaths, held: Held) -> frozenset[Threat]:
    """Refuse all sockets but pairs, and the system calls that no kernel needs: `REFUSALS`."""
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    if paths.policy.local_sockets:
        is_enclosed = "namespaces" in held
        Filter((*REFUSALS, *_ONLY_LOCAL_SOCKETS, *(() if is_enclosed else _no_internet(landlock_abi())))).load()
        return frozenset({Threat.KERNEL})
    worker_filter(paths.policy.is_cuda).load()
    return frozenset({Threat.NETWORK, Threat.SERVICES, Threat.KERNEL})


@cache
def worker_filter(is_cuda: bool) -> Filter:
    """The filter of workers; built once in the fork server."""
    return Filter((*REFUSALS, *(_ONLY_SOCKETS_OF_CUDA if is_cuda else _NO_SOCKETS)))


_PROT_EXEC, _SHM_EXEC = 4, 0o100000
_MREMAP_FIXED, _MREMAP_DONTUNMAP = 2, 4
_PR_SET_SECCOMP, _PR_SET_MM, _PR_SET_PTRACER = 22, 35, 0x59616D61

SEALED: tuple[Refusal, ...] = (
    # new threads, processes and programs
    Refusal(("clone", "fork", "vfork", "execve", "execveat", "uselib")),
    Refusal(("clone3",), errno.ENOSYS),  # libc falls back to clone, which reports EPERM to the caller
    # new executable memory
    Refusal(("mmap", "mmap2", "mprotect", "pkey_mprotect"), argument=2, mask=_PROT_EXEC, value=_PROT_EXEC),
    Refusal(("shmat",), argument=2, mask=_SHM_EXEC, value=_SHM_EXEC),
    # libc never moves memory to an address of its choice; a solution could lay its code over a library's
    *(Refusal(("mremap",), argument=3, mask=flag, value=flag) for flag in (_MREMAP_FIXED, _MREMAP_DONTUNMAP)),
    Refusal(("remap_file_pages", "modify_ldt")),
    Refusal(("personality",), argument=0, value=0xFFFFFFFF),  # READ_IMPLIES_EXEC; the value asks and sets nothing
    # writes into processes
    Refusal(("ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "pidfd_getfd")),
    # rare interfaces
    Refusal(("userfaultfd", "perf_event_open", "bpf", "memfd_secret", "kcmp")),
    Refusal(("io_uring_setup", "io_uring_enter", "io_uring_register")),
    Refusal(("unshare", "setns", "mount", "keyctl", "add_key", "request_key")),
    # further filters; the process stays readable for the judge
    Refusal(("seccomp",)),
    *(
        Refusal(("prctl",), argument=0, mask=0xFFFFFFFF, value=option)
        for option in (kernel.PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_MM, _PR_SET_PTRACER)
    ),
)


def seal_process() -> str:
    """Seal all threads of this process, for ever; needs no privileges: it sets no_new_privs.

    Returns:
        Why it is not possible, or nothing. That comes from the worker, so it is a claim:
        `outside_checks.seccomp_filters` shows from outside that every thread has one filter more than before.
    """
    try:
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        Filter(SEALED, all_threads=True).load()
    except OSError as error:
        return str(error)
    return ""
