"""What a worker may do: measures that it takes on itself before anything of a solution is there.

Each measure stops some `Threat`s, or says why it is not possible here; nothing is given up because
one of them is missing. What holds is the worker's `Isolation`, and its `Level` stands in every trace.

No measure may break an honest solution, one that compiles, forks helpers, uses threads, temporary
files and the device. Whether a measure suits CUDA is decided by what the driver does: it listens on
an abstract socket named by network and process namespace, hands memory to processes of the same
user only, writes the names of its threads below ``/proc/self/task``, and reserves address space
far beyond any memory.
"""

from __future__ import annotations

import errno
import hashlib
import os
import resource
import shutil
import signal
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from enum import IntEnum, StrEnum
from functools import cache
from pathlib import Path

import attrs
from fib_schema import Problem

from ..errors import InvalidConfig
from . import syscalls as kernel
from .syscalls import Refusal

LIMIT_VARIABLE = "FIB_BENCH_ISOLATION"
"""The highest level to aim for, 0 to 3; without it, all that is possible."""


class Threat(StrEnum):
    """What a worker might do."""

    PRIVILEGES = "gain privileges"
    RESOURCES = "exhaust processes, memory or files"
    FILES = "read or write files of others"
    MEMORY = "read the memory of others"
    SIGNALS = "signal processes of others"
    NETWORK = "reach a network"
    SERVICES = "talk to daemons"
    KERNEL = "use rare interfaces of the kernel"


class Level(IntEnum):
    """How far a worker is isolated: each level stops what those below it stop, and more."""

    NONE = 0
    PROCESS = 1
    CONFINED = 2
    SANDBOXED = 3


_NEEDS: Mapping[Level, frozenset[Threat]] = {
    Level.PROCESS: frozenset({Threat.PRIVILEGES, Threat.RESOURCES}),
    Level.CONFINED: frozenset({Threat.FILES, Threat.MEMORY}),
    Level.SANDBOXED: frozenset({Threat.SIGNALS, Threat.NETWORK, Threat.SERVICES, Threat.KERNEL}),
}


class NotPossible(Exception):
    """A measure cannot be taken here; the text says why."""


@attrs.frozen
class Isolation:
    """What holds for a worker.

    Args:
        held: The measures that were taken, with what they stop.
        missing: Those that were not possible, with the reasons.
    """

    held: Mapping[str, frozenset[Threat]]
    missing: Mapping[str, str]

    @property
    def stopped(self) -> frozenset[Threat]:
        """Everything that is stopped."""
        return frozenset[Threat]().union(*self.held.values())

    @property
    def level(self) -> Level:
        """The highest level of which everything is stopped, and everything of those below it."""
        reached = Level.NONE
        for level, needs in _NEEDS.items():
            if not needs <= self.stopped:
                break
            reached = level
        return reached

    def to_extra(self) -> dict[str, object]:
        """What a trace says."""
        return {"level": int(self.level), "name": self.level.name.lower(), "measures": list(self.held)}

    def explain(self) -> str:
        """A line for the level and one for each measure."""
        lines = [f"level {int(self.level)}: {self.level.name.lower()}"]
        lines += [f"  {name}: stops it from trying to {_listed(threats)}" for name, threats in self.held.items()]
        lines += [f"  {name}: not possible: {reason}" for name, reason in self.missing.items()]
        return "\n".join(lines)


@attrs.frozen
class Premises:
    """What is the same for all workers of a server.

    Args:
        device: Where they run.
        hidden: Folders that no worker may read, whatever they are in.
        limit: The highest level to aim for.
    """

    device: str
    hidden: tuple[Path, ...] = ()
    limit: Level = Level.SANDBOXED

    @property
    def is_cuda(self) -> bool:
        """Whether the measures must suit CUDA."""
        return self.device.startswith("cuda")


@attrs.frozen
class Place:
    """What one worker is given.

    Args:
        premises: What holds for all.
        name: What runs there, as a word that stays the same from run to run.
        folder: Its home and temporary folder, of the user that starts it.
        cache: The part of the build cache that is its own.
    """

    premises: Premises
    name: str
    folder: Path
    cache: Path


@attrs.define
class _Worker:
    """A worker under way to its isolation."""

    place: Place
    held: dict[str, frozenset[Threat]] = attrs.Factory(dict)
    missing: dict[str, str] = attrs.Factory(dict)


@attrs.frozen
class Measure:
    """One thing to do.

    Args:
        name: What reports call it.
        level: The lowest level that it is for.
        take: Does it, and returns what it stops.
    """

    name: str
    level: Level
    take: Callable[[_Worker], frozenset[Threat]]


def limit_from_environment() -> Level:
    """The level that `LIMIT_VARIABLE` names; all that is possible where it is not set.

    Raises:
        InvalidConfig: It names no level.
    """
    named = os.environ.get(LIMIT_VARIABLE, "").strip().lower()
    if not named:
        return Level.SANDBOXED
    for level in Level:
        if named in {str(int(level)), level.name.lower()}:
            return level
    known = ", ".join(f"{int(level)} ({level.name.lower()})" for level in Level)
    raise InvalidConfig((Problem("environment", LIMIT_VARIABLE, f"{named!r} is no level; it may be {known}"),))


def protect_memory() -> None:
    """Keep other processes of the same user from reading this one's memory, environment and descriptors.

    For the judge and the worker server: it holds even where a worker cannot be confined.
    """
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)


def prepare(premises: Premises) -> None:
    """Find out, in the process that forks workers, what would cost each of them time."""
    _readable()
    _closed_to(os.getuid())
    _closed_to(_NOBODY)
    if not premises.is_cuda:
        _can_enter(_namespaces())
    with suppress(OSError):  # each worker reports it
        _filter(premises.is_cuda)


def isolate(place: Place) -> Isolation:
    """Take every measure that is possible on this process; none can be taken back.

    It must have one thread, and must not be told anything secret before or after.
    """
    worker, parent = _Worker(place), os.getppid()
    for measure in MEASURES:
        if measure.level > place.premises.limit:
            worker.missing[measure.name] = f"{LIMIT_VARIABLE} is {int(place.premises.limit)}"
            continue
        try:
            worker.held[measure.name] = measure.take(worker)
        except (NotPossible, OSError) as error:
            worker.missing[measure.name] = str(error)
    _stay_tied_to(parent)
    return Isolation(worker.held, worker.missing)


def _stay_tied_to(parent: int) -> None:
    """End with the parent: a change of user or namespace has made the system forget that."""
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


# -- namespaces and users ----------------------------------------------------------------------

_NOBODY = -1  # a user that owns nothing
_SPARE_USERS = range(60_600, 61_184)  # neither people's nor services' nor containers', by systemd's table of users


def _own_namespaces(worker: _Worker) -> frozenset[Threat]:
    """A network without devices, no shared memory of others; for an ordinary user within a user namespace."""
    if worker.place.premises.is_cuda:
        raise NotPossible("CUDA hands memory over within one network namespace only")
    flags = _namespaces()
    is_user = bool(flags & kernel.CLONE_NEWUSER)
    if is_user and (closed := _closed_to(os.getuid())):
        raise NotPossible(f"{closed} could not be read there")
    if reason := _can_enter(flags):
        raise NotPossible(reason)
    kernel.enter_namespaces(flags)
    return frozenset({Threat.NETWORK, Threat.MEMORY} if is_user else {Threat.NETWORK})


def _namespaces() -> int:
    flags = kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC
    return flags if kernel.has_capability(kernel.CAP_SYS_ADMIN) else flags | kernel.CLONE_NEWUSER


@cache
def _can_enter(flags: int) -> str:
    """Why namespaces cannot be entered; tried in another process, for it can fail half way."""
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        try:
            kernel.prctl(kernel.PR_SET_DUMPABLE, 1)  # as a worker does
            kernel.enter_namespaces(flags)
        except OSError as error:
            os.write(write_end, str(error).encode())
        finally:
            os._exit(0)
    os.close(write_end)
    os.waitpid(pid, 0)
    with os.fdopen(read_end, "rb") as answer:
        return answer.read().decode()


def spare_user(premises: Premises, name: str) -> int:
    """A user that nobody else is, for a worker; the same for the same name.

    Raises:
        NotPossible: This process cannot become one, or could not work as one.
    """
    if premises.limit < Level.CONFINED:
        raise NotPossible(f"{LIMIT_VARIABLE} is {int(premises.limit)}")
    if premises.is_cuda:
        raise NotPossible("CUDA hands memory over among processes of one user only")
    needed = (kernel.CAP_CHOWN, kernel.CAP_SETGID, kernel.CAP_SETUID)
    if os.geteuid() != 0 or not all(map(kernel.has_capability, needed)):
        raise NotPossible("only root can become another user")
    uid = _SPARE_USERS[int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) % len(_SPARE_USERS)]
    if not _is_mapped(uid):
        raise NotPossible(f"the container has no user {uid}")
    if not (closed := _closed_to(_NOBODY)):
        return uid
    if not _has_landlock() or not kernel.has_capability(kernel.CAP_DAC_READ_SEARCH):
        raise NotPossible(f"{closed} is closed to other users")
    return uid  # with a capability to read, within what Landlock grants


def _another_user(worker: _Worker) -> frozenset[Threat]:
    """A user of its own, which owns no process and no file but the worker's."""
    place = worker.place
    uid = spare_user(place.premises, place.name)
    os.chown(place.folder, uid, uid)
    kept = _kept_capabilities(place, uid)
    kernel.prctl(kernel.PR_SET_KEEPCAPS, 1)
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    kernel.keep_capabilities(kept)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)
    return frozenset({Threat.MEMORY, Threat.SIGNALS})


def _is_mapped(uid: int) -> bool:
    ranges = [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()]
    return any(int(first) <= uid < int(first) + int(count) for first, _, count in ranges)


@cache
def _closed_to(uid: int) -> str:
    """The first of the folders that a worker must read which a user cannot read; empty if all are open."""
    return next((str(path) for path in _readable() if _is_there(path) and not _is_open_to(uid, path)), "")


def _is_there(path: Path) -> bool:
    """Whether a path leads to something for this process."""
    try:
        path.stat()
    except OSError:
        return False
    return True


def _is_open_to(uid: int, path: Path) -> bool:
    """Whether a user without groups and capabilities can read a file or folder, by the permission bits."""
    if not all(_has_bits(uid, folder, stat.S_IXOTH) for folder in path.parents):
        return False
    return _has_bits(uid, path, stat.S_IROTH | stat.S_IXOTH if path.is_dir() else stat.S_IROTH)


def _has_bits(uid: int, path: Path, bits: int) -> bool:
    found = path.stat()
    return (found.st_mode >> 6 if found.st_uid == uid else found.st_mode) & bits == bits


# -- limits ------------------------------------------------------------------------------------

_LARGEST_FILE = 16 << 30
_MOST_DESCRIPTORS = 65_536
_SHARE_OF_MEMORY = 0.8
_COUNTED_BY_NAMESPACE = (5, 14)  # since then the processes of a user namespace count apart


def most_tasks() -> int:
    """How many processes and threads a worker may have: enough for a compiler and some teams of threads per core."""
    return 512 + 32 * (os.cpu_count() or 1)


def tasks_on_machine() -> int:
    """How many processes and threads there are."""
    return int(Path("/proc/loadavg").read_text().split()[3].partition("/")[2])


def _limits(worker: _Worker) -> frozenset[Threat]:
    """No core dumps, files and descriptors bounded, and processes where the system can.

    Memory is bounded on the CPU by what is private and writable, per process. A device reserves more
    than there is: there, and for all processes together, the worker is the first that the system ends.
    """
    _bound(resource.RLIMIT_CORE, 0)
    _bound(resource.RLIMIT_FSIZE, _LARGEST_FILE)
    _bound(resource.RLIMIT_NOFILE, _MOST_DESCRIPTORS)
    _bound(resource.RLIMIT_NPROC, most_tasks() + _others(worker))
    if not worker.place.premises.is_cuda:
        _bound(resource.RLIMIT_DATA, int(_SHARE_OF_MEMORY * free_memory_bytes()))
    return frozenset({Threat.RESOURCES})


def _bound(kind: int, most: int) -> None:
    _, hard = resource.getrlimit(kind)
    value = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (value, value))


def _others(worker: _Worker) -> int:
    """How many tasks count as the worker's that are not."""
    release = tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])
    has_namespace = Threat.MEMORY in worker.held.get("own namespaces", ()) and release >= _COUNTED_BY_NAMESPACE
    return 0 if has_namespace or "another user" in worker.held else tasks_on_machine()


def free_memory_bytes() -> int:
    """The memory that new allocations can have without swapping: free pages, and caches that can be dropped."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("MemAvailable:"))) << 10


# -- files -------------------------------------------------------------------------------------

_READ = kernel.EXECUTE | kernel.READ_FILE | kernel.READ_DIR
_USE = kernel.READ_FILE | kernel.WRITE_FILE | kernel.READ_DIR | kernel.IOCTL_DEV
_OWN = (
    _READ | kernel.WRITE_FILE | kernel.REMOVE_DIR | kernel.REMOVE_FILE | kernel.MAKE_DIR | kernel.MAKE_REG
    | kernel.MAKE_SOCK | kernel.MAKE_FIFO | kernel.MAKE_SYM | kernel.REFER | kernel.TRUNCATE
)  # fmt: skip
_SHARE = _OWN & ~(kernel.EXECUTE | kernel.MAKE_SOCK | kernel.MAKE_FIFO | kernel.MAKE_SYM)

_SYSTEM = (
    "/usr", "/lib", "/lib32", "/lib64", "/libx32", "/bin", "/sbin", "/opt", "/nix/store", "/gnu/store",
    "/proc", "/sys", "/run/nvidia-persistenced",
    "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/passwd", "/etc/group", "/etc/nsswitch.conf",
    "/etc/hosts", "/etc/localtime", "/etc/os-release", "/etc/lsb-release", "/etc/debian_version",
    "/etc/alternatives", "/etc/nvidia", "/etc/OpenCL",
)  # fmt: skip
_DEVICES = ("null", "zero", "full", "random", "urandom")
_DEVICES_OF_CUDA = ("nvidia*", "nvhost*", "nvmap", "dxg")  # the others are of Tegra and WSL
_COMPILERS = ("c++", "g++", "gcc", "cc", "clang++", "clang", "nvcc")
_ABI_WITH_MOVES = 2  # before it, nothing can be moved from one folder to another, as compilers' caches do
_ABI_WITH_SCOPES = 6


def _has_landlock() -> bool:
    return kernel.landlock_abi() >= _ABI_WITH_MOVES


def _own_files(worker: _Worker) -> frozenset[Threat]:
    """Reads the system and the Python environment, writes its own folders, and sees nothing else.

    Landlock, which also keeps it off the memory of whatever is not confined as it is.
    """
    if not _has_landlock():
        raise NotPossible(f"the kernel has Landlock {kernel.landlock_abi()}, and {_ABI_WITH_MOVES} is needed")
    scopes = kernel.SCOPE_SIGNALS
    if not worker.place.premises.is_cuda:  # it takes the judge's memory over through an abstract socket
        scopes |= kernel.SCOPE_ABSTRACT_SOCKETS
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.landlock(_grants(worker.place), scopes)
    threats = {Threat.FILES, Threat.MEMORY}
    return frozenset(threats | {Threat.SIGNALS} if kernel.landlock_abi() >= _ABI_WITH_SCOPES else threats)


def _grants(place: Place) -> Iterator[tuple[Path, int]]:
    for path in _readable():
        for part in _without(path, place.premises.hidden):
            yield part, _READ
    for name in _DEVICES:
        yield Path("/dev") / name, _USE
    yield Path("/dev/shm"), _SHARE  # locks between processes
    if place.premises.is_cuda:
        for path in (path for pattern in _DEVICES_OF_CUDA for path in Path("/dev").glob(pattern)):
            yield path, _USE
    tasks = Path("/proc/self/task").resolve()  # for the names of threads
    os.open(tasks, os.O_PATH | os.O_CLOEXEC)  # stays open: the grant is for what the system holds in memory now
    yield tasks, _READ | kernel.WRITE_FILE | kernel.TRUNCATE
    yield place.folder, _OWN
    yield place.cache, _OWN


def _without(path: Path, hidden: Iterable[Path]) -> list[Path]:
    """A folder, or all that is in it but what is hidden."""
    inside = [one for one in hidden if one.is_relative_to(path)]
    if not inside:
        return [path]
    if path in inside:
        return []
    return [part for child in path.iterdir() for part in _without(child, inside)]


@cache
def _readable() -> tuple[Path, ...]:
    """The system's folders, the Python environment and the compilers: what every worker reads."""
    found = [Path(path) for path in _SYSTEM]
    for path in dict.fromkeys(_of_python() + _of_environment() + _of_compilers()):
        if _is_there(path) and not _is_home(path) and not any(path.is_relative_to(other) for other in found):
            found.append(path)
    return tuple(found)


def _is_home(path: Path) -> bool:
    """Whether a folder is or holds the user's home: who has put all of it on a path did not mean that."""
    try:
        return Path.home().is_relative_to(path)
    except RuntimeError:
        return path == Path("/")  # the user has no home


def _of_python() -> list[Path]:
    paths = [getattr(module, "__path__", ()) for module in list(sys.modules.values())]
    packages = [entry for path in paths if isinstance(path, Iterable) for entry in path]
    tops = [sys.prefix, sys.exec_prefix, sys.base_prefix, *sys.path]
    return [Path(path).resolve() for path in (*tops, *packages) if isinstance(path, str) and path]


def _of_environment() -> list[Path]:
    values = [os.environ.get(name, "") for name in ("PATH", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH")]
    return [Path(part).resolve() for value in values for part in value.split(":") if part.startswith("/")]


def _of_compilers() -> list[Path]:
    names = (*_COMPILERS, *(os.environ.get(name, "").partition(" ")[0] for name in ("CC", "CXX")))
    folders = [Path(found).resolve().parent for name in names if name and (found := shutil.which(name))]
    return [folder.parent if folder.name == "bin" else folder for folder in folders]


# -- privileges --------------------------------------------------------------------------------


def _no_privileges(worker: _Worker) -> frozenset[Threat]:
    """No capabilities, and none to be had by starting a program."""
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    is_bounded = "own files" in worker.held
    kernel.keep_capabilities(_kept_capabilities(worker.place, os.getuid()) if is_bounded else ())
    return frozenset({Threat.PRIVILEGES})


def _kept_capabilities(place: Place, uid: int) -> tuple[int, ...]:
    """One to read, where it has that, Landlock bounds it, and the environment cannot be read without."""
    able = kernel.has_capability(kernel.CAP_DAC_READ_SEARCH)
    if not able or not _has_landlock() or place.premises.limit < Level.CONFINED:
        return ()
    is_open = all(_is_open_to(uid, path) for path in (place.folder, place.cache))
    return () if is_open and not _closed_to(uid) else (kernel.CAP_DAC_READ_SEARCH,)


# -- the kernel's interfaces -------------------------------------------------------------------

_STREAM, _DATAGRAM, _RAW = 1, 2, 3  # kinds of sockets; CUDA listens on one of another kind
_NAMESPACES = (
    kernel.CLONE_NEWNS, kernel.CLONE_NEWUTS, kernel.CLONE_NEWIPC, kernel.CLONE_NEWUSER, kernel.CLONE_NEWPID,
    kernel.CLONE_NEWNET, kernel.CLONE_NEWCGROUP,
)  # fmt: skip
_AF_UNIX = 1

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
    Refusal(("clone3",), errno.ENOSYS),  # its flags cannot be looked at; callers fall back to clone
    # what has often had holes
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
    # as if no daemon were there: NVIDIA's libraries go on without theirs, but not where access is denied
    *(
        Refusal(("socket",), errno.ECONNREFUSED, argument=1, mask=0xF, value=kind)
        for kind in (_STREAM, _DATAGRAM, _RAW)
    ),
)


def _few_calls(worker: _Worker) -> frozenset[Threat]:
    """No sockets but pairs, and none of the system calls that kernels do not need: `REFUSALS`."""
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    _filter(worker.place.premises.is_cuda).load()
    return frozenset({Threat.NETWORK, Threat.SERVICES, Threat.KERNEL})


@cache
def _filter(is_cuda: bool) -> kernel.Filter:
    return kernel.Filter((*REFUSALS, *(_ONLY_SOCKETS_OF_CUDA if is_cuda else _NO_SOCKETS)))


MEASURES: tuple[Measure, ...] = (
    Measure("own namespaces", Level.CONFINED, _own_namespaces),
    Measure("another user", Level.CONFINED, _another_user),
    Measure("limits", Level.PROCESS, _limits),
    Measure("own files", Level.CONFINED, _own_files),
    Measure("no privileges", Level.PROCESS, _no_privileges),
    Measure("few calls", Level.SANDBOXED, _few_calls),
)
"""In this order: a user is changed while that is allowed, and calls are refused when no more are needed."""


def _listed(threats: Iterable[Threat]) -> str:
    return ", ".join(threat for threat in Threat if threat in threats)


def main() -> None:
    """Print what is possible on this machine, for the device that the first argument names."""
    device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    premises = Premises(device, limit=limit_from_environment())
    prepare(premises)
    with tempfile.TemporaryDirectory() as folder:
        if (pid := os.fork()) == 0:
            print(isolate(Place(premises, "trial", Path(folder), Path(folder))).explain(), flush=True)
            os._exit(0)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
