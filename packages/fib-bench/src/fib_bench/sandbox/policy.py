"""Sandbox policy: the measures that a worker applies to itself before any code of a solution is loaded.

Each measure stops some `Threat`s, or reports why it is not possible; a missing measure does not affect the
others. The result is the worker's `Isolation`, and its `Level` is recorded in every trace.

No measure may break an honest solution, which may compile, fork helpers, and use threads, temporary files
and the device. The measures suit CUDA because of what its driver does: it listens on an abstract socket
named by network and process namespace, hands memory to processes of the same user only, writes the names
of its threads below ``/proc/self/task``, and reserves address space far beyond any memory.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from fib_schema import Problem

from ..errors import InvalidConfig
from ..temporary_folders import TemporaryFolder
from . import landlock, processes, seccomp
from . import syscalls as kernel
from .environment import NOBODY, readable_paths, unreadable_path
from .model import LIMIT_VARIABLE, Isolation, Level, Measure, NotPossible, SandboxPaths, SandboxPolicy, Threat

MEASURES: tuple[Measure, ...] = (
    Measure("namespaces", Level.CONFINED, processes.enter),
    Measure("user", Level.CONFINED, processes.change_user),
    Measure("limits", Level.PROCESS, processes.limit),
    Measure("landlock", Level.CONFINED, landlock.confine_files),
    Measure("no_new_privs", Level.PROCESS, processes.drop_privileges),
    Measure("seccomp", Level.SANDBOXED, seccomp.refuse_calls),
)
"""In this order: the user changes while privileges allow it, and the filter comes last because earlier measures
need the calls that it refuses."""


def limit_from_environment() -> Level:
    """The level that `LIMIT_VARIABLE` names, or the highest one; `InvalidConfig` if it names no level."""
    named = os.environ.get(LIMIT_VARIABLE, "").strip().lower()
    if not named:
        return Level.SANDBOXED
    for level in Level:
        if named in {str(int(level)), level.name.lower()}:
            return level
    known = ", ".join(f"{int(level)} ({level.name.lower()})" for level in Level)
    raise InvalidConfig((Problem("environment", LIMIT_VARIABLE, f"{named!r} is not a level; use one of {known}"),))


def prepare(policy: SandboxPolicy) -> None:
    """Compute, in the fork server, the cached facts that would otherwise cost each worker time."""
    readable_paths()
    landlock.kernel_files()
    unreadable_path(os.getuid())
    unreadable_path(NOBODY)
    if not policy.is_cuda:
        processes.why_not(processes.wanted_namespaces())
    with suppress(OSError):  # each worker reports it
        seccomp.worker_filter(policy.is_cuda)


def isolate(paths: SandboxPaths) -> Isolation:
    """Apply every measure that is possible to this process; none can be undone.

    The process must have one thread, and must not receive anything secret before or after. Programs that it starts in
    its place are confined too.
    """
    held: dict[str, frozenset[Threat]] = {}
    missing: dict[str, str] = {}
    parent = os.getppid()
    for measure in MEASURES:
        if measure.level > paths.policy.limit:
            missing[measure.name] = f"{LIMIT_VARIABLE} is {int(paths.policy.limit)}"
            continue
        try:
            held[measure.name] = measure.apply(paths, held)
        except (NotPossible, OSError) as error:
            missing[measure.name] = str(error)
    _stay_tied_to(parent)
    return Isolation(held, missing)


def confine_files(paths: SandboxPaths, *, is_enclosed: bool) -> None:
    """Confine the files of a process further that one with `starts_call` has started, where that is possible.

    `is_enclosed` says whether the process is in a network namespace of its own.
    """
    if paths.policy.limit >= Level.CONFINED and landlock.is_usable():
        landlock.confine_files(paths, {"namespaces": frozenset()} if is_enclosed else {})


def _stay_tied_to(parent: int) -> None:
    """End with the parent: a change of user or namespace clears the death signal."""
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def main() -> None:
    """Print what is possible on this machine, for the device that the first argument names.

    With further arguments, which are paths, print JSON instead: also which of them a worker could open.
    """
    device, *private = sys.argv[1:] or ["cpu"]
    policy = SandboxPolicy(device, limit=limit_from_environment())
    prepare(policy)
    with TemporaryFolder() as folder:
        if (pid := os.fork()) == 0:
            isolation = isolate(_paths_of_trial(policy, folder.path))
            print(_report(isolation, private) if private else isolation.explain(), flush=True)
            os._exit(0)
        os.waitpid(pid, 0)


def _report(isolation: Isolation, private: Sequence[str]) -> str:
    exposed = [path for path in private if _can_open(path)]
    return json.dumps({"level": int(isolation.level), "text": isolation.explain(), "exposed": exposed})


def _can_open(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY))
    except OSError:
        return False
    return True


def _paths_of_trial(policy: SandboxPolicy, folder: Path) -> SandboxPaths:
    lock, channel = socket.socketpair()
    lock.detach()  # open until this process ends
    with channel:
        try:
            return SandboxPaths(policy, folder, folder, processes.reserve_uid(policy, "trial", channel))
        except NotPossible as error:
            return SandboxPaths(policy, folder, folder, None, str(error))


if __name__ == "__main__":
    main()
