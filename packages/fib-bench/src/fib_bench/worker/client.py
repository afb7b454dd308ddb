"""The judge's side: the worker server as a context manager, and a handle on each worker.

Every wait is bounded and watches three things at once: the worker's channel, what it prints, and
the server's word that it has ended. A worker that ends or overstays is a `WorkerLost`, with the
reason in words; that is a result about its solution, not an error of the benchmark.
"""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
from fib_schema import get_fib_cache_path

from ..errors import WorkerPoolFailed
from ..sandbox.policy import LIMIT_VARIABLE, Isolation, Threat
from ..transport.protocol import (
    MAX_REPLY_BYTES,
    ChannelClosed,
    Exited,
    Kill,
    Ping,
    Pong,
    ProtocolError,
    Receiver,
    ServerReady,
    ServerReply,
    Settled,
    Spawn,
    Spawned,
    WorkerReply,
    is_readable,
    send,
)
from .cpu_priority import Precedence
from .process_tree import descendants

_START_SECONDS = 120.0
_SPAWN_SECONDS = 30.0
_EXIT_SECONDS = 10.0
_STACK_SECONDS = 0.5
_KEPT_BYTES = 8_000
_INHERITED = frozenset({
    "PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "CC", "CXX",
    "CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES", "TRITON_INTERPRET",
    "GOMP_SPINCOUNT", "OMP_NUM_THREADS", "OMP_PLACES", "OMP_PROC_BIND",
    LIMIT_VARIABLE,
})  # fmt: skip


class WorkerLost(Exception):
    """The worker is gone, or not talked to any more.

    Args:
        reason: Why.
        is_timeout: Whether it had overstayed.
        is_forgery: Whether it sent what no worker of ours does.
    """

    def __init__(self, reason: str, *, is_timeout: bool = False, is_forgery: bool = False) -> None:
        super().__init__(reason)
        self.is_timeout = is_timeout
        self.is_forgery = is_forgery


class KeptOutput:
    """The head and the tail of what a worker prints, however much that is."""

    def __init__(self, kept_bytes: int = _KEPT_BYTES) -> None:
        self._kept = kept_bytes
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped = 0

    def add(self, data: bytes) -> None:
        """Take what was read."""
        room = self._kept - len(self._head)
        self._head += data[:room]
        self._tail += data[max(room, 0) :]
        if (excess := len(self._tail) - self._kept) > 0:
            del self._tail[:excess]
            self._dropped += excess

    def text(self) -> str:
        """What was kept, with a note where something was dropped."""
        gap = f"\n... {self._dropped} bytes dropped ...\n" if self._dropped else ""
        return (self._head + gap.encode() + self._tail).decode("utf-8", "replace")


class WorkerServer:
    """Starts the server process and asks it for workers.

    Args:
        device: ``cpu``: Triton runs in its interpreter there.
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
        self._is_awake = False
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
        """Start the server process if it is not running, and wait for nothing."""
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        self._is_ready = False
        self._channel, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", f"{__package__}.fork_server", str(theirs.fileno()), self._device, *self._hidden],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=2,  # whatever an import prints is no result
                env=self._environment(),
                start_new_session=True,
            )
        self._receiver = Receiver(self._channel, ServerReply, MAX_REPLY_BYTES)

    def spawn(self) -> Worker:
        """A fresh worker.

        Raises:
            WorkerPoolFailed: The server is gone and does not come up again.
        """
        folder = Path(tempfile.mkdtemp(prefix="fib-worker-"))
        ours, theirs = socket.socketpair()
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(read_end, False)
        try:
            pid = self._fork(folder, (theirs.fileno(), write_end))
        except BaseException:
            ours.close()
            os.close(read_end)
            folder.rmdir()
            raise
        finally:
            theirs.close()
            os.close(write_end)
        self._workers.add(pid)
        return Worker(self, pid, ours, read_end, folder)

    def _fork(self, folder: Path, descriptors: tuple[int, int]) -> int:
        """Have the server fork; it may have died since it was last heard of, so ask a new one then."""
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
        """Ask the process for a sign of life. What has been killed before this is asked does not give one."""
        self._is_awake = False
        end = time.monotonic() + _EXIT_SECONDS
        try:
            send(self._channel, Ping())
            while not self._is_awake and (left := end - time.monotonic()) > 0:
                if is_readable(self._channel, left):
                    self.read_reports()
        except (ChannelClosed, ProtocolError, OSError):
            self._is_awake = False
        if not self._is_awake:
            self.close()
        return self._is_awake

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
        """Another number for each process: a worker of an earlier one is gone, and its end will not be reported."""
        return self._generation

    @property
    def channel(self) -> socket.socket:
        """The socket on which the server reports ends."""
        return self._channel

    def kill(self, pid: int) -> None:
        """Have a worker killed; its end is reported like any other."""
        send(self._channel, Kill(pid))

    def read_reports(self) -> None:
        """Read what the server has said so far.

        Raises:
            ChannelClosed: The server is gone.
        """
        self._receiver.fill(wait=False)
        while (message := self._receiver.take()) is not None:
            self._take(message)

    def exit_of(self, pid: int) -> Exited | None:
        """How a worker ended, or None while it runs."""
        return self._exits.get(pid)

    def forget(self, pid: int) -> None:
        """Drop the record of a worker's end."""
        self._exits.pop(pid, None)
        self._workers.discard(pid)

    def strays(self) -> list[int]:
        """Processes that have left their worker, and those below them; whose they are is not known."""
        return [] if self._process is None else descendants(self._process.pid, self._workers)

    def _take(self, message: object) -> None:
        match message:
            case Spawned(pid=pid):
                self._spawned.append(pid)
            case Exited(pid=pid):
                self._exits[pid] = message
            case Pong():
                self._is_awake = True

    def _environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if name in _INHERITED}
        fixed = {
            "OPENBLAS_NUM_THREADS": "1",  # a thread started by an import would not survive a fork
            "PYTHONUNBUFFERED": "1",
            "PYTHONSAFEPATH": "1",
            "FIB_CACHE_PATH": str(get_fib_cache_path().absolute()),  # workers have other homes and folders
        }
        if self._device == "cpu":
            fixed["TRITON_INTERPRET"] = "1"
            # about half a millisecond, which spans the time between two parallel regions: waking a thread up takes
            # longer than many a kernel; by default it spins for much longer, on a core that another may need
            inherited.setdefault("GOMP_SPINCOUNT", "50000")
            if not {"OMP_PROC_BIND", "OMP_PLACES"} & set(inherited):
                fixed |= {"OMP_PROC_BIND": "close", "OMP_PLACES": _places()}
            # what was freed before decides otherwise whether memory comes from the heap or from the system
            fixed |= {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
        else:
            fixed["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # the server must not initialise CUDA: it forks
        fixed["TORCHINDUCTOR_COMPILE_THREADS"] = (
            "1"  # or each worker starts a pool of processes, seconds after its call
        )
        return inherited | fixed


def _places() -> str:
    """A core for each thread of a team but the first, which others inherit from: else two can share one for long."""
    cores = sorted(os.sched_getaffinity(0))
    return ",".join("{" + ",".join(map(str, place)) + "}" for place in (cores, *([core] for core in cores[1:])))


class Worker:
    """One worker process, as the judge sees it."""

    def __init__(self, server: WorkerServer, pid: int, channel: socket.socket, output: int, folder: Path) -> None:
        self._server = server
        self._generation = server.generation
        self.pid = pid
        self._handle = _open_process(pid)
        self._channel = channel
        self._receiver = Receiver(channel, WorkerReply, MAX_REPLY_BYTES)
        self._output = output
        self._folder = folder
        self._kept = KeptOutput()
        self.isolation: Isolation | None = None
        self._reason_to_kill: str | None = None
        self._selector = selectors.DefaultSelector()
        self._selector.register(channel, selectors.EVENT_READ)
        self._selector.register(output, selectors.EVENT_READ)
        self._selector.register(server.channel, selectors.EVENT_READ)
        self._precedence = Precedence(pid)
        self._is_closed = False

    def go_first(self) -> None:
        """Go before other work on the processors from now on, where that may be said."""
        self._precedence.take()

    def take_turns(self) -> None:
        """The opposite, for what it has started as well."""
        if self._precedence.is_first and not self.is_closed:
            self._precedence.give_back(self.started())

    def started(self) -> list[int]:
        """The processes below it, and those that have left their worker, whichever that was."""
        return [*descendants(self.pid), *self._server.strays()]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def is_closed(self) -> bool:
        """Whether it is gone."""
        return self._is_closed or self._has_ended() or self._is_orphaned

    def request(self, message: msgspec.Struct, descriptors: tuple[int, ...] = (), *, seconds: float) -> object:
        """Send a request and wait for its answer.

        Args:
            message: The request.
            descriptors: File descriptors to send along.
            seconds: How long to wait.

        Raises:
            WorkerLost: The worker ended, broke the protocol, or took too long; it is gone.
        """
        self.post(message, descriptors)
        return self.answer(seconds)

    def post(self, message: msgspec.Struct, descriptors: tuple[int, ...] = ()) -> None:
        """Send a request, whose answer somebody will wait for later.

        Raises:
            WorkerLost: The worker is gone.
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
            WorkerLost: The worker ended, broke the protocol, or took too long; it is gone.
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

    def _next_reply(self) -> object | None:
        """The next reply that has arrived; the first message is none, but says how the worker is isolated.

        Raises:
            ProtocolError: It is no acceptable message.
        """
        reply = self._receiver.take()
        if reply is None or self.isolation is not None:
            return reply
        self.isolation = _believed(reply)
        return self._receiver.take()

    def confirm(self) -> None:
        """Make sure that nobody has ended the worker, or the server, which would have cleaned up behind it.

        Raises:
            WorkerLost: Somebody has; it is gone.
        """
        if self.is_closed or not self._server.is_alive() or self._has_ended():
            self.close()
            raise WorkerLost(self._end_in_words())

    def printed(self) -> str:
        """What the worker has printed since this was last asked: head and tail."""
        if not self._is_closed:
            self._drain()
        kept, self._kept = self._kept, KeptOutput()
        return kept.text()

    def close(self) -> None:
        """Kill the worker and everything that it started; remove its folder."""
        if self._is_closed:
            return
        self._kill()
        self._end_orphan()
        self._drain()
        self._is_closed = True
        self._selector.close()
        self._channel.close()
        os.close(self._output)
        if self._handle is not None:
            os.close(self._handle)
        if not self._is_orphaned:
            self._server.forget(self.pid)
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _is_orphaned(self) -> bool:
        """Whether the server that forked it is gone."""
        return self._server.generation != self._generation

    def _has_ended(self) -> bool:
        return not self._is_orphaned and self._server.exit_of(self.pid) is not None

    def _wait(self, seconds: float) -> None:
        """Take in whatever arrives first."""
        for key, _ in self._selector.select(seconds):
            if key.fileobj is self._channel:
                try:
                    self._receiver.fill(wait=False)
                except ChannelClosed:
                    self._end_silent_worker()
            elif key.fileobj == self._output:
                self._drain()
            else:
                self._read_reports()

    def _read_reports(self) -> None:
        try:
            self._server.read_reports()
        except (ChannelClosed, ProtocolError) as error:
            self._server.close()
            raise WorkerLost(f"the worker server died under this worker: {error}") from error

    def _drain(self) -> None:
        for _ in range(64):  # a flood must not keep the judge here
            try:
                data = os.read(self._output, 1 << 16)
            except BlockingIOError:
                return
            if not data:
                if self._output in self._selector.get_map():
                    self._selector.unregister(self._output)
                return
            self._kept.add(data)

    def _end_silent_worker(self) -> None:
        """Its channel is closed: either it is ending by itself, or it can say nothing any more."""
        if self._channel in self._selector.get_map():
            self._selector.unregister(self._channel)
        end = time.monotonic() + _STACK_SECONDS
        while not self._has_ended() and (left := end - time.monotonic()) > 0:
            self._wait(left)
        if not self._has_ended():
            self._reason_to_kill = "the worker closed its channel to the judge and was killed"
            self._kill()

    def _ask_for_stack(self) -> None:
        """Have the worker print where it hangs, if it still can."""
        if self._handle is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, signal.SIGUSR1)
        end = time.monotonic() + _STACK_SECONDS
        while (left := end - time.monotonic()) > 0 and not self._has_ended():
            self._wait(left)

    def _kill(self) -> None:
        """Kill the worker and wait for the server's word that nothing is left of it."""
        if self.is_closed:
            return
        try:
            self._server.kill(self.pid)
            end = time.monotonic() + _EXIT_SECONDS
            with selectors.DefaultSelector() as selector:
                selector.register(self._server.channel, selectors.EVENT_READ)
                while not self._has_ended() and (left := end - time.monotonic()) > 0:
                    if selector.select(left):
                        self._server.read_reports()
        except (ChannelClosed, ProtocolError, OSError):
            self._server.close()  # takes every worker with it

    def _end_orphan(self) -> None:
        """Kill a worker whose server has died; the system does so too, unless a solution has told it not to."""
        if self._has_ended() or self._handle is None:
            return
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)
            is_readable(self._handle, _EXIT_SECONDS)  # it is when the process has ended

    def _end_in_words(self) -> str:
        ended = self._server.exit_of(self.pid)
        if ended is not None and ended.reason:
            return ended.reason
        if self._reason_to_kill is not None:
            return self._reason_to_kill
        if self._is_orphaned:
            return "the worker server died under this worker"
        if ended is None:
            return "the worker is gone"
        if os.WIFSIGNALED(ended.wait_status):
            number = os.WTERMSIG(ended.wait_status)
            names = {int(member): member.name for member in signal.Signals}  # without most real-time signals
            return f"the worker was ended by {names.get(number, number)} ({signal.strsignal(number)})"
        status = os.WEXITSTATUS(ended.wait_status)
        return f"the worker exited with status {status} before it answered"


def _believed(message: object) -> Isolation:
    """How a worker is isolated, by its first message, which it sends before it has read a solution.

    Raises:
        ProtocolError: The message says something else.
    """
    if not isinstance(message, Settled):
        raise ProtocolError(f"the first message was {type(message).__name__}, not Settled")
    try:
        held = {name: frozenset(map(Threat, threats)) for name, threats in message.held.items()}
    except ValueError as error:
        raise ProtocolError(str(error)) from error
    return Isolation(held, message.missing)


def _open_process(pid: int) -> int | None:
    """A descriptor that stands for a process, whatever becomes of its number; None if it has ended."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None
