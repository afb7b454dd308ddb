"""Ahead-of-time builds run concurrently, return outcomes in order, raise nothing, and can be cancelled."""

import os
import subprocess
import sys
import threading

import pytest
from compile_samples import ADD_ONE, fast_cpp, make_solution, wrapped_compiler
from fib_compile import BuilderRegistry, PythonBuilder, TVMFFIBuilder
from fib_compile.cache import ArtifactStore
from fib_compile.registry import BuildState
from fib_schema import format_json

SOON = 300


def test_outcomes_come_in_the_order_of_the_pairs():
    registry = BuilderRegistry([PythonBuilder(), TVMFFIBuilder()])
    solutions = [
        make_solution("syntax error", language="cpp", name="broken"),
        fast_cpp(1, name="cpp"),
        make_solution("raise SystemExit", name="python"),
        make_solution("", language="triton", name="unsupported"),
    ]
    seen = []
    pairs = [(ADD_ONE, solution) for solution in solutions]
    outcomes = registry.build_many(pairs, jobs=2, on_done=lambda outcome: seen.append(outcome.solution.name))

    assert [outcome.solution for outcome in outcomes] == solutions
    assert [outcome.state for outcome in outcomes] == [
        BuildState.FAILED,
        BuildState.BUILT,
        BuildState.CACHED,
        BuildState.FAILED,
    ]
    assert sorted(seen) == sorted(solution.name for solution in solutions)
    assert "no builder for language 'triton'" in str(outcomes[3].error)
    assert [outcome.state for outcome in registry.build_many(pairs[1:2])] == [BuildState.CACHED]


class Endless(PythonBuilder):
    """The first build ends at once, all others when they are cancelled."""

    def __init__(self):
        super().__init__()
        self.begun: list[str] = []

    def compile_ahead(self, definition, solution, limits):
        del definition
        self.begun.append(solution.name)
        if solution.name != "0":
            tick = threading.Event()
            assert any(limits.is_stopped() or tick.wait(0.01) for _ in range(100 * SOON))
        return True


def test_an_interrupt_starts_no_further_build_and_cancels_running_ones():
    def interrupt(outcome):
        raise KeyboardInterrupt

    builder = Endless()
    pairs = [(ADD_ONE, make_solution("", name=str(index))) for index in range(20)]
    with pytest.raises(KeyboardInterrupt):
        BuilderRegistry([builder]).build_many(pairs, jobs=2, on_done=interrupt)

    assert len(builder.begun) <= 3


DRIVER = """
import sys, threading
from fib_compile import BuilderRegistry, Limits, TVMFFIBuilder
from fib_schema import Definition, Solution, parse_json

definition, *solutions = sys.stdin.read().split("\\0")
pairs = [(parse_json(definition, Definition), parse_json(solution, Solution)) for solution in solutions]
registry = BuilderRegistry([TVMFFIBuilder()])
waits = threading.Event()
limits = Limits(is_stopped=waits.set)
threading.Thread(target=registry.build_many, args=(pairs,), kwargs={"jobs": 1, "limits": limits}, daemon=True).start()
"""
UNTIL_COMPILED = """
with open(sys.argv[1]) as started:
    print(started.read(), flush=True)
"""


@pytest.fixture
def stuck_compiler(tmp_path, monkeypatch):
    """CXX never ends; the pipe that its process number is written to."""
    fifo = tmp_path / "started"
    os.mkfifo(fifo)
    monkeypatch.setenv("CXX", wrapped_compiler(tmp_path, f"echo $$ > {fifo}; exec sleep 1000"))
    return fifo


def test_an_interpreter_that_exits_waits_for_no_compiler(stuck_compiler):
    done = subprocess.run(
        [sys.executable, "-c", DRIVER + UNTIL_COMPILED, str(stuck_compiler)],
        input="\0".join(map(format_json, (ADD_ONE, fast_cpp(1, name="one"), fast_cpp(2, name="two")))),
        capture_output=True,
        text=True,
        check=True,
        timeout=SOON,
    )

    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stdout), 0)


def test_a_cancelled_build_waits_for_no_lock(tmp_path):
    store = ArtifactStore(tmp_path)
    with (
        store.lock("key", wait_seconds=0),
        pytest.raises(TimeoutError, match="has been held for"),
        store.lock("key", wait_seconds=10 * SOON, is_stopped=lambda: True),
    ):
        pass
