"""A forked process can build, whatever other threads held when it was forked."""

import os
import signal
import sys
import threading
import warnings

from compile_samples import ADD_ONE, make_solution
from fib_compile import BuilderRegistry, PythonBuilder

SOON = 300
TEXT = "def run(x):\n    return x + 1\n"


def exit_code_of_fork(work):
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


def test_a_fork_during_a_build_of_the_same_solution():
    entered, left = threading.Event(), threading.Event()

    class Waiting(PythonBuilder):
        def build(self, definition, solution):
            if not entered.is_set():
                entered.set()
                left.wait()
            return super().build(definition, solution)

    registry = BuilderRegistry([Waiting()])
    thread = threading.Thread(target=lambda: registry.build(ADD_ONE, make_solution(TEXT)))
    thread.start()
    assert entered.wait(SOON)
    assert exit_code_of_fork(lambda: registry.build(ADD_ONE, make_solution(TEXT))) == 0
    left.set()
    thread.join(SOON)
    registry.cleanup()
