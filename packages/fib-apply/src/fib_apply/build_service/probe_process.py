"""Probe process: a child that loads solutions one by one, or runs them, and the parent's handle of it.

The child writes a mark to a pipe before and after each job. A solution may do anything: write without end, close
every descriptor, leave processes behind, hang, crash.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from types import TracebackType

import attrs
from fib_schema import Definition, Solution, format_json, parse_json

from ..environment import ENABLE_VARIABLE
from ..log import logger
from ..memory import is_out_of_memory

_BEGIN, _END, _RAISED, _NOT_RUN = b"b", b"e", b"r", b"n"
_LOAD_ONLY = b"null"
_POLL_SECONDS = 0.05
"""Interval of checks whether the child lives: a process that it left behind can keep the pipe open."""
_EXIT_SECONDS = 10.0
_MAX_OUTPUT_BYTES = 4096
_MAX_QUOTED = 200
_MAX_READS = 64
_UNKNOWN_STATUS = 256
"""Outside the range of exit statuses."""
_EXTERNAL_SIGNALS = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGHUP})
"""Sent from outside: by the system when it is out of memory, or by a job manager."""
_PR_SET_PDEATHSIG = 1


class Cancelled(BaseException):
    """The caller no longer waits for the work."""


@attrs.frozen
class Job:
    """A solution to load, and possibly to run."""

    definition: Definition
    solution: Solution
    call: bytes = _LOAD_ONLY
    """The inputs of a run as `RecordedCall.to_json` returns them."""

    @property
    def verb(self) -> str:
        """The verb for messages: ``load`` or ``run``."""
        return "load" if self.call == _LOAD_ONLY else "run"


@attrs.frozen
class Verdict:
    """Result of one job."""

    reason: str | None
    """Reason not to use the solution in this process; None if it is safe."""
    is_reproducible: bool = True
    """Whether another probe would give the same verdict."""


def run_jobs(
    jobs: Sequence[Job], timeout_seconds: float, is_cancelled: Callable[[], bool] = lambda: False
) -> Generator[Verdict, None, None]:
    """Yield one verdict for each job in turn; starts another child process where a solution has ended one.

    Args:
        jobs: What to do.
        timeout_seconds: Maximum time for each job, and for the start of a process.
        is_cancelled: Asked while a child works.

    Raises:
        Cancelled: `is_cancelled` returned true.
    """
    while jobs:
        try:
            process = ProbeProcess(jobs, timeout_seconds, is_cancelled)
        except OSError as error:
            # An unprobed solution is not used: it could end the engine.
            yield from (Verdict(f"the probe failed: {error}", is_reproducible=False) for _ in jobs)
            return
        done = 0
        with process:
            for verdict in itertools.islice(process.verdicts(), len(jobs)):
                done += 1
                yield verdict
        jobs = jobs[done:]


class ProbeProcess:
    """A child process that does one job after another, until a solution ends it.

    Args:
        jobs: What it does.
        timeout_seconds: Maximum time for each job, and for the start of the process.
        is_cancelled: Asked while the child works.

    Raises:
        OSError: The process cannot be started.
    """

    def __init__(
        self, jobs: Sequence[Job], timeout_seconds: float, is_cancelled: Callable[[], bool] = lambda: False
    ) -> None:
        self._jobs = jobs
        self._timeout_seconds = timeout_seconds
        self._is_cancelled = is_cancelled
        self._output = bytearray()
        self._is_hung = False
        self._is_output_closed = False
        self._process, self._marks, self._printed = _launch(jobs)
        self._poll = select.poll()  # unlike select.select it takes descriptors beyond 1023, as engines have them
        self._poll.register(self._marks, select.POLLIN)
        self._poll.register(self._printed, select.POLLIN)

    def __enter__(self) -> ProbeProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def verdicts(self) -> Iterator[Verdict]:
        """Yield one verdict for each job in turn, at least one; fewer if the child ends early.

        If the child did not start, nothing was probed, and no verdict is reproducible.

        Raises:
            Cancelled: `is_cancelled` returned true.
        """
        begun = ended = 0
        while mark := self._next_mark():
            if mark == _BEGIN:
                begun += 1
                self._output.clear()
            elif mark == _END:
                ended += 1
                yield Verdict(None)
            elif mark in (_RAISED, _NOT_RUN):
                ended += 1
                yield Verdict(self._last_line(), is_reproducible=mark == _RAISED)
        if begun > ended:
            yield self._blame(self._jobs[ended])
        elif not ended:
            reason = f"the probe failed: its process did not start{self._last_output()}"
            yield from itertools.repeat(Verdict(reason, is_reproducible=False), len(self._jobs))

    def close(self) -> None:
        """Kill the child and its process group."""
        # Until the child is waited for, its zombie reserves the group's number, so that no other group is hit. If
        # other code of this process has waited for it, there is no such group.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        try:
            self._process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            logger.warning("probe process %d cannot be ended", self._process.pid)
        os.close(self._marks)
        os.close(self._printed)

    def _next_mark(self) -> bytes:
        """The next mark; empty if the child has ended or hangs."""
        deadline = time.monotonic() + self._timeout_seconds
        while True:
            ready = {descriptor for descriptor, _ in self._poll.poll(_POLL_SECONDS * 1000)}
            if self._printed in ready:
                self._read_output()
            if self._marks in ready:
                return os.read(self._marks, 1)
            if self._exit_code() is not None:
                return self._last_mark()
            if self._is_cancelled():
                raise Cancelled
            if time.monotonic() > deadline:
                self._is_hung = True
                return b""

    def _last_mark(self) -> bytes:
        """A mark written between the last poll and the end of the process."""
        try:
            return os.read(self._marks, 1)
        except BlockingIOError:
            return b""

    def _read_output(self) -> bool:
        try:
            data = os.read(self._printed, 1 << 16)
        except BlockingIOError:
            return False
        if not data and not self._is_output_closed:
            self._poll.unregister(self._printed)  # a closed pipe would always be ready
            self._is_output_closed = True
        self._output += data
        del self._output[:-_MAX_OUTPUT_BYTES]
        return bool(data)

    def _blame(self, job: Job) -> Verdict:
        if self._is_hung:
            return Verdict(f"it did not {job.verb} within {self._timeout_seconds:g} s{self._last_output()}")
        code = self._await_exit()
        child = "the process that loaded it" if job.verb == "load" else "the process that ran it"
        if code is None:
            return Verdict(f"it closed the descriptors of {child}")
        reason = f"it ended {child} {_describe_exit(code)}{self._last_output()}"
        return Verdict(reason, is_reproducible=-code not in _EXTERNAL_SIGNALS)

    def _await_exit(self) -> int | None:
        """The exit code; None if the process lives: the pipe closes before it ends, but it can also close the pipe."""
        deadline = time.monotonic() + _EXIT_SECONDS
        while (code := self._exit_code()) is None and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS / 5)
            self._read_output()  # a full pipe would block it
        return code

    def _exit_code(self) -> int | None:
        """The code as in `subprocess`; None while the process lives. Keeps the zombie, which `close` needs."""
        try:
            state = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # other code of this process has waited for it
            return _UNKNOWN_STATUS
        if state is None:
            return None
        return state.si_status if state.si_code == os.CLD_EXITED else -state.si_status

    def _last_output(self) -> str:
        """The last line of output, which often says more than a signal."""
        last = self._last_line()
        return f" (its last output: {last!r})" if last else ""

    def _last_line(self) -> str:
        for _ in range(_MAX_READS):
            if not self._read_output():
                break
        lines = self._output.decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")[:_MAX_QUOTED]


def _launch(jobs: Sequence[Job]) -> tuple[subprocess.Popen[bytes], int, int]:
    """The process, and the descriptors of its marks and its output."""
    with contextlib.ExitStack() as child_ends, contextlib.ExitStack() as own_ends:
        described = _describe(jobs)
        child_ends.callback(os.close, described)
        ends = []
        for _ in range(2):
            reading, writing = os.pipe()
            own_ends.callback(os.close, reading)
            child_ends.callback(os.close, writing)
            os.set_blocking(reading, False)
            ends.append((reading, writing))
        (marks, to_marks), (printed, to_printed) = ends
        process = _start(described, to_marks, to_printed)
        own_ends.pop_all()  # keep them open
    return process, marks, printed


def _describe(jobs: Sequence[Job]) -> int:
    """A descriptor of definitions, solutions and calls, one line each; in memory, because a disk can be full."""
    descriptor = os.memfd_create("fib-apply-probe", os.MFD_CLOEXEC)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            for job in jobs:
                records = (format_json(record) for record in (job.definition, job.solution))
                file.writelines(record.encode("utf-8", "surrogatepass") + b"\n" for record in records)
                file.write(job.call + b"\n")
        os.lseek(descriptor, 0, os.SEEK_SET)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _start(jobs: int, marks: int, printed: int) -> subprocess.Popen[bytes]:
    """Start the child in its own session, with the import path of this process."""
    paths = [str(path) or os.curdir for path in sys.path]
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "fib_apply.build_service.probe_process", str(marks), str(jobs), str(os.getpid())],
        pass_fds=(marks, jobs),
        stdin=subprocess.DEVNULL,
        stdout=printed,
        stderr=printed,
        start_new_session=True,
        # A solution may import a framework that enables routing, which would start probes itself.
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), ENABLE_VARIABLE: "0"},
    )


def _describe_exit(code: int) -> str:
    if code == _UNKNOWN_STATUS:
        return "with an unknown status"
    if code >= 0:
        return f"with exit status {code}"
    try:
        return f"by {signal.Signals(-code).name}"
    except ValueError:
        return f"by signal {-code}"


def main() -> None:
    """Do the jobs in the child process.

    The arguments are the descriptors of the pipe for marks and of the jobs, and the parent's process id.
    """
    marks, jobs, parent = map(int, sys.argv[1:])
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the call
        os._exit(1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # writing a core file of torch takes seconds
    os.set_inheritable(marks, False)
    with open(jobs, "rb") as file:  # noqa: PTH123 - a descriptor
        lines = file.read().split(b"\n")
    own = os.getpid()
    for definition, solution, call in zip(lines[::3], lines[1::3], lines[2::3], strict=False):
        pair = (parse_json(definition, Definition), parse_json(solution, Solution))
        os.write(marks, _BEGIN)
        mark = _load(*pair) if call == _LOAD_ONLY else _run(*pair, call)
        if os.getpid() != own:
            os._exit(0)  # a process that the solution forked
        os.write(marks, mark)
        if mark == _RAISED:
            os._exit(0)  # an error of a kernel makes all later calls of CUDA fail
    os._exit(0)  # without waiting for threads of solutions


def _load(definition: Definition, solution: Solution) -> bytes:
    # Only the survival of the process counts: building in the parent reports what the solution raises.
    with contextlib.suppress(BaseException):
        from fib_compile import BuilderRegistry

        BuilderRegistry.get_instance().build(definition, solution)
    return _END


def _run(definition: Definition, solution: Solution, call: bytes) -> bytes:
    """Run a solution once and return the mark; a reason is the last line of output."""
    mark = _NOT_RUN
    try:
        import torch
        from fib_compile import BuilderRegistry

        from .recorded_call import make_inputs

        runnable = BuilderRegistry.get_instance().build(definition, solution)
        inputs = make_inputs(call)
        mark = _RAISED
        with torch.no_grad():
            runnable.call_value_returning(*inputs)
            if any(getattr(value, "is_cuda", False) for value in inputs):
                torch.cuda.synchronize()
    except BaseException as error:  # noqa: BLE001 - becomes a verdict
        text = " ".join(f"{type(error).__name__}: {error}".split())
        os.write(1, f"\n{text[:_MAX_QUOTED]}\n".encode("utf-8", "replace"))
        return _NOT_RUN if is_out_of_memory(error) else mark
    return _END


if __name__ == "__main__":
    main()
