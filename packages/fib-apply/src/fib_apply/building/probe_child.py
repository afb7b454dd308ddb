"""The process that loads solutions to see whether it survives, as its parent handles it.

The child announces on a pipe of its own when it begins to load a solution and when it is done. Its
solutions may do anything: write without end, close every descriptor, leave processes behind, hang, crash.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from types import TracebackType

import attrs
from fib_schema import Definition, Solution, format_json

from ..config import ENABLE_VARIABLE
from ..log import logger

BEGIN, END = b"b", b"e"
_POLL_SECONDS = 0.05
"""Between looks at whether the child lives: a process that it left behind can keep the pipe open."""
_EXIT_SECONDS = 10.0
_MAX_OUTPUT_BYTES = 4096
_MAX_QUOTED = 200
_MAX_READS = 64
_UNKNOWN = 256
"""No process exits with this."""
_OUTSIDE = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGHUP})
"""Signals that come from outside: the system that is out of memory, or whoever ends a job."""


@attrs.frozen
class Verdict:
    """What became of one solution."""

    reason: str | None
    """Why it must not be loaded here; None if it may."""
    is_lasting: bool = True
    """Whether it would be the same the next time."""


class ProbeChild:
    """A child process that loads solutions one after another, until one of them ends it.

    Args:
        pairs: What it loads.
        timeout_seconds: How long each may take, and the start of the process.

    Raises:
        OSError: The process cannot be started.
    """

    def __init__(self, pairs: Sequence[tuple[Definition, Solution]], timeout_seconds: float) -> None:
        self._count = len(pairs)
        self._timeout_seconds = timeout_seconds
        self._output = bytearray()
        self._is_hung = False
        self._is_output_closed = False
        self._process, self._marks, self._printed = _launched(pairs)
        self._poll = select.poll()  # unlike select.select it takes descriptors beyond 1023, as engines have them
        self._poll.register(self._marks, select.POLLIN)
        self._poll.register(self._printed, select.POLLIN)

    def __enter__(self) -> ProbeChild:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def verdicts(self) -> Iterator[Verdict]:
        """One for each solution in turn; ends early if the child does.

        A child that did not even begin gives verdicts that do not last: nothing was probed.
        """
        begun = ended = 0
        while mark := self._next_mark():
            if mark == BEGIN:
                begun += 1
                self._output.clear()
            elif mark == END:
                ended += 1
                yield Verdict(None)
        if begun > ended:
            yield self._blame()
        elif not ended:
            reason = f"it could not be probed: the process for that did not start{self._quoted()}"
            yield from itertools.repeat(Verdict(reason, is_lasting=False), self._count)

    def close(self) -> None:
        """End the child and the processes of its group."""
        # Its zombie holds the group's number until it is waited for, so that no one else's group is hit. If
        # somebody else in this process has waited for it, there is no such group.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        try:
            self._process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            logger.warning("process %d, which probed solutions, cannot be ended", self._process.pid)
        os.close(self._marks)
        os.close(self._printed)

    def _next_mark(self) -> bytes:
        """What the child announces next; nothing if it is over or hangs."""
        deadline = time.monotonic() + self._timeout_seconds
        while True:
            ready = {descriptor for descriptor, _ in self._poll.poll(_POLL_SECONDS * 1000)}
            if self._printed in ready:
                self._read_output()
            if self._marks in ready:
                return os.read(self._marks, 1)
            if self._exit_code() is not None:
                return self._last_mark()
            if time.monotonic() > deadline:
                self._is_hung = True
                return b""

    def _last_mark(self) -> bytes:
        """A mark that was written between the last look at the pipe and the process's end."""
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
            self._poll.unregister(self._printed)  # its end was closed, and would always be ready
            self._is_output_closed = True
        self._output += data
        del self._output[:-_MAX_OUTPUT_BYTES]
        return bool(data)

    def _blame(self) -> Verdict:
        if self._is_hung:
            return Verdict(f"it did not load within {self._timeout_seconds:g} s{self._quoted()}")
        code = self._await_exit()
        if code is None:
            return Verdict("it closed the descriptors of the process that loaded it")
        reason = f"it ended the process that loaded it {_manner(code)}{self._quoted()}"
        return Verdict(reason, is_lasting=-code not in _OUTSIDE)

    def _await_exit(self) -> int | None:
        """The exit code, or None: the pipe closes before the process is gone, but a living one can close it too."""
        deadline = time.monotonic() + _EXIT_SECONDS
        while (code := self._exit_code()) is None and time.monotonic() < deadline:
            self._poll_output()
        return code

    def _poll_output(self) -> None:
        time.sleep(_POLL_SECONDS / 5)
        self._read_output()  # so that it is not held up by a full pipe

    def _exit_code(self) -> int | None:
        """As `subprocess` tells it; None while it lives. Leaves the zombie, which `close` needs."""
        try:
            state = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # somebody else in this process has waited for it
            return _UNKNOWN
        if state is None:
            return None
        return state.si_status if state.si_code == os.CLD_EXITED else -state.si_status

    def _quoted(self) -> str:
        """The last line that it wrote, which often says more than a signal."""
        for _ in range(_MAX_READS):
            if not self._read_output():
                break
        lines = self._output.decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f" (its last output: {last[:_MAX_QUOTED]!r})" if last else ""


def _launched(pairs: Sequence[tuple[Definition, Solution]]) -> tuple[subprocess.Popen[bytes], int, int]:
    """The process, and where its marks and its output can be read."""
    with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
        jobs = _jobs(pairs)
        theirs.callback(os.close, jobs)
        ends = []
        for _ in range(2):
            reading, writing = os.pipe()
            ours.callback(os.close, reading)
            theirs.callback(os.close, writing)
            os.set_blocking(reading, False)
            ends.append((reading, writing))
        (marks, to_marks), (printed, to_printed) = ends
        process = _start(jobs, to_marks, to_printed)
        ours.pop_all()  # they stay open
    return process, marks, printed


def _jobs(pairs: Sequence[tuple[Definition, Solution]]) -> int:
    """A descriptor with the definitions and solutions, one line each; in memory, for a disk can be full."""
    descriptor = os.memfd_create("fib-apply-probe", os.MFD_CLOEXEC)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            for pair in pairs:
                file.writelines(format_json(record).encode("utf-8", "surrogatepass") + b"\n" for record in pair)
        os.lseek(descriptor, 0, os.SEEK_SET)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _start(jobs: int, marks: int, printed: int) -> subprocess.Popen[bytes]:
    """Start the child in a session of its own, with the modules that this process can import."""
    paths = [str(path) or os.curdir for path in sys.path]
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "fib_apply.building.probing", str(marks), str(jobs), str(os.getpid())],
        pass_fds=(marks, jobs),
        stdin=subprocess.DEVNULL,
        stdout=printed,
        stderr=printed,
        start_new_session=True,
        # A solution may import a framework that enables routing by itself, which would probe again.
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), ENABLE_VARIABLE: "0"},
    )


def _manner(code: int) -> str:
    if code == _UNKNOWN:
        return "in an unknown way"
    if code >= 0:
        return f"with exit status {code}"
    try:
        return f"by {signal.Signals(-code).name}"
    except ValueError:
        return f"by signal {-code}"
