"""A forked process can build, whatever other threads held when it was forked."""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType

import pytest
from fib_compile import BuilderRegistry, PythonBuilder, Runnable
from fib_schema import Definition, Solution

MakeSolution = Callable[..., Solution]
SOON = 60
TEXT = "def run(x):\n    return x + 1\n"
WAITS = "import gate\n\ngate.entered.set()\ngate.left.wait()\n" + TEXT


class Gate(ModuleType):
    """A module that a solution imports: it signals that the import has begun, and waits for a release."""

    def __init__(self) -> None:
        super().__init__("gate")
        self.entered, self.left = threading.Event(), threading.Event()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    gate = Gate()
    monkeypatch.setitem(sys.modules, "gate", gate)
    return gate


@contextmanager
def meanwhile(work: Callable[[], object], gate: Gate) -> Iterator[None]:
    """Run work in a thread that waits at the gate while the block runs."""
    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert gate.entered.wait(SOON)
        yield
    finally:
        gate.left.set()
        thread.join(SOON)


def exit_code_of_fork(work: Callable[[], object]) -> int:
    """Fork and run work in the child, for a minute at most; returns the exit code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that the process has threads is the point
        process = os.fork()
    if process:
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    try:
        signal.alarm(SOON)
        work()
    except BaseException:  # noqa: BLE001 - the border of a process
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    os._exit(0)


def test_a_fork_during_a_build_of_the_same_solution(
    definition: Definition, make_solution: MakeSolution, gate: Gate
) -> None:
    class Waiting(PythonBuilder):
        def build(self, definition: Definition, solution: Solution) -> Runnable:
            if not gate.entered.is_set():
                gate.entered.set()
                gate.left.wait()
            return super().build(definition, solution)

    registry = BuilderRegistry([Waiting()])
    with meanwhile(lambda: registry.build(definition, make_solution(TEXT)), gate):
        assert exit_code_of_fork(lambda: registry.build(definition, make_solution(TEXT))) == 0
    registry.cleanup()
