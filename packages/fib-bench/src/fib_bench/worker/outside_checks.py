"""Outside checks: facts about a worker that the judge reads from the kernel, without the worker's help.

Nothing here depends on code in the worker, so a solution that has taken its process over cannot forge it.

Rights. Times of threads and filter counts are readable by every user (unless ``/proc`` is mounted with
``hidepid``). Mappings, descriptors and memory need the worker's user and a dumpable worker, or
CAP_SYS_PTRACE (which root in a container often lacks); memory also needs Yama's ``ptrace_scope`` 0, or 1 with a
worker that descends from the judge, as workers do. A worker that makes itself undumpable becomes unreadable, which
the seal forbids. Every function raises `NotPermitted` with the reason where the system refuses, and
`ProcessLookupError` where the process has ended.

Costs, medians for a process with torch and Triton, 26 threads and 495 mappings, on a busy machine with 2 cores:
`ThreadClocks.read` 0.03 ms, `seccomp_filters` 0.9 ms, `mappings_of` 6 ms, `open_memory_files` 0.04 ms, `memory_digest`
1.4 ms per MiB. `modified_text` reads one byte in eight of the page map of all code, 1 ms for 520 MB; ``smaps``, which
visits every page in memory, took 8 ms of processor time and up to 57 ms. So times of threads can be read around every
pass, and text after all timing of a worker.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

import attrs
from fib_schema import FibError

_CHUNK = 1 << 20
_ANY_FILE = re.compile(r"(/memfd:|/dev/zero|/dev/shm/|/SYSV|anon_inode:)")
_EXECUTABLE = re.compile(rb"^[0-9a-f]+-[0-9a-f]+ ..x.*$", re.MULTILINE)
_ANONYMOUS, _SWAPPED = (re.compile(rb"^%b: +(\d+)" % name, re.MULTILINE) for name in (b"Anonymous", b"Swap"))
_ENTRY_BYTES = 8  # of a page in a page map; its last byte has the flags (kernel documentation: admin-guide/mm/pagemap)
_PRESENT, _SWAPPED_OUT, _OF_FILE = 0x80, 0x40, 0x20
_IS_COPY = bytes(bool(last & (_PRESENT | _SWAPPED_OUT)) and not last & _OF_FILE for last in range(256))
"""Table over the last byte of an entry: 1 for a page that is not of its file, in memory or swapped out."""


@attrs.frozen
class NotPermitted(FibError, RuntimeError):
    """The system does not let this process look into another one."""

    pid: int
    what: str
    problem: str

    def __str__(self) -> str:
        remedy = "run the judge as the worker's user, or with CAP_SYS_PTRACE"
        return f"cannot read {self.what} of process {self.pid}: {self.problem}; {remedy}"


@attrs.frozen
class ThreadActivity:
    """Activity of threads between two readings of `ThreadClocks`.

    Args:
        ran: Nanoseconds on a processor, by thread that existed before and ran.
        started: The same for threads that did not exist before.
        ended: Threads that existed before only.
    """

    ran: Mapping[int, int]
    started: Mapping[int, int]
    ended: tuple[int, ...]

    def without(self, *allowed: int) -> ThreadActivity:
        """The activity of all threads but these, such as the main thread."""
        ran = {thread: time for thread, time in self.ran.items() if thread not in allowed}
        return attrs.evolve(self, ran=ran)

    def __str__(self) -> str:
        parts = [f"thread {thread} ran for {time / 1e3:.1f} us" for thread, time in self.ran.items()]
        parts += [f"thread {thread} started" for thread in self.started]
        parts += [f"thread {thread} ended" for thread in self.ended]
        return "; ".join(parts) or "no thread ran"


@attrs.frozen
class MemoryMapping:
    """A range of a process's addresses.

    Args:
        start: The first address.
        end: The address after the last.
        permissions: As ``/proc`` shows them: ``r-xp``.
        offset: Of the range in its file, in bytes.
        device: Of the file, as ``major:minor``.
        inode: Of the file; 0 without a file.
        path: Of the file, or a name in brackets, or empty.
        changed_kib: KiB of pages that are not those of the file: written copies, in memory or swapped out. Only
            `modified_text` knows it; 0 otherwise.
    """

    start: int
    end: int
    permissions: str
    offset: int
    device: str
    inode: int
    path: str
    changed_kib: int = 0

    @property
    def is_executable(self) -> bool:
        """Whether it can be executed."""
        return "x" in self.permissions

    @property
    def is_of_file(self) -> bool:
        """Whether its pages are mapped from a file that still exists under this name."""
        is_file = self.inode != 0 and self.path.startswith("/") and not _ANY_FILE.match(self.path)
        return is_file and not self.path.endswith(" (deleted)")

    def __str__(self) -> str:
        return f"{self.path or 'anonymous memory'} at {self.start:#x}-{self.end:#x} {self.permissions}"


# -- threads -----------------------------------------------------------------------------------


def ran_between(before: Mapping[int, int], after: Mapping[int, int]) -> ThreadActivity:
    """Activity of threads between two readings of `ThreadClocks`.

    A thread that both starts and ends in between is not seen; a sealed process cannot start any.
    """
    ran = {thread: after[thread] - time for thread, time in before.items() if after.get(thread, time) > time}
    started = {thread: time for thread, time in after.items() if thread not in before}
    return ThreadActivity(ran, started, tuple(thread for thread in before if thread not in after))


def seccomp_filters(pid: int) -> Mapping[int, int]:
    """The number of seccomp filters of each thread of a process: the seal adds one to every thread.

    Raises:
        ProcessLookupError: The process has ended.
        NotPermitted: The kernel does not tell (before Linux 5.9).
    """
    found = {}
    with refusals(pid, "the filters"):
        for entry in os.scandir(f"/proc/{pid}/task"):
            with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
                status = _read(f"{entry.path}/status")
                if (match := re.search(rb"^Seccomp_filters:\t(\d+)", status, re.MULTILINE)) is None:
                    raise NotPermitted(pid, "the filters", "the kernel does not count them")
                found[int(entry.name)] = int(match[1])
    return found


# -- mappings ----------------------------------------------------------------------------------


def mappings_of(pid: int) -> tuple[MemoryMapping, ...]:
    """All mappings of a process, by address.

    Raises:
        ProcessLookupError: The process has ended.
        NotPermitted: The system refuses.
    """
    with refusals(pid, "the mappings"):
        return tuple(map(_parse, _read_mappings(pid, "maps").splitlines()))


def mapping_of(pid: int, path_suffix: str) -> tuple[MemoryMapping, ...]:
    """The mappings of files whose path ends so, by address; empty without any.

    Args:
        pid: The process.
        path_suffix: The end of the file's path, such as ``/libcuda.so.1``.

    Raises:
        ProcessLookupError: The process has ended.
        NotPermitted: The system refuses.
    """
    return tuple(one for one in mappings_of(pid) if one.is_of_file and one.path.endswith(path_suffix))


def modified_text(pid: int) -> list[str]:
    """Executable mappings of files that contain pages which are not those of the file, as sentences.

    A write to a private mapping, by mprotect or through ``/proc/self/mem``, replaces a page of the file by an
    anonymous copy; such a page in executable memory is a detoured function. Private_Dirty alone is no sign: the
    kernel counts the pages of a library that was just compiled and is not yet written back. Executable mappings
    that are writable, or shared with a writer, are listed too.

    Raises:
        ProcessLookupError: The process has ended.
        NotPermitted: The system refuses.
    """
    with refusals(pid, "the mappings"):
        try:
            found = text_by_page_map(pid)
        except (FileNotFoundError, PermissionError):  # some systems have no page maps, or close them
            found = text_by_smaps(pid)
    changed = [f"{one}: {one.changed_kib} KiB differ from the file" for one in found if one.changed_kib]
    return changed + [f"{one}: it can be written" for one in found if "w" in one.permissions and not one.changed_kib]


def open_memory_files(pid: int) -> list[str]:
    """Descriptors of a process through which it could write over its code (``/proc/self/mem``), as sentences.

    Raises:
        ProcessLookupError: The process has ended.
        NotPermitted: The system refuses.
    """
    found = []
    with refusals(pid, "the descriptors"):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with suppress(FileNotFoundError):  # closed meanwhile
                target = os.readlink(entry.path)  # noqa: PTH115 many
                if re.fullmatch(r"/proc/\d+(/task/\d+)?/mem", target):
                    found.append(f"descriptor {entry.name} is {target}")
    return found


# -- memory ------------------------------------------------------------------------------------


def memory_digest(pid: int, start: int, length: int) -> str:
    """The SHA-256 digest of a range of a process's memory, such as a pointer table or read-only data.

    Args:
        pid: The process.
        start: The first address.
        length: In bytes.

    Raises:
        ProcessLookupError: The process has ended.
        NotPermitted: The system refuses, or a page of the range is not mapped or not readable.
    """
    digest = hashlib.sha256()
    with refusals(pid, "the memory"), open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:  # noqa: PTH123 unbuffered
        while length > 0:
            part = os.pread(memory.fileno(), min(length, _CHUNK), start)
            if not part:  # the process has ended, or replaced its memory by exec
                raise ProcessLookupError(f"process {pid} has no memory at {start:#x}")
            digest.update(part)
            start, length = start + len(part), length - len(part)
    return digest.hexdigest()


# -- reading -----------------------------------------------------------------------------------


def text_by_page_map(pid: int) -> list[MemoryMapping]:
    """The executable mappings of files, with their changed pages by ``/proc/PID/pagemap``.

    Raises:
        ProcessLookupError: The process has ended.
        OSError: The system has no page maps, or refuses.
    """
    found = []
    descriptor = os.open(f"/proc/{pid}/pagemap", os.O_RDONLY | os.O_CLOEXEC)  # of this memory, even after an exec
    try:
        for header in _EXECUTABLE.finditer(_read_mappings(pid, "maps")):
            one = _parse(header[0])
            if one.is_of_file:
                found.append(attrs.evolve(one, changed_kib=_count_copies(descriptor, one) * mmap.PAGESIZE // 1024))
    finally:
        os.close(descriptor)
    return found


def _count_copies(page_map: int, mapping: MemoryMapping) -> int:
    """The pages of a mapping that are not of its file.

    Raises:
        ProcessLookupError: The memory is gone.
    """
    place, end = (address // mmap.PAGESIZE * _ENTRY_BYTES for address in (mapping.start, mapping.end))
    count = 0
    while place < end:
        if not (entries := os.pread(page_map, min(end - place, _CHUNK), place)):
            raise ProcessLookupError(f"the process has no memory at {mapping.start:#x}")
        count += entries[_ENTRY_BYTES - 1 :: _ENTRY_BYTES].translate(_IS_COPY).count(1)
        place += len(entries)
    return count


def text_by_smaps(pid: int) -> list[MemoryMapping]:
    """Find changed text by ``/proc/PID/smaps``; a search reads a tenth of its lines.

    Raises:
        ProcessLookupError: The process has ended.
        OSError: The system refuses.
    """
    found = []
    smaps = _read_mappings(pid, "smaps")
    for header in _EXECUTABLE.finditer(smaps):
        changed = 0
        for pages in (_ANONYMOUS, _SWAPPED):  # fields of every mapping, in this order
            if (field := pages.search(smaps, header.end())) is not None:
                changed += int(field[1])
        found.append(attrs.evolve(_parse(header[0]), changed_kib=changed))
    return [one for one in found if one.is_of_file]


def _parse(line: bytes) -> MemoryMapping:
    """A mapping by a line ``start-end permissions offset device inode path``."""
    fields = line.decode("utf-8", "surrogateescape").split(None, 5)
    start, _, end = fields[0].partition("-")
    path = fields[5] if len(fields) > 5 else ""
    return MemoryMapping(int(start, 16), int(end, 16), fields[1], int(fields[2], 16), fields[3], int(fields[4]), path)


def _read_mappings(pid: int, name: str) -> bytes:
    """A file of mappings. It is empty for a zombie, which must not pass for a process without changed code."""
    if not (text := _read(f"/proc/{pid}/{name}")):
        raise ProcessLookupError(f"process {pid} has ended")
    return text


def read_short(path: str) -> bytes:
    """A file of the kernel of at most 256 bytes; ``open`` and its buffers cost several times as much."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 256)
    finally:
        os.close(descriptor)


def _read(path: str) -> bytes:
    """All of a file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        while part := os.read(descriptor, _CHUNK):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(descriptor)


@contextmanager
def refusals(pid: int, what: str) -> Iterator[None]:
    """Turn the system's refusals into `NotPermitted`, and a missing process into `ProcessLookupError`."""
    try:
        yield
    except (FileNotFoundError, ProcessLookupError) as error:
        if error.errno is None:  # it has its own words
            raise
        raise ProcessLookupError(f"process {pid} has ended") from error
    except OSError as error:
        raise NotPermitted(pid, what, error.strerror or str(error)) from error
