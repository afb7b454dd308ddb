"""Fork server client: starts the fork server, asks it for workers, and records how they end."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from ..errors import WorkerPoolFailed
from ..sandbox.processes import SPARE_UIDS
from ..temporary_folders import TemporaryFolder, remove_abandoned
from ..transport.messages import Exited, Kill, Ping, Pong, ServerReady, ServerReply, Spawn, Spawned
from ..transport.protocol import MAX_REPLY_BYTES, ChannelClosed, ProtocolError, Receiver, is_readable, send
from .client import Worker
from .process_tree import descendants
from .server_environment import server_environment

_START_SECONDS = 120.0
_SPAWN_SECONDS = 30.0
_EXIT_SECONDS = 10.0


class ForkServerClient:
    """The judge's side of a fork server; a context manager that stops the server and all its workers.

    Args:
        device: The device of the workers. On ``cpu``, Triton and Helion run in their interpreters.
        hidden: Folders that no worker may read.
    """

    def __init__(self, device: str, hidden: Iterable[Path] = ()) -> None:
        self._device = device
        self._hidden = tuple(path.resolve() for path in hidden)
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket
        self._receiver: Receiver
        self._spawned: list[int] = []
        self._exits: dict[int, Exited] = {}
        self._workers: set[int] = set()
        self._has_answered = False
        self._is_ready = False
        self._generation = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start the server process if it is not running, and wait until it serves; `spawn` does so too.

        Raises:
            WorkerPoolFailed: It did not come up.
        """
        self.launch()
        if self._is_ready:
            return
        self._channel.settimeout(_START_SECONDS)
        try:
            ready = self._receiver.receive()
        except (ChannelClosed, ProtocolError, TimeoutError) as error:
            raise WorkerPoolFailed(f"it did not start (its messages are above): {error}") from error
        if not isinstance(ready, ServerReady):
            raise WorkerPoolFailed(f"it answered {ready!r} first")
        self._channel.settimeout(None)
        self._is_ready = True

    def launch(self) -> None:
        """Start the server process if it is not running, without waiting for it."""
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        remove_abandoned(SPARE_UIDS if os.geteuid() == 0 else ())
        self._is_ready = False
        self._channel, theirs = socket.socketpair()
        module = f"{__package__}.fork_server"  # -P: the current folder is not a place to import from
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, str(theirs.fileno()), self._device, *self._hidden],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=2,  # text that an import prints is not a result
                env=server_environment(self._device),
                start_new_session=True,
            )
        self._receiver = Receiver(self._channel, ServerReply, MAX_REPLY_BYTES)

    def spawn(self) -> Worker:
        """A fresh worker.

        Raises:
            WorkerPoolFailed: The server has ended and does not start again.
        """
        folder = TemporaryFolder()
        ours, theirs = socket.socketpair()
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(read_end, False)
        try:
            pid = self._fork(folder.path, (theirs.fileno(), write_end))
        except BaseException:
            ours.close()
            os.close(read_end)
            folder.remove()
            raise
        finally:
            theirs.close()
            os.close(write_end)
        self._workers.add(pid)
        return Worker(self, pid, ours, read_end, folder)

    def _fork(self, folder: Path, descriptors: tuple[int, int]) -> int:
        """Have the server fork; if it has ended since it last answered, start a new one and ask that."""
        self.start()
        try:
            return self._ask_for_worker(folder, descriptors)
        except (ChannelClosed, ProtocolError):
            self.close()
            self.start()
        try:
            return self._ask_for_worker(folder, descriptors)
        except (ChannelClosed, ProtocolError) as error:
            raise WorkerPoolFailed(f"no worker came: {error}") from error

    def _ask_for_worker(self, folder: Path, descriptors: tuple[int, int]) -> int:
        send(self._channel, Spawn(str(folder)), descriptors)
        while not self._spawned:
            if not is_readable(self._channel, _SPAWN_SECONDS):
                raise ChannelClosed(f"nothing within {_SPAWN_SECONDS:g} s")  # a solution may have stopped it
            self.read_reports()
        return self._spawned.pop()

    def is_alive(self) -> bool:
        """Whether the process answers; a server that was killed before this call does not."""
        self._has_answered = False
        end = time.monotonic() + _EXIT_SECONDS
        try:
            send(self._channel, Ping())
            while not self._has_answered and (left := end - time.monotonic()) > 0:
                if is_readable(self._channel, left):
                    self.read_reports()
        except (ChannelClosed, ProtocolError, OSError):
            self._has_answered = False
        if not self._has_answered:
            self.close()
        return self._has_answered

    def close(self) -> None:
        """Stop the server and with it every worker."""
        if self._process is None:
            return
        self._channel.close()
        if not self._is_ready:
            self._process.kill()  # it has no workers, and may be importing for a while
        try:
            self._process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None
        self._generation += 1
        self._exits.clear()
        self._spawned.clear()

    @property
    def generation(self) -> int:
        """The number of server processes before this one; a worker of an earlier one has ended without a report."""
        return self._generation

    @property
    def channel(self) -> socket.socket:
        """The socket on which the server reports ends of workers."""
        return self._channel

    def kill(self, pid: int) -> None:
        """Have a worker killed; its end is reported like any other."""
        send(self._channel, Kill(pid))

    def read_reports(self) -> None:
        """Read the server's reports that have arrived.

        Raises:
            ChannelClosed: The server has ended.
        """
        self._receiver.fill(wait=False)
        while (message := self._receiver.take()) is not None:
            match message:
                case Spawned(pid=pid):
                    self._spawned.append(pid)
                case Exited(pid=pid):
                    self._exits[pid] = message
                case Pong():
                    self._has_answered = True

    def exit_of(self, pid: int) -> Exited | None:
        """The exit report of a worker, or None while it runs."""
        return self._exits.get(pid)

    def forget(self, pid: int) -> None:
        """Drop the record of a worker's end."""
        self._exits.pop(pid, None)
        self._workers.discard(pid)

    def strays(self) -> list[int]:
        """Processes that have left their worker, and their descendants; which worker started them is unknown."""
        return [] if self._process is None else descendants(self._process.pid, self._workers)
