"""Worker client: the judge's handle on one worker process.

Every wait is bounded and watches three sources at once: the worker's channel, its output, and the fork
server's report of its end. A worker that ends or takes too long raises `WorkerLost` with the reason, which
is a result of its solution and no error of the benchmark.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Protocol, Self

import msgspec

from ..sandbox.model import Isolation, Threat
from ..temporary_folders import TemporaryFolder
from ..transport.messages import Exited, Settled, WorkerReply
from ..transport.protocol import MAX_REPLY_BYTES, ChannelClosed, ProtocolError, Receiver, is_readable, send
from .output import OutputPipe
from .process_tree import descendants

_EXIT_SECONDS = 10.0
_STACK_SECONDS = 0.5
_DYING_SECONDS = 3.0  # the kernel takes up to a second to end a process that crashed


class WorkerLost(Exception):
    """A worker that has ended or was closed.

    Args:
        reason: The reason, as a sentence.
        is_timeout: Whether it took too long.
        is_forgery: Whether it sent a message that the harness in a worker never sends.
    """

    def __init__(self, reason: str, *, is_timeout: bool = False, is_forgery: bool = False) -> None:
        super().__init__(reason)
        self.is_timeout = is_timeout
        self.is_forgery = is_forgery


class ServerReports(Protocol):
    """The part of the fork server's client that a worker's handle uses."""

    @property
    def generation(self) -> int:
        """The number of server processes before this one."""

    @property
    def channel(self) -> socket.socket:
        """The socket on which ends of workers are reported."""

    def kill(self, pid: int) -> None:
        """Have a worker killed."""

    def read_reports(self) -> None:
        """Read the reports that have arrived."""

    def exit_of(self, pid: int) -> Exited | None:
        """The exit report of a worker, or None while it runs."""

    def forget(self, pid: int) -> None:
        """Drop the record of a worker's end."""

    def strays(self) -> list[int]:
        """Processes that have left their worker."""

    def is_alive(self) -> bool:
        """Whether the server answers."""

    def close(self) -> None:
        """Stop the server and all workers."""


class Worker:
    """One worker process: its channel, its output, and its exit.

    Args:
        server: The fork server, which reports the worker's end.
        pid: Its process.
        channel: The socket for requests and replies.
        output: The end to read of the pipe that it prints to, non-blocking.
        folder: Its home, removed when it is closed.
    """

    def __init__(
        self, server: ServerReports, pid: int, channel: socket.socket, output: int, folder: TemporaryFolder
    ) -> None:
        self._server = server
        self._generation = server.generation
        self.pid = pid
        self._handle = _open_process(pid)
        self._channel = channel
        self._receiver = Receiver(channel, WorkerReply, MAX_REPLY_BYTES)
        self._output = OutputPipe(output)
        self._folder = folder
        self.isolation: Isolation | None = None
        self._reason_to_kill: str | None = None
        self._selector = selectors.DefaultSelector()
        self._selector.register(channel, selectors.EVENT_READ)
        self._selector.register(self._output, selectors.EVENT_READ)
        self._selector.register(server.channel, selectors.EVENT_READ)
        self._is_closed = False
        self._is_killed = False

    def started(self) -> list[int]:
        """Its descendants, and processes that have left a worker, which may have been this one."""
        return [*descendants(self.pid), *self._server.strays()]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def is_closed(self) -> bool:
        """Whether it has ended."""
        return self._is_closed or self._has_ended() or self._is_orphaned

    def request(self, message: msgspec.Struct, descriptors: tuple[int, ...] = (), *, seconds: float) -> object:
        """Send a request and wait for its answer.

        Args:
            message: The request.
            descriptors: File descriptors to send along.
            seconds: How long to wait.

        Raises:
            WorkerLost: The worker ended, broke the protocol, or took too long; it is closed.
        """
        self.post(message, descriptors)
        return self.answer(seconds)

    def post(self, message: msgspec.Struct, descriptors: tuple[int, ...] = ()) -> None:
        """Send a request; `answer` waits for the reply.

        Raises:
            WorkerLost: The worker has ended.
        """
        if self.is_closed:
            raise WorkerLost(self._end_in_words())
        try:
            send(self._channel, message, descriptors)
        except ChannelClosed as error:
            self._end_silent_worker()
            raise WorkerLost(self._end_in_words()) from error

    def answer(self, seconds: float) -> object:
        """Wait for the answer to the last request.

        Raises:
            WorkerLost: The worker ended, broke the protocol, or took too long; it is closed.
        """
        deadline = time.monotonic() + seconds
        try:
            while (reply := self._next_reply()) is None:
                if self._has_ended():
                    raise WorkerLost(self._end_in_words())
                if (left := deadline - time.monotonic()) <= 0:
                    self._ask_for_stack()
                    self.close()
                    reason = f"no answer within {seconds:g} s; the worker was killed"
                    raise WorkerLost(reason, is_timeout=True)
                self._wait(left)
        except ProtocolError as error:
            self.close()
            problem = f"the worker broke the protocol and was killed: {error}"
            raise WorkerLost(problem, is_forgery=True) from error
        except ChannelClosed as error:
            self._end_silent_worker()
            raise WorkerLost(self._end_in_words()) from error
        return reply

    def has_answered(self) -> bool:
        """Read what has arrived; whether the answer to the last request is there, or none will come."""
        self._wait(0.0)
        return self.is_closed or self._receiver.has_message

    def _next_reply(self) -> object | None:
        """The next reply that has arrived, or None. The first message is not a reply: it reports the isolation.

        Raises:
            ProtocolError: The message is not valid.
        """
        reply = self._receiver.take()
        if reply is None or self.isolation is not None:
            return reply
        self.isolation = _isolation_of(reply)
        return self._receiver.take()

    def confirm(self) -> None:
        """Check that the worker runs, and the server too, which kills the processes that a worker leaves.

        Raises:
            WorkerLost: One of them has ended.
        """
        if self.is_closed or not self._server.is_alive() or self._has_ended():
            self.close()
            raise WorkerLost(self._end_in_words())

    def printed(self) -> str:
        """Output of the worker since the last call: head and tail."""
        if not self._is_closed:
            self._output.read()
        return self._output.take_text()

    def kill(self) -> None:
        """Have the worker killed without waiting; `close` waits until it and all that it started have ended."""
        if not self.is_closed and not self._is_killed:
            with suppress(ChannelClosed, OSError):  # of the server, which `close` finds out
                self._server.kill(self.pid)
                self._is_killed = True

    def close(self, *, unless: Connection | None = None) -> bool:
        """Kill the worker and everything that it started; remove its folder.

        Args:
            unless: Wait for the end only until this has a message.

        Returns:
            Whether it is closed.
        """
        if self._is_closed:
            return True
        if not self._kill(unless):
            return False
        if self._handle is not None and not self._has_ended():
            _kill_orphan(self._handle)
        self._output.read()
        self._is_closed = True
        self._selector.close()
        self._channel.close()
        self._output.close()
        if self._handle is not None:
            os.close(self._handle)
        if not self._is_orphaned:
            self._server.forget(self.pid)
        self._folder.remove()
        return True

    @property
    def _is_orphaned(self) -> bool:
        """Whether the server that forked it has ended."""
        return self._server.generation != self._generation

    def _has_ended(self) -> bool:
        return not self._is_orphaned and self._server.exit_of(self.pid) is not None

    def _wait(self, seconds: float) -> None:
        """Wait for the channel, the output or the server's reports, and read available data."""
        for key, _ in self._selector.select(seconds):
            if key.fileobj is self._channel:
                try:
                    self._receiver.fill(wait=False)
                except ChannelClosed:
                    self._end_silent_worker()
            elif key.fileobj is self._output:
                if not self._output.read() and self._output in self._selector.get_map():
                    self._selector.unregister(self._output)
            else:
                try:
                    self._server.read_reports()
                except (ChannelClosed, ProtocolError) as error:
                    self._server.close()
                    raise WorkerLost(f"the worker server died under this worker: {error}") from error

    def _end_silent_worker(self) -> None:
        """Wait briefly for the exit of a worker whose channel is closed, then kill it."""
        if self._channel in self._selector.get_map():
            self._selector.unregister(self._channel)
        end = time.monotonic() + _DYING_SECONDS
        while not self._has_ended() and (left := end - time.monotonic()) > 0:
            self._wait(left)
        if not self._has_ended():
            self._reason_to_kill = "the worker closed its channel to the judge and was killed"
            self._kill()

    def _ask_for_stack(self) -> None:
        """Have the worker print its stack, if it still can."""
        if self._handle is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, signal.SIGUSR1)
        end = time.monotonic() + _STACK_SECONDS
        while (left := end - time.monotonic()) > 0 and not self._has_ended():
            self._wait(left)

    def _kill(self, unless: Connection | None = None) -> bool:
        """Kill the worker and wait until the server reports that it and its children have ended.

        Returns:
            False if a message to `unless` came first.
        """
        if self.is_closed:
            return True
        try:
            if not self._is_killed:  # its number may have gone to another worker since
                self._server.kill(self.pid)
                self._is_killed = True
            end = time.monotonic() + _EXIT_SECONDS
            with selectors.DefaultSelector() as selector:
                selector.register(self._server.channel, selectors.EVENT_READ)
                if unless is not None:
                    selector.register(unless, selectors.EVENT_READ)
                while not self._has_ended() and (left := end - time.monotonic()) > 0:
                    ready = [key.fileobj for key, _ in selector.select(left)]
                    if unless in ready:
                        return False
                    if ready:
                        self._server.read_reports()
        except (ChannelClosed, ProtocolError, OSError):
            self._server.close()  # takes every worker with it
        return True

    def _end_in_words(self) -> str:
        ended = self._server.exit_of(self.pid)
        if ended is not None and ended.reason:
            return ended.reason
        if self._reason_to_kill is not None:
            return self._reason_to_kill
        if self._is_orphaned:
            return "the worker server died under this worker"
        if ended is None:
            return "the worker has ended"
        if os.WIFSIGNALED(ended.wait_status):
            number = os.WTERMSIG(ended.wait_status)
            names = {int(member): member.name for member in signal.Signals}  # without most real-time signals
            return f"the worker was ended by {names.get(number, number)} ({signal.strsignal(number)})"
        status = os.WEXITSTATUS(ended.wait_status)
        return f"the worker exited with status {status} before it answered"


def end_all(workers: Iterable[Worker]) -> None:
    """Close workers, which end at the same time."""
    workers = list(workers)
    for worker in workers:
        worker.kill()
    for worker in workers:
        worker.close()


def _isolation_of(message: object) -> Isolation:
    """The isolation that a worker reports in its first message, which it sends before it has read a solution.

    Raises:
        ProtocolError: It is another message.
    """
    if not isinstance(message, Settled):
        raise ProtocolError(f"the first message was {type(message).__name__}, not Settled")
    try:
        held = {name: frozenset(map(Threat, threats)) for name, threats in message.held.items()}
    except ValueError as error:
        raise ProtocolError(str(error)) from error
    return Isolation(held, message.missing)


def _kill_orphan(handle: int) -> None:
    """Kill a worker whose server has died; the system does so too, unless a solution has disabled that."""
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        is_readable(handle, _EXIT_SECONDS)  # it is when the process has ended


def _open_process(pid: int) -> int | None:
    """A descriptor of a process, valid even if its number is used again; None if it has ended."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None
