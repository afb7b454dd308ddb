"""Clients of the fork server and of its workers, in the judge.

`ForkServerClient` starts the fork server, asks it for workers, and records how they end. `Worker` is the handle on one
of them. Each of its waits is bounded and watches three sources at once: the worker's channel, its output, and the
server's reports. A worker that ends or takes too long raises `WorkerLost` with the reason, which is a result of its
solution and no error of the benchmark. A server that dies takes its workers with it: that is an error of the benchmark,
`WorkerPoolFailed`, and says nothing about a solution. So is a worker without a solution that something has killed.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from fib_compile.toolchain import VARIABLES_VARIABLE, compiler_environment
from fib_schema import EvaluationStatus, get_fib_cache_path

from ..errors import WorkerPoolFailed
from ..sandbox.model import LIMIT_VARIABLE, Isolation
from ..sandbox.processes import SPARE_UIDS
from ..temporary_folders import TemporaryFolder, remove_abandoned
from ..transport import messages
from ..transport.protocol import MAX_REPLY_BYTES, ChannelClosed, ProtocolError, Receiver, is_readable, send

if TYPE_CHECKING:
    from ..checking.comparison import Comparison

_START_SECONDS, _SPAWN_SECONDS, _EXIT_SECONDS = 120.0, 30.0, 10.0
_STACK_SECONDS = 0.5
_MOST_COMPILE_SECONDS = 900.0  # of a call, above its limit
_PAUSED, _TURN_SECONDS = messages.Paused(), 0.2  # of a reference, until others that wait go first
_MOST_NOTED = 300  # configurations, and characters of each
_DYING_SECONDS = 3.0  # the kernel takes up to a second to end a process that crashed
_KEPT_BYTES = 8_000
_SERVER_DIED = "it died, and its workers with it"
_INHERITED = frozenset({
    "PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "CC", "CXX",
    "CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES", "CUTLASS_PATH", "CUTLASS_HOME", "TRITON_INTERPRET",
    "GOMP_SPINCOUNT", "OMP_NUM_THREADS", "OMP_PLACES", "OMP_PROC_BIND",
    LIMIT_VARIABLE, VARIABLES_VARIABLE, messages.COMPILE_SECONDS_VARIABLE,
})  # fmt: skip
_OWN_OF_WORKERS = ("HOME", "TMPDIR", "LC_ALL")
_MAX_READS = 64  # of 64 KiB; a flood of output must not block the judge
_PIPE_BYTES = 1 << 20  # the judge reads rarely while it times a call
_MAX_REASON = 20_000  # characters; a worker keeps to less, but it is not believed
_STATUS_OF_FAILURE = {
    "build": EvaluationStatus.COMPILE_ERROR,
    "shape": EvaluationStatus.INCORRECT_SHAPE,
    "dtype": EvaluationStatus.INCORRECT_DTYPE,
    "lazy": EvaluationStatus.REWARD_HACK,
    "stream": EvaluationStatus.INCORRECT_NUMERICAL,
    "tampered": EvaluationStatus.REWARD_HACK,
}
"""The verdict by kind of `Failed`, where it is not `RUNTIME_ERROR`."""
R = TypeVar("R")


class Rejected(Exception):
    """A solution's evaluation has ended without success."""

    def __init__(self, status: EvaluationStatus, message: str, comparisons: Sequence[Comparison] = ()) -> None:
        super().__init__(message)
        self.status, self.message, self.comparisons = status, message, tuple(comparisons)


class NotCapturable(Exception):
    """The function must be timed without CUDA graphs, in a fresh worker."""


class WorkerLost(Exception):
    """A worker that has ended, took too long (`is_timeout`), or sent what the harness never sends (`is_forgery`)."""

    def __init__(self, reason: str, *, is_timeout: bool = False, is_forgery: bool = False) -> None:
        super().__init__(reason)
        self.is_timeout, self.is_forgery = is_timeout, is_forgery
        self.is_killed: bool = reason.startswith("the worker was ended by SIGKILL")
        """Whether something else than the judge killed it: itself, or a system that is short of memory."""


class KeptOutput:
    """The head and the tail of a text of any length."""

    def __init__(self, kept_bytes: int = _KEPT_BYTES) -> None:
        self._kept, self._dropped = kept_bytes, 0
        self._data = bytearray()

    def add(self, data: bytes) -> None:
        """Append the bytes read."""
        self._data += data
        if (excess := len(self._data) - 2 * self._kept) > 0:
            del self._data[self._kept : self._kept + excess]
            self._dropped += excess

    def text(self) -> str:
        """The kept bytes as text, with a note where bytes were dropped."""
        gap = f"\n... {self._dropped} bytes dropped ...\n" if self._dropped else ""
        return (self._data[: self._kept] + gap.encode() + self._data[self._kept :]).decode("utf-8", "replace")


class Worker(AbstractContextManager["Worker"]):
    """One worker process: its channel, its output, and its exit; a context manager that ends it.

    It prints to a pipe, whose end `output` is non-blocking; its home, the folder, is removed when it is closed.
    """

    def __init__(
        self, server: ForkServerClient, pid: int, channel: socket.socket, output: int, folder: TemporaryFolder
    ) -> None:
        self.pid, self.server = pid, server
        self.isolation: Isolation | None = None
        self._handle: int | None = None
        with suppress(ProcessLookupError):  # it may have ended
            self._handle = os.pidfd_open(pid)  # valid even if its number is used again
        self._channel, self._output, self._folder = channel, output, folder
        self._receiver = Receiver(channel, messages.WorkerReply, MAX_REPLY_BYTES)
        self._replies = self._receiver.messages
        self._printed = KeptOutput()
        self._sources: dict[Any, Any] = {channel: self._read_replies, output: self._read_output}
        self._sources[server.channel] = self._read_reports
        self._is_closed = self._is_killed = False
        self._asked: msgspec.Struct
        self._reason_to_kill = ""
        self.is_of_harness = False
        """Whether it runs no solution."""
        self.waited_seconds = 0.0
        """For replies and the ends of calls, but for compilers."""
        self.is_wanted: Callable[[], bool] = lambda: False
        """Whether others wait for the device while a reference is called, which is paused then."""
        self.give_way: Callable[[], object] = lambda: None
        """Lets those who wait go first."""
        self._is_pausing, self._paused_seconds, self._since = False, 0.0, 0.0
        self.not_compiled: dict[str, None] = {}
        """Configurations that its kernels do without, with reasons; untrusted."""

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_closed(self) -> bool:
        """Whether it has ended."""
        return self._is_closed or self._has_ended or self.server.has_ended

    @property
    def _has_ended(self) -> bool:
        return self.pid in self.server.exits

    def request(
        self, request: msgspec.Struct, reply: type[R], descriptors: tuple[int, ...] = (), *, seconds: float
    ) -> R:
        """Send a request and return the reply to it; `WorkerPoolFailed` if the server has died.

        Raises:
            WorkerLost: The worker ended, broke the protocol or took too long, and is closed; or it replied otherwise.
            Rejected: It reports a failure of the solution.
            NotCapturable: It cannot capture the function.
        """
        self.post(request, descriptors=descriptors)
        return self.answer(reply, seconds)

    def request_each(
        self, requests: Sequence[msgspec.Struct], reply: type[R], *, seconds: float, most_seconds: float
    ) -> list[R]:
        """Send requests at once and return the replies, for all of which there are `most_seconds`, as `request`."""
        self.post(*requests)
        end = self._seconds() + most_seconds
        replies = [self._receive(max(min(seconds, end - self._seconds()), 0.0)) for _ in requests]
        return [self._checked(each, reply) for each in replies]

    def post(self, *requests: msgspec.Struct, descriptors: tuple[int, ...] = ()) -> None:
        """Send requests; `answer` waits for the reply to each. Raises like `request`."""
        self._raise_if_closed()
        if not all(isinstance(reply, messages.Compiling) for reply in self._replies):
            self.close()
            asked, reply = type(requests[0]).__name__, self._replies[0]
            raise WorkerLost(f"the worker answered {asked} with {reply!r:.200} before it was asked", is_forgery=True)
        self._asked, self._since = requests[-1], self._seconds()
        try:
            send(self._channel, *requests, descriptors=descriptors)
        except ChannelClosed as error:
            self._end_silent_worker()
            self._raise_if_closed()
            raise WorkerLost(self._reason_to_kill) from error

    def answer(self, reply: type[R], seconds: float) -> R:
        """Wait for the reply to the last request; raises like `request`."""
        return self._checked(self._receive(seconds), reply)

    def _receive(self, seconds: float) -> object:
        may_compile = isinstance(self._asked, messages.Call) and self._asked.is_first
        begin = self._seconds()
        deadline = begin + seconds
        latest = deadline + (_MOST_COMPILE_SECONDS if may_compile else 0.0)
        while self._is_pausing or not self._replies or isinstance(self._replies[0], messages.Compiling):
            if self._is_pausing and _PAUSED in self._replies:
                self._let_others_go_first()
                continue
            if self._replies and isinstance(note := self._replies[0], messages.Compiling):
                self._replies.popleft()
                begin = self._seconds()
                deadline, room = min(begin + seconds, latest), _MOST_NOTED - len(self.not_compiled)
                self.not_compiled |= dict.fromkeys(text[:_MOST_NOTED] for text in note.not_compiled[:room])
                continue
            self._raise_if_closed()
            if (left := deadline - self._seconds()) <= 0:
                self._ask_for_stack()
                self.close()
                raise WorkerLost(f"no answer within {round(seconds, 3):g} s; the worker was killed", is_timeout=True)
            self._wait(min(left, _TURN_SECONDS))
            is_long = isinstance(self._asked, messages.Call) and self._seconds() - self._since > _TURN_SECONDS
            if is_long and not self._is_pausing and not self._replies and self.is_wanted():
                self._is_pausing = self._signal(messages.PAUSE)
        self.waited_seconds += min(self._seconds() - begin, seconds)  # the judge may have been stopped meanwhile
        return self._replies.popleft()

    def _let_others_go_first(self) -> None:
        """Have the paused worker go on after those who wait for the device."""
        self._replies.remove(_PAUSED)
        begin = time.monotonic()
        try:
            self.give_way()
        finally:
            self._paused_seconds += time.monotonic() - begin
            self._is_pausing, self._since = False, self._seconds()
            self._signal(messages.GO_ON)

    def _seconds(self) -> float:
        """Seconds of the monotonic clock without pauses."""
        return time.monotonic() - self._paused_seconds

    def _signal(self, number: signal.Signals) -> bool:
        """Send a signal to the worker; returns whether it is there, and this process may."""
        with suppress(ProcessLookupError, PermissionError):
            if self._handle is not None:
                signal.pidfd_send_signal(self._handle, number)
                return True
        return False

    def _checked(self, reply: object, expected: type[R]) -> R:
        if isinstance(reply, messages.Failed) and reply.kind != "capture":
            status = _STATUS_OF_FAILURE.get(reply.kind, EvaluationStatus.RUNTIME_ERROR)
            raise Rejected(status, reply.detail[:_MAX_REASON])
        if isinstance(reply, messages.Failed) and expected is messages.Composed:
            raise NotCapturable(reply.detail[:_MAX_REASON])
        if not isinstance(reply, expected):
            problem = f"the worker answered {type(self._asked).__name__} with {reply!r:.200}"
            raise WorkerLost(problem, is_forgery=True)
        return reply

    def has_answered(self) -> bool:
        """Read what has arrived; whether the answer to the last request is there, or none will come."""
        if not self.server.has_ended:
            self._wait(0.0)
        return self.is_closed or bool(self._replies)

    def confirm(self) -> None:
        """Check that the worker runs, and the server too, which kills what a worker leaves; raises like `request`."""
        self.server.ping()
        self._raise_if_closed()

    def _raise_if_closed(self) -> None:
        self.server.raise_if_ended()
        if self.is_closed:
            lost = WorkerLost(self._end_in_words())
            if lost.is_killed and self.is_of_harness:
                raise WorkerPoolFailed(f"it lost a worker without a solution: {lost}")
            raise lost

    def printed(self) -> str:
        """Output of the worker since the last call: head and tail."""
        if not self._is_closed:
            self._read_output()
        text, self._printed = self._printed.text(), KeptOutput()
        return text

    def kill(self) -> None:
        """Have the worker killed without waiting; `close` waits until it and all that it started have ended."""
        if not self.is_closed and not self._is_killed:  # later its number may have gone to another worker
            with suppress(ChannelClosed, OSError):  # of the server, which `close` finds out
                send(self.server.channel, messages.Kill(self.pid))
                self._is_killed = True

    def close(self, *, unless: Connection | None = None) -> bool:
        """Kill the worker and all that it started, and remove its folder; False if `unless` gets a message before."""
        if self._is_closed:
            return True
        self.kill()
        if not self._await_end(unless):
            return False
        if self._handle is not None:
            if not self._has_ended:  # its server has died; the system kills it too, unless a solution has disabled that
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._handle, signal.SIGKILL)
                    is_readable(self._handle, _EXIT_SECONDS)  # it is when the process has ended
            os.close(self._handle)
        self._read_output()
        self._is_closed = True
        self._channel.close()
        os.close(self._output)
        self.server.exits.pop(self.pid, None)
        self.server.workers.discard(self.pid)
        self._folder.remove()
        return True

    def _await_end(self, unless: Connection | None) -> bool:
        """Wait until the server reports that all have ended; returns whether no message to `unless` came first."""
        end = time.monotonic() + _EXIT_SECONDS
        sources = [source for source in (self.server.channel, unless) if source is not None]
        try:
            while not self.is_closed and (left := end - time.monotonic()) > 0:
                ready = wait(sources, left)
                if unless in ready:
                    return False
                if ready:
                    self.server.read_reports()
        except (ChannelClosed, ProtocolError, OSError):
            self.server.close()  # takes every worker with it
        return True

    def _wait_for_end(self, seconds: float) -> None:
        """Read what arrives until the worker has ended, or some time has passed."""
        end = time.monotonic() + seconds
        while not self._has_ended and (left := end - time.monotonic()) > 0:
            self._wait(left)

    def _end_silent_worker(self) -> None:
        """Wait briefly for the exit of a worker whose channel is closed, then kill it."""
        self._sources.pop(self._channel, None)
        self._wait_for_end(_DYING_SECONDS)
        if not self._has_ended:
            self._reason_to_kill = "the worker closed its channel to the judge and was killed"
            self.kill()
            self._await_end(None)

    def _ask_for_stack(self) -> None:
        """Have the worker print its stack, if it still can."""
        self._signal(signal.SIGUSR1)
        self._wait_for_end(_STACK_SECONDS)

    def _end_in_words(self) -> str:
        ended = self.server.exits.get(self.pid)
        if ended is None:
            return self._reason_to_kill or "the worker has ended"
        if reason := ended.reason or self._reason_to_kill:
            return reason
        if os.WIFSIGNALED(ended.wait_status):
            number = os.WTERMSIG(ended.wait_status)
            names = {int(member): member.name for member in signal.Signals}  # without most real-time signals
            return f"the worker was ended by {names.get(number, number)} ({signal.strsignal(number)})"
        return f"the worker exited with status {os.WEXITSTATUS(ended.wait_status)} before it answered"

    def _wait(self, seconds: float) -> None:
        """Wait for the channel, the output or the server's reports, and read available data."""
        for read in [self._sources[source] for source in wait(self._sources, seconds)]:
            read()

    def _read_replies(self) -> None:
        """Read replies. The first message is none: it reports the isolation."""
        try:
            self._receiver.fill(wait=False)
            if self._replies and self.isolation is None:
                settled = self._replies.popleft()
                if not isinstance(settled, messages.Settled):
                    raise ProtocolError(f"the first message was {type(settled).__name__}, not Settled")
                self.isolation = settled.isolation
        except ChannelClosed:
            self._end_silent_worker()
        except ProtocolError as error:
            self.close()
            raise WorkerLost(f"the worker broke the protocol and was killed: {error}", is_forgery=True) from error

    def _read_output(self) -> None:
        for _ in range(_MAX_READS):
            try:
                data = os.read(self._output, 1 << 16)
            except BlockingIOError:
                return
            if not data:
                self._sources.pop(self._output, None)
                return
            self._printed.add(data)

    def _read_reports(self) -> None:
        try:
            self.server.read_reports()
        except (ChannelClosed, ProtocolError) as error:
            self.server.close()
            raise WorkerPoolFailed(_SERVER_DIED) from error


def end_all(workers: Collection[Worker]) -> None:
    """Close workers, which end at the same time."""
    for worker in workers:
        worker.kill()
    for worker in workers:
        worker.close()


class ForkServerClient(AbstractContextManager["ForkServerClient"]):
    """The judge's side of a fork server; a context manager that stops the server and all its workers.

    Workers may not read the folders `hidden`. For the device ``cpu``, Triton and Helion run in their interpreters.
    """

    def __init__(self, device: str, hidden: Iterable[Path] = ()) -> None:
        self.has_ended = False
        """Whether it has died or was stopped: its workers have ended without a report, and it starts no others."""
        self.channel: socket.socket
        """The socket on which the server reports ends of workers."""
        self.processes: tuple[int, ...] = ()
        """The server while it runs. Its children are `workers`, and processes that have left one of them."""
        self.workers: set[int] = set()
        self.exits: dict[int, messages.Exited] = {}
        """Reports of the ends of workers, by process."""
        self._device, self._hidden = device, tuple(path.resolve() for path in hidden)
        self._process: subprocess.Popen[bytes] | None = None
        self._receiver: Receiver
        self._spawned: list[int] = []
        self._is_ready = self._has_answered = False

    def __exit__(self, *_: object) -> None:
        self.close()

    def launch(self) -> None:
        """Start the server process if it was not started, without waiting for it."""
        self.raise_if_ended()
        if self._process is not None:
            return
        remove_abandoned(SPARE_UIDS if os.geteuid() == 0 else ())
        self.channel, theirs = socket.socketpair()
        python = [sys.executable, "-P", "-m"]  # the current folder is not a place to import from
        with theirs:
            self._process = subprocess.Popen(
                [*python, f"{__package__}.fork_server", str(theirs.fileno()), self._device, *self._hidden],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=2,  # text that an import prints is not a result
                env=server_environment(self._device),
                start_new_session=True,
            )
        self.processes = (self._process.pid,)
        self._receiver = Receiver(self.channel, messages.ServerReply, MAX_REPLY_BYTES)

    def start(self) -> None:
        """Start the server process if it was not started, and wait until it serves; `spawn` does so too."""
        self.launch()
        if self._is_ready:
            return
        self.channel.settimeout(_START_SECONDS)
        try:
            self._receiver.receive()
        except (ChannelClosed, ProtocolError, TimeoutError) as error:
            raise WorkerPoolFailed(f"it did not start (its messages are above): {error}") from error
        self.channel.settimeout(None)
        self._is_ready = True

    def spawn(self) -> Worker:
        """A fresh worker; raises `WorkerPoolFailed` if the server does not start, or has ended."""
        self.start()
        folder = TemporaryFolder()
        ours, theirs = socket.socketpair()
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(read_end, False)
        with suppress(PermissionError):  # the user has many pipes: what prints much is slower
            fcntl.fcntl(read_end, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        try:
            send(self.channel, messages.Spawn(str(folder.path)), descriptors=(theirs.fileno(), write_end))
            while not self._spawned:
                if not is_readable(self.channel, _SPAWN_SECONDS):
                    raise ChannelClosed(f"nothing within {_SPAWN_SECONDS:g} s")  # a solution may have stopped it
                self.read_reports()
        except BaseException as error:
            ours.close()
            os.close(read_end)
            folder.remove()
            if not isinstance(error, (ChannelClosed, ProtocolError)):
                raise
            self.close()
            raise WorkerPoolFailed(f"no worker came: {error}") from error
        finally:
            theirs.close()
            os.close(write_end)
        pid = self._spawned.pop()
        self.workers.add(pid)
        return Worker(self, pid, ours, read_end, folder)

    def ping(self) -> None:
        """Close a server that was killed before this call, which does not answer."""
        self._has_answered = False
        with suppress(ChannelClosed, ProtocolError, OSError):
            send(self.channel, messages.Ping())
            while not self._has_answered and is_readable(self.channel, _EXIT_SECONDS):
                self.read_reports()
        if not self._has_answered:
            self.close()

    def close(self) -> None:
        """Stop the server and with it every worker."""
        if self._process is None:
            return
        self.channel.close()
        if not self._is_ready:
            self._process.kill()  # it has no workers, and may be importing for a while
        try:
            self._process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process, self.processes = None, ()
        self.has_ended = True

    def raise_if_ended(self) -> None:
        """Raise `WorkerPoolFailed` if it has died."""
        if self.has_ended:
            raise WorkerPoolFailed(_SERVER_DIED)

    def read_reports(self) -> None:
        """Read the server's reports that have arrived."""
        self._receiver.fill(wait=False)
        while self._receiver.messages:
            match message := self._receiver.messages.popleft():
                case messages.Spawned(pid=pid):
                    self._spawned.append(pid)
                case messages.Exited(pid=pid):
                    self.exits[pid] = message
                case messages.Pong():
                    self._has_answered = True


def server_environment(device: str) -> dict[str, str]:
    """The variables for a device: some of the judge's, and fixed ones."""
    # Workers find the libraries that were compiled ahead only if they would pass compilers the same variables.
    own = {name: value for name, value in compiler_environment().items() if name not in _OWN_OF_WORKERS}
    inherited = own | {name: value for name, value in os.environ.items() if name in _INHERITED}
    fixed = {
        "OPENBLAS_NUM_THREADS": "1",  # a thread started by an import would not survive a fork
        "PYTHONUNBUFFERED": "1",
        "PYTHONSAFEPATH": "1",
        "FIB_CACHE_PATH": str(get_fib_cache_path().absolute()),  # workers have other homes and folders
        "TORCHINDUCTOR_COMPILE_THREADS": "1",  # more start a pool of processes, seconds after the call that compiles
    }
    if device != "cpu":
        return inherited | fixed | {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}  # it must not initialise CUDA: it forks
    # OpenMP threads leave the judge's clock a core. They spin for half a millisecond, which spans the time between two
    # parallel regions: waking one up takes longer than many a kernel, and by default they spin for much longer.
    threads = str(max(len(os.sched_getaffinity(0)) - 1, 1))
    return {"GOMP_SPINCOUNT": "50000", "OMP_NUM_THREADS": threads} | inherited | {"TRITON_INTERPRET": "1"} | fixed
