"""The worker server: imports torch once, then forks a worker in milliseconds whenever asked.

It runs no solution code itself, holds no CUDA context and starts no thread, so that its forks are
sound. It is the subreaper of everything that its workers start: what a worker leaves behind falls
to the server, which kills it. When the judge goes away the server and all workers do too.
"""

from __future__ import annotations

import ctypes
import os
import selectors
import shutil
import signal
import socket
import sys
import traceback
import warnings
from contextlib import suppress
from pathlib import Path

from ..wire import (
    MAX_DESCRIPTORS,
    MAX_REQUEST_BYTES,
    ChannelClosed,
    Exited,
    Kill,
    Receiver,
    ServerReady,
    ServerRequest,
    Spawn,
    Spawned,
    send,
)

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Serve the judge on the socket whose descriptor is the first argument."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    _import_ahead()
    server = Server(channel)
    try:
        server.serve()
    except ChannelClosed:
        pass  # the judge is gone; leave with everything that was started for it
    finally:
        _kill_descendants()
        server.remove_folders()


def _import_ahead() -> None:
    """Import what workers need, so that they do not pay for it."""
    import torch  # noqa: F401

    from . import session  # noqa: F401

    try:
        import triton  # noqa: F401
    except ImportError:
        return  # Triton is optional; solutions that need it get told by the builder


class Server:
    """Forks workers, watches them end, and cleans up behind them."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._receiver = Receiver(channel, ServerRequest, MAX_REQUEST_BYTES, MAX_DESCRIPTORS)
        self._selector = selectors.DefaultSelector()
        self._workers: dict[int, str] = {}
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
            for key, _ in self._selector.select():
                if key.fileobj is self._channel:
                    self._receiver.fill()
                else:
                    os.read(self._wakeup, 4096)
            self._answer()
            self._reap()

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
                case _:
                    pass  # a Kill that crossed with the worker's end

    def _spawn(self, folder: str) -> None:
        channel, output = self._receiver.take_descriptors(2)
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
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for descriptor in (self._wakeup, self._wakeup_end):
                os.close(descriptor)
            self._channel.close()
            self._selector.close()
            from .session import run_session

            status = run_session(channel, output, folder)
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
                send(self._channel, Exited(pid, wait_status, self._kill_strays(pid)))

    def _kill_strays(self, group: int) -> int:
        """Kill a dead worker's process group, then orphans of any worker until none are left."""
        count = 0
        with suppress(ProcessLookupError):  # nobody else was in its group
            os.killpg(group, signal.SIGKILL)
        while strays := [pid for pid in _children() if pid not in self._workers]:
            for pid in strays:
                count += 1
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        return count


def _wait() -> tuple[int, int] | None:
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return (pid, status) if pid else None


def _children() -> list[int]:
    """The process's children, from the kernel's own list."""
    return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


def _kill_descendants() -> None:
    while children := _children():
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _prctl(option: int, value: int) -> None:
    if _LIBC.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


if __name__ == "__main__":
    main()
