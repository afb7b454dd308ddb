"""The worker server: imports torch once, then forks a worker in milliseconds whenever asked.

It runs no solution code itself, holds no CUDA context and starts no thread, so that its forks are
sound. It is the subreaper of everything that its workers start: what a worker leaves behind falls
to the server, which kills it. When the judge goes away the server and all workers do too.
"""

from __future__ import annotations

import gc
import os
import selectors
import shutil
import signal
import socket
import sys
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from fib_compile.device import architectures_of_machine

from ..sandbox.policy import Premises, limit_from_environment, most_tasks, prepare, protect_memory, tasks_on_machine
from ..sandbox.syscalls import PR_SET_CHILD_SUBREAPER, PR_SET_DUMPABLE, PR_SET_PDEATHSIG, prctl
from ..transport.protocol import (
    MAX_DESCRIPTORS,
    MAX_REQUEST_BYTES,
    ChannelClosed,
    Exited,
    Kill,
    Ping,
    Pong,
    Receiver,
    ServerReady,
    ServerRequest,
    Spawn,
    Spawned,
    send,
)
from . import process_tree

_CENSUS_SECONDS = 0.2


def main() -> None:
    """Serve the judge: the arguments are a socket's descriptor, the device, and folders to hide from workers."""
    descriptor, device, *hidden = sys.argv[1:]
    channel = socket.socket(fileno=int(descriptor))
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    protect_memory()
    _import_ahead(device)
    premises = Premises(device, tuple(map(Path, hidden)), limit_from_environment())
    prepare(premises)
    server = Server(channel, premises)
    _go_first()
    try:
        server.serve()
    except ChannelClosed:
        pass  # the judge is gone; leave with everything that was started for it
    finally:
        _end_all(process_tree.children)
        server.remove_folders()
        gc.unfreeze()  # else extension modules report at exit what they take for leaks


def _import_ahead(device: str) -> None:
    """Import what workers need, so that they do not pay for it, and find out what they may not be able to."""
    import torch  # noqa: F401

    from ..timing import cuda  # noqa: F401 its originals are taken before any solution is there
    from . import session  # noqa: F401

    for optional in ("triton", "cuda.bindings.driver"):  # a builder or the device says so where one is missing
        with suppress(ImportError):
            import_module(optional)
    if device.startswith("cuda"):
        architectures_of_machine()  # remembered: nvidia-smi would want more than a worker may do
    gc.collect()
    gc.freeze()  # workers that collect garbage need not look at all of this


def _go_first() -> None:
    """Run before all workers, where the system allows that: they may be hundreds. Workers do not inherit it."""
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))


class Server:
    """Forks workers, watches them end, and cleans up behind them."""

    def __init__(self, channel: socket.socket, premises: Premises) -> None:
        self._channel = channel
        self._premises = premises
        self._receiver = Receiver(channel, ServerRequest, MAX_REQUEST_BYTES, MAX_DESCRIPTORS)
        self._selector = selectors.DefaultSelector()
        self._workers: dict[int, str] = {}
        self._reasons: dict[int, str] = {}
        self._quiet = 0  # the tasks on the machine without any of ours
        self._niceness = os.getpriority(os.PRIO_PROCESS, 0)
        self._wakeup, wakeup_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._wakeup_end = wakeup_end
        signal.set_wakeup_fd(wakeup_end)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> None:
        """Answer until the judge goes away (`ChannelClosed`)."""
        send(self._channel, ServerReady())
        self._selector.register(self._channel, selectors.EVENT_READ)
        self._selector.register(self._wakeup, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select(_CENSUS_SECONDS if self._workers else None):
                if key.fileobj is self._channel:
                    self._receiver.fill()
                else:
                    os.read(self._wakeup, 4096)
            self._answer()
            self._reap()
            self._end_bombs()

    def remove_folders(self) -> None:
        """Remove the folders of workers that ran when the judge went away: it may have been killed."""
        for folder in self._workers.values():
            shutil.rmtree(folder, ignore_errors=True)

    def _answer(self) -> None:
        while (request := self._receiver.take()) is not None:
            match request:
                case Spawn(folder=folder):
                    self._spawn(folder)
                case Kill(pid=pid) if pid in self._workers:
                    os.kill(pid, signal.SIGKILL)
                case Ping():
                    send(self._channel, Pong())
                case _:
                    pass  # a Kill that crossed with the worker's end

    def _spawn(self, folder: str) -> None:
        channel, output = self._receiver.take_descriptors(2)
        if not self._workers:
            self._quiet = tasks_on_machine()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # fork beside idle library threads
            pid = os.fork()
        if pid == 0:
            self._become_worker(channel, output, folder)
        os.close(channel)
        os.close(output)
        self._workers[pid] = folder
        send(self._channel, Spawned(pid))

    def _become_worker(self, channel: int, output: int, folder: str) -> None:
        status = 70
        try:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            os.setpriority(os.PRIO_PROCESS, 0, self._niceness)  # which is reset too
            prctl(PR_SET_DUMPABLE, 1)  # unlike the server, it needs its own files in /proc
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for descriptor in (self._wakeup, self._wakeup_end):
                os.close(descriptor)
            self._channel.close()
            self._selector.close()
            from .session import run_session

            status = run_session(channel, output, folder, self._premises)
        except BaseException:  # noqa: BLE001 nothing above this frame is the worker's
            traceback.print_exc()
        finally:
            os._exit(status)

    def _reap(self) -> None:
        """Collect processes that have ended; behind a worker, kill what it left."""
        while (ended := _wait()) is not None:
            pid, wait_status = ended
            if pid in self._workers:
                del self._workers[pid]
                self._kill_strays(pid)
                send(self._channel, Exited(pid, wait_status, self._reasons.pop(pid, "")))

    def _end_bombs(self) -> None:
        """End a worker that has more processes and threads than any needs; root's are not limited by the system."""
        most = most_tasks() * 3 // 4  # below what the system allows others
        if not self._workers or tasks_on_machine() - self._quiet <= most:
            return
        tasks, worker = max((process_tree.count_tasks([pid]), pid) for pid in self._workers)
        if tasks + process_tree.count_tasks(self._strays()) > most:  # whose those are is not known any more
            self._reasons[worker] = f"the worker was ended: it had more than {most} processes and threads"
            process_tree.kill(lambda: [worker, *self._strays()])

    def _kill_strays(self, group: int) -> None:
        """Kill a dead worker's process group, then orphans of any worker until none are left."""
        with suppress(ProcessLookupError):  # nobody else was in its group
            os.killpg(group, signal.SIGKILL)
        _end_all(self._strays)

    def _strays(self) -> list[int]:
        return [pid for pid in process_tree.children() if pid not in self._workers]


def _wait() -> tuple[int, int] | None:
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return (pid, status) if pid else None


def _end_all(listed: Callable[[], list[int]]) -> None:
    """Kill children, and what falls to this process when they have ended, until none are listed."""
    while processes := listed():
        process_tree.kill(listed)
        for pid in processes:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
