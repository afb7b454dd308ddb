"""Probe: a child process that loads solutions one by one, or runs them, before this process does.

A solution that raises at import is found out by building it. One that exits, crashes or hangs would take the engine
with it, so it is loaded in a child process first, and the results are cached. The child writes a mark to a pipe before
and after each task. A solution may do anything: write without end, close every descriptor, leave processes behind,
hang, crash.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Self, TypeAlias

import attrs
from fib_compile.device import library_versions
from fib_schema import Definition, Solution, format_json, get_fib_cache_path, parse_json
from fib_schema.files import explain_os_error
from fib_schema.solution import framed

from ..config import ENABLE_VARIABLE, publish, read_published
from ..errors import is_out_of_memory
from ..events import logger

Pair: TypeAlias = tuple[Definition, Solution]

_FORMAT = 1
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
class ProbeTask:
    """A solution to load, and possibly to run."""

    definition: Definition
    solution: Solution
    call: bytes = _LOAD_ONLY
    """The inputs of a run as `RecordedCall.to_line` returns them."""

    @property
    def verb(self) -> str:
        """The verb for messages: ``load`` or ``run``."""
        return "load" if self.call == _LOAD_ONLY else "run"


@attrs.frozen
class ProbeResult:
    """The result of one task."""

    reason: str | None
    """Reason not to use the solution in this process; None if it is safe."""
    is_reproducible: bool = True
    """Whether another probe would have the same result."""


# -- cached results ----------------------------------------------------------------------------------


def probe(
    pairs: Sequence[Pair],
    *,
    timeout_seconds: float = 120.0,
    cache_root: Path | None = None,
    is_cancelled: Callable[[], bool] = lambda: False,
) -> dict[str, str | None]:
    """Load solutions in a child process, to see whether the process survives.

    Results are cached in ``apply-v1/probes``; delete that folder to probe again, e.g. solutions that hung. The
    child has the builders and the environment of this process. A solution that raises passes: building it here
    reports the error. A solution whose threads end the process later is blamed only while it is being loaded;
    otherwise the next one is.

    Returns:
        By name, None for a solution that is safe to load, else the reason why it is not.

    Raises:
        Cancelled: `is_cancelled` returned true.
    """
    results: dict[str, str | None] = {}
    root = cache_root or get_fib_cache_path()
    unknown = []
    for pair in pairs:
        if (known := _cached(root, pair[1])) is not None:
            results[pair[1].name] = results.get(pair[1].name) or known.reason
        else:
            unknown.append(pair)
    tasks = [ProbeTask(*pair) for pair in unknown]
    with contextlib.closing(run_tasks(tasks, timeout_seconds, is_cancelled)) as found:
        for (_, solution), result in zip(unknown, found, strict=True):
            if result.is_reproducible:
                _save(root, solution, result.reason)
            results[solution.name] = results.get(solution.name) or result.reason
    return results


def note_name(folder: str, solution: Solution, *parts: str) -> str:
    """The cache file of a solution's content, other parts, and the versions of the libraries that it uses."""
    versions = (part for item in sorted(library_versions().items()) for part in item)
    digest = blake2b(framed((solution.hash(), *parts, *versions)), digest_size=20).hexdigest()
    return f"{folder}/{digest}.json"


def _cached(root: Path, solution: Solution) -> ProbeResult | None:
    """The cached result; None if there is none, or the file is damaged."""
    try:
        content = json.loads(read_published(root, note_name("probes", solution)))
    except (OSError, ValueError):
        return None
    match content:
        case {"format": int(version), "reason": str() | None as reason} if version == _FORMAT:
            return ProbeResult(reason)
    return None


def _save(root: Path, solution: Solution, reason: str | None) -> None:
    content = {"format": _FORMAT, "solution": solution.name, "reason": reason}
    try:
        publish(root, note_name("probes", solution), json.dumps(content).encode())
    except OSError as error:
        logger.warning("the probe of %s cannot be cached: %s", solution.name, explain_os_error(error))


# -- in the parent -----------------------------------------------------------------------------------


def run_tasks(
    tasks: Sequence[ProbeTask], timeout_seconds: float, is_cancelled: Callable[[], bool] = lambda: False
) -> Generator[ProbeResult, None, None]:
    """Yield one result for each task in turn; starts another child process where a solution has ended one.

    Raises:
        Cancelled: `is_cancelled` returned true.
    """
    while tasks:
        try:
            process = ProbeProcess(tasks, timeout_seconds, is_cancelled)
        except OSError as error:
            # An unprobed solution is not used: it could end the engine.
            yield from (ProbeResult(f"the probe failed: {error}", is_reproducible=False) for _ in tasks)
            return
        done = 0
        with process:
            for result in itertools.islice(process.results(), len(tasks)):
                done += 1
                yield result
        tasks = tasks[done:]


class ProbeProcess:
    """A child process that does one task after another, until a solution ends it.

    Raises:
        OSError: The process cannot be started.
    """

    def __init__(
        self, tasks: Sequence[ProbeTask], timeout_seconds: float, is_cancelled: Callable[[], bool] = lambda: False
    ) -> None:
        self._tasks = tasks
        self._timeout_seconds = timeout_seconds
        self._is_cancelled = is_cancelled
        self._output = bytearray()
        self._is_hung = False
        self._is_output_closed = False
        self._process, self._marks = _launch(tasks)
        assert self._process.stdout is not None  # a pipe
        self._printed = self._process.stdout.fileno()
        self._poll = select.poll()  # unlike select.select it takes descriptors beyond 1023, as engines have them
        for descriptor in (self._marks, self._printed):
            os.set_blocking(descriptor, False)
            self._poll.register(descriptor, select.POLLIN)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        """Kill the child and its process group."""
        # Until the child is waited for, its zombie reserves the group's number, so that no other group is hit.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        try:
            self._process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            logger.warning("probe process %d cannot be ended", self._process.pid)
        os.close(self._marks)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def results(self) -> Iterator[ProbeResult]:
        """Yield one result for each task in turn, at least one; fewer if the child ends early.

        If the child did not start, nothing was probed, and no result is reproducible.

        Raises:
            Cancelled: `is_cancelled` returned true.
        """
        begun = ended = 0
        while mark := self._next_mark():
            if mark == _BEGIN:
                begun += 1
                self._output.clear()
                continue
            ended += 1
            yield ProbeResult(None if mark == _END else self._last_line(), is_reproducible=mark != _NOT_RUN)
        if begun > ended:
            yield self._blame(self._tasks[ended])
        elif not ended:
            reason = f"the probe failed: its process did not start{self._last_output()}"
            yield from itertools.repeat(ProbeResult(reason, is_reproducible=False), len(self._tasks))

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
                with contextlib.suppress(BlockingIOError):  # a mark written between the poll and the end
                    return os.read(self._marks, 1)
                return b""
            if self._is_cancelled():
                raise Cancelled
            if time.monotonic() > deadline:
                self._is_hung = True
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

    def _blame(self, task: ProbeTask) -> ProbeResult:
        if self._is_hung:
            return ProbeResult(f"it did not {task.verb} within {self._timeout_seconds:g} s{self._last_output()}")
        deadline = time.monotonic() + _EXIT_SECONDS
        # The pipe closes before the process ends, but the process can also close the pipe.
        while (code := self._exit_code()) is None and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS / 5)
            self._read_output()  # a full pipe would block it
        child = "the process that loaded it" if task.verb == "load" else "the process that ran it"
        if code is None:
            return ProbeResult(f"it closed the descriptors of {child}")
        reason = f"it ended {child} {_describe_exit(code)}{self._last_output()}"
        return ProbeResult(reason, is_reproducible=-code not in _EXTERNAL_SIGNALS)

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


def _launch(tasks: Sequence[ProbeTask]) -> tuple[subprocess.Popen[bytes], int]:
    """Start the child in its own session, with the import path of this process; returns it and the pipe of its marks.

    Its input has definition, solution and call of each task, a line each; in memory, because a disk can be full.
    """
    marks, to_marks = os.pipe()
    try:
        with open(os.memfd_create("fib-apply-probe", os.MFD_CLOEXEC), "w+b") as described:  # noqa: PTH123 no path
            for task in tasks:
                records = (format_json(record) for record in (task.definition, task.solution))
                described.writelines(record.encode("utf-8", "surrogatepass") + b"\n" for record in records)
                described.write(task.call + b"\n")
            described.seek(0)
            paths = [str(path) or os.curdir for path in sys.path]
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "fib_apply.build_service.probe", str(to_marks), str(os.getpid())],
                pass_fds=(to_marks,),
                stdin=described,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                # A solution may import a framework that enables routing, which would start probes itself.
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), ENABLE_VARIABLE: "0"},
            )
    except BaseException:
        os.close(marks)
        raise
    finally:
        os.close(to_marks)
    return process, marks


def _describe_exit(code: int) -> str:
    if code == _UNKNOWN_STATUS:
        return "with an unknown status"
    if code >= 0:
        return f"with exit status {code}"
    try:
        return f"by {signal.Signals(-code).name}"
    except ValueError:
        return f"by signal {-code}"


# -- in the child ------------------------------------------------------------------------------------


def main() -> None:
    """Do the tasks of the input in the child process.

    The arguments are the descriptor of the pipe for marks, and the parent's process id.
    """
    marks, parent = map(int, sys.argv[1:])
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the call
        os._exit(1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # writing a core file of torch takes seconds
    os.set_inheritable(marks, False)
    lines = sys.stdin.buffer.read().split(b"\n")
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
    except BaseException as error:  # noqa: BLE001 - becomes a result
        text = " ".join(f"{type(error).__name__}: {error}".split())
        os.write(1, f"\n{text[:_MAX_QUOTED]}\n".encode("utf-8", "replace"))
        return _NOT_RUN if is_out_of_memory(error) else mark
    return _END


if __name__ == "__main__":
    main()
