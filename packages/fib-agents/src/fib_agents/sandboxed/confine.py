"""Supervisor of one confined command. It ends with the command, and nothing that the command started outlives it.

Started by `run` with the settings as JSON on its standard input. The report goes to the descriptor that the first
argument names: a line with the isolation before the command starts, and one with its exit status.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
from fib_bench.caches import CacheOwner, own_cache
from fib_bench.sandbox import syscalls as kernel
from fib_bench.sandbox.landlock import cuda_device_files, keep_in_memory, kernel_files
from fib_bench.sandbox.model import NotPossible, SandboxPaths, SandboxPolicy
from fib_bench.sandbox.policy import isolate, limit_from_environment
from fib_bench.sandbox.processes import reserve_uid
from fib_bench.worker import outside_checks
from fib_schema import Solution, parse_json

from .call import DEFERRED, Deferred

_LARGEST_FILE = 1 << 30


@attrs.frozen(kw_only=True)
class Settings:
    """The command of one run, and its confinement."""

    command: list[str]
    environment: dict[str, str]
    folder: str
    """The folder in which the command may write."""
    call_folder: str
    """The home, temporary and working folder: that one, or of a tool's call a folder in it, beside the tool's log."""
    device: str
    hidden: list[str]
    local_sockets: bool
    is_confined: bool
    solution: str
    """The record of the solution, which decides the cache."""


def main() -> None:
    """Run one command."""
    report = int(sys.argv[1])
    os.set_inheritable(report, False)
    settings = Settings(**json.loads(sys.stdin.buffer.read()))
    signal.signal(signal.SIGTERM, _stop)
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGTERM)
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    ours, theirs = socket.socketpair()  # ours holds the lock of the user until this process ends
    kernel_files()  # held here: the descriptors of the command are closed when it is executed
    pid = os.fork()
    if pid == 0:
        ours.close()
        _run(settings, theirs, report)
    keep_in_memory(Path(f"/proc/{pid}/task"))
    theirs.close()
    kernel.protect_memory()  # not before: the command inherits it until it is executed
    code = _wait(pid)
    _end_all()
    _say(report, {"code": code})


def _wait(pid: int) -> int:
    while True:
        ended, status = os.waitpid(-1, 0)
        if ended == pid:
            return os.waitstatus_to_exitcode(status)


def _stop(*_: object) -> None:
    _end_all()
    os._exit(1)


def _end_all() -> None:
    """Kill everything that the command has started, and wait for its end."""
    outside_checks.kill(outside_checks.children)
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


def _run(settings: Settings, channel: socket.socket, report: int) -> None:
    """Confine this process and replace it by the command; never returns."""
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.environ.clear()
        os.environ.update(settings.environment, HOME=settings.call_folder, TMPDIR=settings.call_folder, USER="worker")
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.chdir(settings.call_folder)
        resource.setrlimit(resource.RLIMIT_FSIZE, (_LARGEST_FILE, _LARGEST_FILE))
        isolation = _confine(settings, channel)
        channel.close()
        _say(report, {"isolation": isolation})
        os.execvpe(settings.command[0], settings.command, os.environ)
    except BaseException as error:  # noqa: BLE001 - the border of the process
        _say(report, {"problem": f"{type(error).__name__}: {error}"})
    finally:
        os._exit(127)


def _confine(settings: Settings, channel: socket.socket) -> dict[str, Any]:
    folder = Path(settings.folder)
    policy = SandboxPolicy(
        settings.device,
        tuple(map(Path, settings.hidden)),
        limit_from_environment(),
        is_alone=True,
        local_sockets=settings.local_sockets,
        starts_call=settings.local_sockets,
    )
    solution = parse_json(settings.solution, Solution)
    owner = CacheOwner(f"solution-{solution.hash()[:32]}", solution)
    uid, reason = None, "on CUDA devices the libraries that the benchmark has built belong to this user"
    if settings.is_confined and not policy.is_cuda:
        try:
            uid = reserve_uid(policy, owner.name, channel)
        except (NotPossible, OSError) as error:
            reason = str(error)
    cache = own_cache(owner, os.getuid() if uid is None else uid)
    os.environ["FIB_CACHE_PATH"] = str(cache)
    if not settings.is_confined:
        return {"level": 0, "text": "trusted: not confined"}
    if uid is not None:
        os.chown(settings.call_folder, uid, uid)
    devices = tuple(map(str, cuda_device_files()))
    isolation = isolate(SandboxPaths(policy, folder, cache, uid, reason))
    if settings.local_sockets:
        deferred = Deferred(
            device=settings.device,
            folder=settings.call_folder,
            is_enclosed="namespaces" in isolation.held,
            device_files=devices,
        )
        os.environ[DEFERRED] = json.dumps(attrs.asdict(deferred))
    return {"level": int(isolation.level), "text": isolation.explain()}


def _say(report: int, message: dict[str, Any]) -> None:
    os.write(report, json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    main()
