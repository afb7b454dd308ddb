"""Resource limits of a worker: files, descriptors, tasks and, on the CPU, memory."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from .model import SandboxState, Threat

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


def free_memory_bytes() -> int:
    """The memory that new allocations can have without swapping: free pages, and caches that can be dropped."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("MemAvailable:"))) << 10


def limit(state: SandboxState) -> frozenset[Threat]:
    """Forbid core dumps, bound files and descriptors, and bound processes where the system can.

    On the CPU, private writable memory is bounded per process. CUDA reserves more address space than
    there is memory, so no bound is possible there; the kernel ends the worker first when memory is short.
    """
    _bound(resource.RLIMIT_CORE, 0)
    _bound(resource.RLIMIT_FSIZE, _LARGEST_FILE)
    _bound(resource.RLIMIT_NOFILE, _MAX_DESCRIPTORS)
    _bound(resource.RLIMIT_NPROC, most_tasks() + _foreign_tasks(state))
    if not state.policy.is_cuda:
        _bound(resource.RLIMIT_DATA, int(_SHARE_OF_MEMORY * free_memory_bytes()))
    return frozenset({Threat.RESOURCES})


def _bound(kind: int, most: int) -> None:
    _, hard = resource.getrlimit(kind)
    value = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (value, value))


def _foreign_tasks(state: SandboxState) -> int:
    """The number of tasks that the system counts as the worker's although they are not."""
    release = tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])
    has_namespace = Threat.MEMORY in state.held.get("namespaces", ()) and release >= _COUNTED_BY_NAMESPACE
    return 0 if has_namespace or "user" in state.held else tasks_on_machine()
