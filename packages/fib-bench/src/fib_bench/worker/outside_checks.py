"""Outside checks: facts about a worker that the judge reads from the kernel, without the worker's help.

Nothing here depends on code in the worker, so a solution that has taken its process over cannot forge it.

Rights. Filter counts are readable by every user (unless ``/proc`` is mounted with ``hidepid``). Mappings, descriptors
and memory need the worker's user and a dumpable worker, or CAP_SYS_PTRACE (which root in a container often lacks);
memory also needs Yama's ``ptrace_scope`` 0, or 1 with a worker that descends from the judge, as workers do. A worker
that makes itself undumpable becomes unreadable, which the seal forbids. Every function raises `NotPermitted` with the
reason where the system refuses, and `ProcessLookupError` where the process has ended.

The process tree, by the kernel's lists of children, is counted and killed by the fork server too. It reads little,
because beside hundreds of busy processes the fork server gets little of a core.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import os
import re
import signal
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
from fib_schema import EvaluationStatus, FibError

if TYPE_CHECKING:
    from .client import Worker

_CHUNK = 1 << 20
_SCHEDULED = 2  # CPUCLOCK_SCHED: the clock of a process includes its threads, also those that have ended
_CODE = re.compile(
    rb"^([0-9a-f]+)-([0-9a-f]+) (..x.) \S+ \S+ [1-9]\d* +(?!/memfd:|/dev/zero|/dev/shm/|/SYSV)(/.*)(?<! \(deleted\))$",
    re.MULTILINE,
)
"""An executable mapping of a file that still exists under this name."""
_ANONYMOUS, _SWAPPED = (re.compile(rb"^%b: +(\d+)" % name, re.MULTILINE) for name in (b"Anonymous", b"Swap"))
_ENTRY_BYTES = 8  # of a page in a page map; its last byte has the flags (kernel documentation: admin-guide/mm/pagemap)
_PRESENT, _SWAPPED_OUT, _OF_FILE = 0x80, 0x40, 0x20
_IS_COPY = bytes(bool(last & (_PRESENT | _SWAPPED_OUT)) and not last & _OF_FILE for last in range(256))
"""Table over the last byte of an entry: 1 for a page that is not of its file, in memory or swapped out."""
_LOOK_SECONDS = 0.003
_SETTLE_SECONDS = 3.0  # 0.2 s for which a pool of threads spins, where ten others want each processor
_IDLE_CORES = 0.25
_MIN_SECONDS = 0.1  # of observation before a verdict
_MOST_WAITS = 10.0


@attrs.frozen
class NotPermitted(FibError, RuntimeError):
    """The system does not let this process look into another one."""

    pid: int
    what: str
    problem: str

    def __str__(self) -> str:
        remedy = "run the judge as the worker's user, or with CAP_SYS_PTRACE"
        return f"cannot read {self.what} of process {self.pid}: {self.problem}; {remedy}"


def seccomp_filters(pid: int) -> Mapping[int, int]:
    """The number of seccomp filters of each thread of a process: the seal adds one to every thread."""
    found = {}
    with _refusals(pid, "the filters"), os.scandir(f"/proc/{pid}/task") as entries:
        for entry in entries:
            with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
                status = Path(entry.path, "status").read_bytes()
                if (match := re.search(rb"^Seccomp_filters:\t(\d+)", status, re.MULTILINE)) is None:
                    raise NotPermitted(pid, "the filters", "the kernel does not count them")
                found[int(entry.name)] = int(match[1])
    return found


def open_memory_files(pid: int) -> list[str]:
    """Descriptors of a process through which it could write over its code (``/proc/self/mem``), as sentences."""
    found = []
    with _refusals(pid, "the descriptors"), os.scandir(f"/proc/{pid}/fd") as entries:
        for entry in entries:
            with suppress(FileNotFoundError):  # closed meanwhile
                target = os.readlink(entry.path)  # noqa: PTH115 many
                if re.fullmatch(r"/proc/\d+(/task/\d+)?/mem", target):
                    found.append(f"descriptor {entry.name} is {target}")
    return found


def memory_digest(pid: int, start: int, length: int) -> str:
    """The SHA-256 digest of a range of a process's memory, such as a pointer table or read-only data."""
    digest = hashlib.sha256()
    with _refusals(pid, "the memory"), Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        while length > 0:
            part = os.pread(memory.fileno(), min(length, _CHUNK), start)
            if not part:  # the process has ended, or replaced its memory by exec
                raise ProcessLookupError(f"process {pid} has no memory at {start:#x}")
            digest.update(part)
            start, length = start + len(part), length - len(part)
    return digest.hexdigest()


def modified_text(pid: int) -> list[str]:
    """Executable mappings of files that contain pages which are not those of the file, as sentences.

    A write to a private mapping, by mprotect or through ``/proc/self/mem``, replaces a page of the file by an anonymous
    copy; such a page in executable memory is a detoured function. Private_Dirty alone is no sign: the kernel counts the
    pages of a library that was just compiled and not yet written back. Mappings that can be written are listed too.
    """
    with _refusals(pid, "the mappings"):
        try:
            found = code_by_page_map(pid)
        except (FileNotFoundError, PermissionError):  # some systems have no page maps, or close them
            found = code_by_smaps(pid)
    changed = [f"{code}: {kib} KiB differ from the file" for code, kib in found.items() if kib]
    return changed + [f"{code}: it can be written" for code, kib in found.items() if not kib and "w" in code[-4:]]


def code_by_page_map(pid: int) -> dict[str, int]:
    """KiB that are not the file's, for each mapping of code, by ``/proc/PID/pagemap``: one byte in eight counts."""
    descriptor = os.open(f"/proc/{pid}/pagemap", os.O_RDONLY | os.O_CLOEXEC)  # of this memory, even after an exec
    try:
        return {_described(code): _count_copies(descriptor, code) for code in _CODE.finditer(_mappings(pid, "maps"))}
    finally:
        os.close(descriptor)


def _count_copies(page_map: int, code: re.Match[bytes]) -> int:
    place, end = (int(code[group], 16) // mmap.PAGESIZE * _ENTRY_BYTES for group in (1, 2))
    count = 0
    while place < end:
        if not (entries := os.pread(page_map, min(end - place, _CHUNK), place)):
            raise ProcessLookupError("the process has replaced its memory")
        count += entries[_ENTRY_BYTES - 1 :: _ENTRY_BYTES].translate(_IS_COPY).count(1)
        place += len(entries)
    return count * mmap.PAGESIZE // 1024


def code_by_smaps(pid: int) -> dict[str, int]:
    """The same by ``/proc/PID/smaps``: 60 ms for a process with torch, not 4, because the kernel visits every page."""
    result = {}
    for code in _CODE.finditer(smaps := _mappings(pid, "smaps")):
        fields = (pages.search(smaps, code.end()) for pages in (_ANONYMOUS, _SWAPPED))  # each mapping has them
        result[_described(code)] = sum(int(field[1]) for field in fields if field is not None)
    return result


def _described(code: re.Match[bytes]) -> str:
    start, end, permissions, path = (group.decode("utf-8", "surrogateescape") for group in code.groups())
    return f"{path} at {int(start, 16):#x}-{int(end, 16):#x} {permissions}"


def _mappings(pid: int, name: str) -> bytes:
    """A file of mappings. It is empty for a zombie, which must not pass for a process without changed code."""
    if not (text := Path(f"/proc/{pid}/{name}").read_bytes()):
        raise ProcessLookupError(f"process {pid} has ended")
    return text


def read_short(path: str) -> bytes:
    """A file of the kernel of at most 256 bytes; ``open`` and its buffers cost several times as much."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 256)
    finally:
        os.close(descriptor)


@contextmanager
def _refusals(pid: int, what: str) -> Iterator[None]:
    """Turn the system's refusals into `NotPermitted`, and a missing process into `ProcessLookupError`."""
    try:
        yield
    except (FileNotFoundError, ProcessLookupError) as error:
        if error.errno is None:  # it has its own words
            raise
        raise ProcessLookupError(f"process {pid} has ended") from error
    except OSError as error:
        raise NotPermitted(pid, what, error.strerror or str(error)) from error


# -- process tree --------------------------------------------------------------------------------


def children() -> list[int]:
    """The children of this process."""
    return _children_of(os.getpid(), os.getpid())


def count_tasks(roots: Iterable[int]) -> int:
    """The number of threads of processes and all their descendants."""
    return sum(tasks for _, tasks in _walk(roots))


def descendants(*roots: int, without: Container[int] = ()) -> list[int]:
    """The processes below some processes, but not the given children of theirs with those below them."""
    return [pid for pid, _ in _walk(roots, without) if pid not in roots]


def cpu_seconds(pids: Iterable[int]) -> float:
    """The processor time that some processes have used so far; one that has ended counts for nothing."""
    nanoseconds = 0
    for pid in pids:
        with suppress(OSError):
            nanoseconds += time.clock_gettime_ns(~pid << 3 | _SCHEDULED)
    return nanoseconds / 1e9


def usage(pid: int, *roots: int, without: Container[int] = ()) -> tuple[float, dict[str, int]]:
    """Processor seconds of a process and `descendants`, and nanoseconds of each thread in run queues, if known."""
    pids, waited = [pid, *descendants(pid, *roots, without=without)], {}
    for each in pids:
        with suppress(OSError), os.scandir(f"/proc/{each}/task") as entries:
            for entry in entries:
                with suppress(OSError):
                    waited[entry.path] = int(read_short(f"{entry.path}/schedstat").split()[1])
    return cpu_seconds(pids), waited


def kill(roots: Callable[[], list[int]]) -> None:
    """Kill processes and all their descendants, as far as they are there now.

    They are stopped first: to kill at once would free places, below the system's limit, for processes that fork on.
    A fork under way ends when its process is killed. Roots are children of this process, asked for again and again.
    """
    stopped: set[int] = set()
    while fresh := [pid for pid, _ in _walk(roots()) if pid not in stopped]:
        _signal_all(fresh, {os.getpid(), *stopped, *fresh}, signal.SIGSTOP)
        stopped.update(fresh)
    _signal_all(stopped, {os.getpid(), *stopped}, signal.SIGKILL)


def _walk(roots: Iterable[int], without: Container[int] = ()) -> list[tuple[int, int]]:
    """Processes and all their descendants, each with the number of its threads."""
    found: list[tuple[int, int]] = []
    left = list(roots)
    while left:
        pid = left.pop()
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            with os.scandir(f"/proc/{pid}/task") as entries:
                tasks = [int(entry.name) for entry in entries]
            found.append((pid, len(tasks)))
            for task in tasks:
                left += [child for child in _children_of(pid, task) if child not in without]
    return found


def _children_of(pid: int, task: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{task}/children").read_bytes().split()]


def _signal_all(pids: Iterable[int], family: set[int], number: signal.Signals) -> None:
    """Signal processes whose parents are in the family: a number may have gone to another process meanwhile."""
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):
            handle = os.pidfd_open(pid)
            try:
                if int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1]) in family:
                    signal.pidfd_send_signal(handle, number)
            finally:
                os.close(handle)


class BackgroundActivity:
    """Observes one worker while it has nothing to do: work must end when a call returns.

    Pools of threads spin for a while after a parallel region, up to 0.2 s. So the judge first waits until the worker is
    idle and measures only then. From that moment on nothing is excused: whatever the worker and its children run while
    other functions are timed counts. Processor time, and the time that threads wait for a processor, are read from the
    kernel: other work on the machine neither adds to them nor hides them.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._seconds = self._used_seconds = 0.0
        self._since: _Usage | None = None  # when the observation began

    def begin(self) -> None:
        """Wait until the worker is idle, and observe it from then on."""
        end, cores = time.monotonic() + _SETTLE_SECONDS, math.inf
        while cores > _IDLE_CORES and time.monotonic() < end:
            cores, self._since = self._look(_LOOK_SECONDS)
        if cores > _IDLE_CORES:
            self._decide()

    def end(self) -> None:
        """Stop observing: the worker is about to get a request."""
        if self._since is not None:
            seconds, used = self._usage().since(self._since)
            self._seconds, self._used_seconds, self._since = self._seconds + seconds, self._used_seconds + used, None

    def check(self) -> None:
        """Decide, after the last reply of the worker."""
        if self._since is None:
            self.begin()
        cores, _ = self._look(_LOOK_SECONDS)
        self.end()
        if max(cores, self._cores) > _IDLE_CORES:
            self._decide()

    def _decide(self) -> None:
        """Observe once more, for long enough; that and all observations together decide."""
        self.end()
        cores, _ = self._look(_MIN_SECONDS)
        if self._seconds >= _MIN_SECONDS:
            cores = max(cores, self._cores)
        if cores > _IDLE_CORES:
            from .client import Rejected  # processes that only count and kill others load no client

            problem = f"background activity: the worker used {cores:.1f} CPU cores after its last reply"
            raise Rejected(EvaluationStatus.REWARD_HACK, f"{problem}; work must end when a call returns")

    @property
    def _cores(self) -> float:
        return self._used_seconds / max(self._seconds, _LOOK_SECONDS)

    def _look(self, seconds: float) -> tuple[float, _Usage]:
        """Cores used during some time from now on, and all use until its end."""
        before = self._usage()
        time.sleep(seconds)
        taken, used = (after := self._usage()).since(before)
        return used / taken, after

    def _usage(self) -> _Usage:
        server = self._worker.server
        found = usage(self._worker.pid, *server.processes, without=server.workers)
        return _Usage(time.monotonic(), *found)


@attrs.frozen
class _Usage:
    """The seconds that a worker and its children have run, and nanoseconds that each thread has waited to run.

    On a busy machine a thread that is always runnable gets a small share of a processor, and one that wakes up for
    microseconds may wait for much longer than it runs: waits count up to 10 times the time that it ran.
    """

    at: float
    """Seconds of the monotonic clock."""
    ran_seconds: float
    waited_ns: Mapping[str, int]

    def since(self, before: _Usage) -> tuple[float, float]:
        """The seconds, and those of use, since then. Threads count if both have them: a list may miss some."""
        waited = sum(ns - before.waited_ns.get(thread, ns) for thread, ns in self.waited_ns.items())
        ran = max(self.ran_seconds - before.ran_seconds, 0.0)
        return self.at - before.at, ran + min(max(waited / 1e9, 0.0), _MOST_WAITS * ran)
