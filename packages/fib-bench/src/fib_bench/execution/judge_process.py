"""The judge process. If it dies, the driver restarts it and repeats what it was doing once.

Both ends are here: `JudgeProcess` in the driver, `main` in the child. A device error can kill the process that uses the
device. A judge whose fork server has died ends too. Neither death is a verdict on a solution. Driver and judge trust
each other and exchange pickles, which contain no data of workers.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NoReturn, Self, cast

from fib_compile.device import parse_device
from fib_compile.errors import InvalidDevice
from fib_schema import Definition, Environment, FibError, Solution, Workload

from ..config.model import BenchmarkConfig
from ..errors import JudgeFailed, UnsupportedDevice, WorkerPoolFailed
from ..events import Evaluated, Event, Skipped, Working
from ..plan import DefinitionPlan, Skip
from ..sandbox.syscalls import PR_SET_PDEATHSIG, prctl, protect_memory
from ..worker.client import ForkServerClient

if TYPE_CHECKING:
    from ..judge.evaluate import Judge

_EXIT_SECONDS = 10.0
_NO_BASELINES: Mapping[str, Solution] = MappingProxyType({})


class JudgeProcess:
    """A judge in a process that stays alive: evaluates solutions, one after another, until it is closed.

    Use it from the thread that made it: the process is killed when that thread ends. Only `close` may be called from
    another thread; it ends a running evaluation with `JudgeFailed`.

    Args:
        config: Settings; `devices` and `executor` have no effect.
        root: The data set's folder, for the tensors of its workloads; solutions cannot read it.
        baselines: By definition, the solution that others are timed interleaved with.

    Raises:
        UnsupportedDevice: There is no such device here.
        JudgeFailed: The process did not start.
    """

    def __init__(
        self, config: BenchmarkConfig, root: Path | None = None, baselines: Mapping[str, Solution] = _NO_BASELINES
    ) -> None:
        self._job = (config, root, dict(baselines))
        self._is_closed = False
        self._process: subprocess.Popen[bytes]
        self._connection: Connection
        self._environment = self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def environment(self) -> Environment:
        """The hardware and the versions that traces state."""
        return self._environment

    def close(self) -> None:
        """Terminate the process and its workers."""
        self._is_closed = True
        self._process.terminate()
        try:
            self._process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._connection.close()  # last: a closed pipe makes the process exit, which the signal would interrupt

    def run(
        self, definition: Definition, solution: Solution, workloads: Sequence[Workload], cache_key: str = ""
    ) -> Iterator[Event]:
        """Evaluate a solution with all checks, and yield each event as it occurs; raises like `execute`.

        The uuids of the workloads differ. Evaluations with different cache keys share no build cache, through which a
        solution could tell a later evaluation what it has seen in an earlier one.
        """
        pending = {workload.uuid: (solution,) for workload in workloads}
        yield from self.execute(DefinitionPlan(definition, tuple(workloads), pending, cache_key=cache_key))

    def execute(self, part: DefinitionPlan) -> Iterator[Event]:
        """Run the plan for one definition. Work under which the process dies twice is skipped as a failure.

        `JudgeFailed` if the process has died and cannot be restarted, or `close` was called.
        """
        repeated: set[str] = set()
        while True:
            at: Working | None = None
            done: set[tuple[str, str | None]] = set()
            try:
                for event in self._execute(part):
                    at = event if isinstance(event, Working) else at
                    done.update(finished_pairs(event))
                    yield event
                return
            except (EOFError, WorkerPoolFailed) as error:
                if self._is_closed:
                    raise JudgeFailed(
                        "it was closed while it ran a plan; the work that has no trace was not done"
                    ) from None
                self._connection.close()
                end = self._exit_reason()
                if isinstance(error, WorkerPoolFailed):
                    end = str(error)
                self._environment = self._start()
            part = part.without(done)
            lost = _skip_of_crash(part, at, end)
            if lost.skip.subject in repeated:
                part = part.without(finished_pairs(lost))
                yield lost
            repeated.add(lost.skip.subject)

    def _execute(self, part: DefinitionPlan) -> Iterator[Event]:
        try:
            self._connection.send(part)
        except OSError as error:
            raise EOFError from error
        while (event := self._receive()) is not None:
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
        ours, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "OMP_WAIT_POLICY": "passive"},  # its idle threads release the cores to workers
                stdout=2,  # output of imports must not mix with results
                start_new_session=True,  # a terminal interrupt goes to the driver, which terminates it
            )
        self._connection = ours
        try:
            ours.send(self._job)
            environment = self._receive()
        except (EOFError, OSError) as error:
            ours.close()
            raise JudgeFailed(f"it did not start (its messages are above): {self._exit_reason()}") from error
        except FibError:
            self.close()
            raise
        assert isinstance(environment, Environment)
        return environment

    def _exit_reason(self) -> str:
        code = self._process.wait()
        return f"it was ended by {signal.Signals(-code).name}" if code < 0 else f"it exited with status {code}"


def _skip_of_crash(part: DefinitionPlan, at: Working | None, end: str) -> Skipped:
    """The skip for the work on which the judge died; `JudgeFailed` if it had not begun any."""
    if at is None:
        raise JudgeFailed(end)
    reason = f"the judge process died twice during this evaluation: {end}"
    skip = Skip(part.definition.name, at.solution, at.workload.uuid, reason, is_failure=True, is_crash=True)
    return Skipped(skip, 1 if at.solution else len(part.pending[at.workload.uuid]))


def finished_pairs(event: Event) -> Sequence[tuple[str, str | None]]:
    """The work that an event reports as done or skipped, as in `DefinitionPlan.without`."""
    match event:
        case Evaluated(trace=trace):
            return [(trace.workload.uuid, trace.solution)]
        case Skipped(skip=Skip(workload=str(workload), solution=solution)):
            return [(workload, solution)]
    return []


def run() -> NoReturn:
    """Run `main`, and exit without unloading torch, which takes 0.3 CPU seconds while the driver waits."""
    try:
        main()
        status = 0
    except SystemExit as end:  # by SIGTERM, after the clean-up
        status = int(end.code or 0)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def main() -> None:
    """Serve the driver on the pipe whose descriptor is the first argument."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.set_inheritable(int(sys.argv[1]), False)
    connection = Connection(int(sys.argv[1]))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # runs the clean-up of worker folders
    try:
        config, root, baselines = connection.recv()
        _check_device(config.device)
        with ForkServerClient(config.device, () if root is None else (root,)) as server:
            server.launch()
            from ..judge.evaluate import Judge  # imports torch, and the server does so at the same time

            with Judge(config, root=root, baselines=baselines, server=server) as judge:
                protect_memory()  # after device initialisation: a driver may read this process's files in /proc
                gc.freeze()  # the objects of modules: a full collection would take 50 ms for them, between two passes
                connection.send(judge.environment)
                while True:
                    _serve(connection, judge)
    except FibError as error:
        connection.send(error)
    except (EOFError, BrokenPipeError):
        pass  # the driver has ended
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # all folders are removed


def _check_device(name: str) -> None:
    """Refuse the name of a device before a fork server starts, which would fail on it beside the judge."""
    try:
        parse_device(name)
    except InvalidDevice as error:
        raise UnsupportedDevice(name, str(error)) from error


def _serve(connection: Connection, judge: Judge) -> None:
    for event in judge.execute(connection.recv()):
        connection.send(event)
    connection.send(None)  # the plan is finished
    judge.context.settle_before(connection)


if __name__ == "__main__":
    # imported under its real name, so that the driver can unpickle its classes
    from fib_bench.execution.judge_process import run as _run

    _run()
