"""The judge in a process of its own: if it dies, it is started again and one workload is lost.

A device can take its process down, whatever the code in it does. Driver and judge trust each other
and pickle; nothing that comes from a worker is among it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Self, cast

import attrs
from fib_schema import Environment, FibError, Solution

from ..config.model import BenchmarkConfig
from ..errors import JudgeFailed
from ..events import Evaluated, Event, Skipped, Working
from ..plan import DefinitionPlan, Skip
from ..sandbox.policy import protect_memory
from ..sandbox.syscalls import PR_SET_PDEATHSIG, prctl

_EXIT_SECONDS = 10.0


@attrs.frozen
class _Done:
    """The judge has carried out what it was given."""


class JudgeProcess:
    """Carries out plans in another process.

    Args:
        config: How to run.
        root: The data set's folder, for blobs.
        baselines: The baseline of each definition that has one.

    Raises:
        UnsupportedDevice: There is no such device here.
        JudgeFailed: The process did not start.
    """

    def __init__(self, config: BenchmarkConfig, root: Path | None, baselines: Mapping[str, Solution]) -> None:
        self._job = (config, root, dict(baselines))
        self._is_closed = False
        self._process: subprocess.Popen[bytes]
        self._connection: Connection
        self._environment = self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def environment(self) -> Environment:
        """The hardware and the versions that traces state."""
        return self._environment

    def close(self) -> None:
        """End the process and all its workers; what is under way in another thread ends with `JudgeFailed`."""
        self._is_closed = True
        self._process.terminate()
        try:
            self._process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._connection.close()  # not before: it would begin to end by itself, and be interrupted at that

    def execute(self, part: DefinitionPlan) -> Iterator[Event]:
        """Run the plan for one definition.

        Raises:
            JudgeFailed: The process has died and does not start again.
        """
        while True:
            at: Working | None = None
            try:
                for event in self._execute(part):
                    at = event if isinstance(event, Working) else at
                    part = rest_after(part, event)
                    yield event
                return
            except EOFError:
                if self._is_closed:
                    raise JudgeFailed("it was closed") from None
                self._connection.close()
                end = self._end_in_words()
                self._environment = self._start()
            lost = _lost(part, at, end)
            part = rest_after(part, lost)
            yield lost

    def _execute(self, part: DefinitionPlan) -> Iterator[Event]:
        try:
            self._connection.send(part)
        except OSError as error:
            raise EOFError from error
        while not isinstance(event := self._receive(), _Done):
            yield cast(Event, event)

    def _receive(self) -> object:
        try:
            message: object = self._connection.recv()
        except OSError as error:
            raise EOFError from error
        if isinstance(message, BaseException):
            raise message
        return message

    def _start(self) -> Environment:
        ours, theirs = _pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "OMP_WAIT_POLICY": "passive"},  # its idle threads leave the cores to workers
                stdout=2,  # whatever an import prints is no result
                start_new_session=True,  # an interrupt at the terminal is for the driver, which ends it
            )
        self._connection = ours
        try:
            ours.send(self._job)
            environment = self._receive()
        except (EOFError, OSError) as error:
            ours.close()
            raise JudgeFailed(f"it did not start (its messages are above): {self._end_in_words()}") from error
        except FibError:
            self.close()
            raise
        assert isinstance(environment, Environment)
        return environment

    def _end_in_words(self) -> str:
        code = self._process.wait()
        return f"it was ended by {signal.Signals(-code).name}" if code < 0 else f"it exited with status {code}"


def _pipe() -> tuple[Connection, Connection]:
    from multiprocessing import Pipe

    return Pipe()


def _lost(part: DefinitionPlan, at: Working | None, end: str) -> Skipped:
    """What is given up when the judge has died at some work.

    Raises:
        JudgeFailed: It died before it did any.
    """
    if at is None:
        raise JudgeFailed(end)
    reason = f"the judge's process died at this: {end}"
    skip = Skip(part.definition.name, at.solution, at.workload.uuid, reason, is_failure=True)
    return Skipped(skip, 1 if at.solution else len(part.pending[at.workload.uuid]))


def rest_after(part: DefinitionPlan, event: Event) -> DefinitionPlan:
    """The plan less what an event says has been done or given up."""
    match event:
        case Evaluated(trace=trace):
            return part.without(trace.workload.uuid, trace.solution)
        case Skipped(skip=Skip(workload=str(workload), solution=solution)):
            return part.without(workload, solution)
    return part


def main() -> None:
    """Serve the driver on the pipe whose descriptor is the first argument."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.set_inheritable(int(sys.argv[1]), False)
    connection = Connection(int(sys.argv[1]))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the workers' folders are removed
    from .work import Execution

    try:
        with Execution(*connection.recv()) as execution:
            execution.launch()
            protect_memory()  # after the device is in use: a driver may want this process's files in /proc
            connection.send(execution.environment)
            while True:
                _serve(connection, execution)
    except FibError as error:
        connection.send(error)
    except (EOFError, BrokenPipeError):
        pass  # the driver is gone
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # there is nothing left to remove


def _serve(connection: Connection, execution: object) -> None:
    from .work import Execution

    assert isinstance(execution, Execution)
    for event in execution.execute(connection.recv()):
        connection.send(event)
    connection.send(_Done())


if __name__ == "__main__":
    # under its own name, so that what it pickles is found by the driver
    from fib_bench.execution.judge_process import main as _main

    _main()
