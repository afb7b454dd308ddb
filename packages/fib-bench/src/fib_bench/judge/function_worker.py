"""Workers of functions: a solution, a definition's reference or a baseline is built, sealed, asked and watched here.

Values that a worker reports are untrusted. Its replies become verdicts here; that its code is what its files say, that
it is sealed, and that it is idle after its replies is read from outside.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

import attrs
import msgspec
from fib_schema import Definition, EvaluationStatus, Solution, format_json

from ..checking.comparison import Comparison
from ..timing.handshake.native import TABLE_BYTES
from ..transport.messages import (
    Build,
    Built,
    ComposePass,
    DeviceOpened,
    Done,
    Failed,
    OpenDevice,
    Seal,
    Tampered,
    Uncapturable,
    WorkerRequest,
    WrongOutput,
)
from ..worker.client import ForkServerClient, Worker, WorkerLost
from ..worker.outside_checks import (
    NotPermitted,
    memory_digest,
    modified_text,
    open_memory_files,
    read_short,
    seccomp_filters,
)
from .device import DeviceContext

_MAX_REASON = 20_000  # characters; a worker keeps to less, but it is not believed
STATUS_OF_ASPECT = {
    "shape": EvaluationStatus.INCORRECT_SHAPE,
    "dtype": EvaluationStatus.INCORRECT_DTYPE,
    "kind": EvaluationStatus.RUNTIME_ERROR,
    "lazy": EvaluationStatus.REWARD_HACK,
}
"""The verdict on an output that does not fit the definition, by kind of mismatch."""
_SCHEDULED = 2  # CPUCLOCK_SCHED: the clock of a process includes its threads, also those that have ended
_LOOK_SECONDS = 0.003
_SETTLE_SECONDS = 0.5  # more than twice the spin time of a thread pool
_IDLE_CORES = 0.25
_MIN_SECONDS = 0.1  # of observation before a verdict
R = TypeVar("R")


class Rejected(Exception):
    """A solution's evaluation has ended without success."""

    def __init__(self, status: EvaluationStatus, message: str, comparisons: Sequence[Comparison] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.comparisons = tuple(comparisons)

    def with_evidence(self, evidence: str) -> Rejected:
        """Return the rejection as `REWARD_HACK` if outputs are wrong and there is evidence for an exploit."""
        if not evidence or self.status is not EvaluationStatus.INCORRECT_NUMERICAL:
            return self
        return Rejected(EvaluationStatus.REWARD_HACK, f"{evidence}\n{self.message}", self.comparisons)


class NotCapturable(Exception):
    """The function must be timed without CUDA graphs, in a fresh worker."""


def check_reply(reply: object, request: WorkerRequest, answer: type[R]) -> R:
    """Return the reply to a request if it is of the expected type.

    Raises:
        Rejected: The worker reports a failure of the solution.
        NotCapturable: It cannot capture the function.
        WorkerLost: It answers something else.
    """
    match reply:
        case Tampered(what=what):
            raise Rejected(EvaluationStatus.REWARD_HACK, f"in its process the solution {what}"[:_MAX_REASON])
        case Failed(stage="build", detail=detail):
            raise Rejected(EvaluationStatus.COMPILE_ERROR, detail[:_MAX_REASON])
        case Failed(detail=detail):
            raise Rejected(EvaluationStatus.RUNTIME_ERROR, detail[:_MAX_REASON])
        case WrongOutput(aspect=aspect, problem=problem):
            status = STATUS_OF_ASPECT.get(aspect, EvaluationStatus.RUNTIME_ERROR)
            raise Rejected(status, problem[:_MAX_REASON])
        case Uncapturable(problem=problem) if isinstance(request, ComposePass):
            raise NotCapturable(problem[:_MAX_REASON])
    if not isinstance(reply, answer):
        problem = f"the worker answered {type(request).__name__} with {reply!r:.200}"
        raise WorkerLost(problem, is_forgery=True)
    return reply


class FunctionWorker:
    """A function and the worker that holds it; a lost worker is replaced by a fresh one.

    Args:
        server: Starts workers.
        request: What to build.
        context: The device.
    """

    def __init__(self, server: ForkServerClient, request: Build, context: DeviceContext) -> None:
        self._server, self._request, self.context = server, request, context
        self.worker: Worker = server.spawn()
        self.may_capture = True
        self.not_captured = ""
        """Reason that its calls cannot be captured; empty if they can."""
        self.padding_problem = ""
        """Reason that it is not right with padded indices; empty unless a check has failed."""
        self.has_setup = False
        self.is_profiled = False
        """Whether its kernels have been profiled, which is done on one workload."""
        self.may_seal = True
        """Whether it is sealed before timing; not after a sealed worker failed where another one did not."""
        self.is_sealed = False
        self._table, self._table_digest = 0, ""  # of the native module, before a solution was loaded
        self._is_ahead = self._is_used = self._is_built = False
        self._compile_error = ""

    @property
    def is_ready(self) -> bool:
        """Whether its worker has built the function and may be given further workloads."""
        return self._is_built and not self.worker.is_closed and not self.is_sealed

    def begin(self) -> None:
        """Create the device context, then start compilers without waiting; no code of the solution runs yet."""
        try:
            with self.context.device_work():
                self._open_device()
            self.worker.post(self._ahead)
            self._is_ahead = True
        except (WorkerLost, Rejected):
            pass  # the build reports it

    def build(self) -> None:
        """Build and load the function, in a fresh worker if it has been built before; what does not compile, once."""
        if self._compile_error:
            raise Rejected(EvaluationStatus.COMPILE_ERROR, self._compile_error)
        if self._is_used:
            self.worker.close()
            self.worker = self._server.spawn()
        self._is_used, self._is_built, self.is_sealed = True, False, False
        try:
            self._build()
        except Rejected as error:
            if error.status is EvaluationStatus.COMPILE_ERROR:
                self._compile_error = error.message
            raise
        self._is_built = True

    def _build(self) -> None:
        if self._is_ahead:
            self.context.settle()  # the build waits for compilers, for which other judges need not wait
            self._finish_ahead()
        with self.context.device_work():
            self._open_device()
        self.context.settle()
        self.has_setup = self._ask(self._request, Built).has_setup

    def seal(self) -> None:
        """Seal the worker of a CUDA device.

        On the CPU honest functions start threads when they are called, and latencies are not ranked.
        """
        if self.context.is_cuda:
            before = _filter_counts(self.worker)
            self._ask(Seal(), Done)
            after = _filter_counts(self.worker)
            self.is_sealed = bool(after) and min(after.values()) > max(before.values(), default=0)

    def check_code(self, trusted: Worker | None) -> str:
        """Check that nobody has changed the worker's code, as `check_code` does."""
        return check_code(self.worker, trusted, self._table, self._table_digest)

    def _ask(self, request: WorkerRequest, answer: type[R]) -> R:
        return check_reply(self.worker.request(request, seconds=self.context.timeout_seconds), request, answer)

    def _open_device(self) -> None:
        """Record digests of the native module of a CUDA worker before a solution is loaded."""
        if not self.context.is_cuda:
            return
        self._table = self._ask(OpenDevice(self._request), DeviceOpened).table
        self._table_digest = ""
        with suppress(NotPermitted, ProcessLookupError):
            if self._table:
                self._table_digest = memory_digest(self.worker.pid, self._table, TABLE_BYTES)

    def _finish_ahead(self) -> None:
        """Wait for the compilation that was started ahead: a compile error is not tried twice."""
        self._is_ahead = False
        try:
            check_reply(self.worker.answer(self.context.timeout_seconds), self._ahead, Built)
        except Rejected as error:
            if error.status is EvaluationStatus.COMPILE_ERROR:
                raise
            # the device may have been full of another solution's memory: the build decides

    @property
    def _ahead(self) -> Build:
        return msgspec.structs.replace(self._request, is_ahead=True)


def solution_request(device: str, definition: Definition, solution: Solution, cache_key: str = "") -> Build:
    """The build request of a solution: the definition without its reference."""
    without = attrs.evolve(definition, reference="def run(*inputs):\n    raise NotImplementedError\n")
    return Build(device, format_json(without), format_json(solution), cache_key=cache_key)


def reference_request(device: str, definition: Definition) -> Build:
    """The build request of a reference."""
    return Build(device, format_json(definition), None)


# -- checks from outside -------------------------------------------------------------------------------------


def _filter_counts(worker: Worker) -> Mapping[int, int]:
    """The number of system call filters of each thread of a worker; empty where the system does not report it."""
    try:
        return seccomp_filters(worker.pid)
    except (NotPermitted, ProcessLookupError):
        return {}


def check_code(worker: Worker, trusted: Worker | None, table: int, digest: str) -> str:
    """Check that nobody has changed the code of a worker.

    Its libraries are compared with those of a trusted worker, so that one which patches itself accuses nobody.

    Args:
        worker: It holds a solution.
        trusted: It has never run code of a solution.
        table: Where the native module's table lies.
        digest: Of the table, before a solution was there.

    Returns:
        Why that could not be checked; empty if it was.
    """
    try:
        found = open_memory_files(worker.pid)
        if (changed := modified_text(worker.pid)) and trusted is not None:
            expected = {_place(line) for line in modified_text(trusted.pid)}
            changed = [line for line in changed if _place(line) not in expected]
        found += changed
        if digest and memory_digest(worker.pid, table, TABLE_BYTES) != digest:
            found.append("the table of driver functions differs from what it was")
    except NotPermitted as error:
        return str(error)
    except ProcessLookupError:
        return "the worker has ended"
    if found:
        problem = f"the worker's code was changed: {'; '.join(found[:5])}"
        raise Rejected(EvaluationStatus.REWARD_HACK, problem)
    return "" if digest else "the table of driver functions could not be read before the solution was loaded"


def _place(line: str) -> str:
    """The file in a line of `modified_text`."""
    return os.path.basename(line.partition(" at ")[0])  # noqa: PTH119 a name in a sentence


class BackgroundActivity:
    """Observes one worker while it has nothing to do: work must end when a call returns.

    Pools of threads spin for a while after a parallel region, up to 0.2 s. So the judge first waits until the worker is
    idle and measures only then. From that moment on nothing is excused: whatever the worker and its children run while
    other functions are timed counts. Processor time, and the time that threads wait for a processor, are read from the
    kernel: other work on the machine neither adds to them nor hides them.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._seconds = self._used_seconds = 0.0
        self._since: tuple[float, float] | None = None
        """The begin of the observation, and the seconds that had been used until then."""

    def begin(self) -> None:
        """Wait until the worker is idle, and observe it from then on."""
        end, cores = time.monotonic() + _SETTLE_SECONDS, math.inf
        while cores > _IDLE_CORES and time.monotonic() < end:
            cores, self._since = self._look(_LOOK_SECONDS)
        if cores > _IDLE_CORES:
            self._decide()

    def end(self) -> None:
        """Stop observing: the worker is about to get a request."""
        if self._since is not None:
            self._seconds += time.monotonic() - self._since[0]
            self._used_seconds += max(self._used() - self._since[1], 0.0)
            self._since = None

    def check(self) -> None:
        """Decide, after the last reply of the worker."""
        if self._since is None:
            self.begin()
        cores, _ = self._look(_LOOK_SECONDS)
        self.end()
        if max(cores, self._cores) > _IDLE_CORES:
            self._decide()

    def _decide(self) -> None:
        """Observe once more, for long enough; that and all observations together decide."""
        self.end()
        cores, _ = self._look(_MIN_SECONDS)
        if self._seconds >= _MIN_SECONDS:
            cores = max(cores, self._cores)
        if cores > _IDLE_CORES:
            problem = f"background activity: the worker used {cores:.1f} CPU cores after its last reply"
            raise Rejected(EvaluationStatus.REWARD_HACK, f"{problem}; work must end when a call returns")

    @property
    def _cores(self) -> float:
        return self._used_seconds / max(self._seconds, _LOOK_SECONDS)

    def _look(self, seconds: float) -> tuple[float, tuple[float, float]]:
        """Cores used during some time from now on; its end, and the seconds used until then."""
        begin, before = time.monotonic(), self._used()
        time.sleep(seconds)
        used = self._used()
        end = time.monotonic()
        return (used - before) / (end - begin), (end, used)

    def _used(self) -> float:
        """Seconds that the worker and its children have run, and that their threads have waited for a processor.

        On a busy machine a thread that is always runnable gets a small share of a processor.
        """
        pids = [self._worker.pid, *self._worker.started()]
        return cpu_seconds(pids) + sum(_waited_ns(pid) for pid in pids) / 1e9


def _waited_ns(pid: int) -> int:
    """Nanoseconds that the threads of a process have waited in run queues; 0 where the kernel does not report it."""
    waited = 0
    with suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/task"):
            with suppress(OSError):
                waited += int(read_short(f"{entry.path}/schedstat").split()[1])
    return waited


def cpu_seconds(pids: Iterable[int]) -> float:
    """The processor time that some processes have used so far; one that has ended counts for nothing."""
    nanoseconds = 0
    for pid in pids:
        with suppress(OSError):
            nanoseconds += time.clock_gettime_ns(~pid << 3 | _SCHEDULED)
    return nanoseconds / 1e9
