"""Process tree: counts and kills the processes that workers have started, by the kernel's lists of children.

It reads little, because beside hundreds of busy processes the fork server gets little of a core.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Container, Iterable
from contextlib import suppress
from pathlib import Path


def children() -> list[int]:
    """The children of this process."""
    return _children_of(os.getpid(), os.getpid())


def count_tasks(roots: Iterable[int]) -> int:
    """The number of threads of processes and all their descendants."""
    return sum(tasks for _, tasks in _walk(roots))


def descendants(root: int, without: Container[int] = ()) -> list[int]:
    """The processes below a process, but not the given children of its with those below them."""
    children: list[int] = []
    with suppress(FileNotFoundError, ProcessLookupError), os.scandir(f"/proc/{root}/task") as entries:  # it has ended
        for entry in entries:
            children += _children_of(root, int(entry.name))
    return [pid for pid, _ in _walk(child for child in children if child not in without)]


def kill(roots: Callable[[], list[int]]) -> None:
    """Kill processes and all their descendants, as far as they are there now.

    They are stopped first, all of them: to kill at once would free places, below the limit of the
    system, for processes that fork on. A fork that is under way ends when its process is killed.

    The roots are children of this process, asked for again and again.
    """
    stopped: set[int] = set()
    while fresh := [pid for pid, _ in _walk(roots()) if pid not in stopped]:
        _signal_all(fresh, {os.getpid(), *stopped, *fresh}, signal.SIGSTOP)
        stopped.update(fresh)
    _signal_all(stopped, {os.getpid(), *stopped}, signal.SIGKILL)


def _walk(roots: Iterable[int]) -> list[tuple[int, int]]:
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
                left += _children_of(pid, task)
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
