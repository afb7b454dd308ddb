"""Tests of signal handling: kept calls are stored before a signal ends the process."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fib_tracer import enable_tracing, signals

from .test_processes import run, start, values


@pytest.fixture(autouse=True)
def handlers_are_as_before() -> Iterator[None]:
    before = [(number, signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGINT)]
    yield
    for number, handler in before:
        signal.signal(number, handler)


def test_callbacks_run_before_the_previous_handler() -> None:
    seen: list[Any] = []
    signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))

    def one() -> None:
        seen.append("one")

    def other() -> None:
        seen.append("other")

    for before in (one, other, one):
        signals.register(before)
    os.kill(os.getpid(), signal.SIGTERM)
    assert seen == ["other", "one", signal.SIGTERM]
    signals.unregister(one)
    signals.unregister(other)
    os.kill(os.getpid(), signal.SIGTERM)
    assert seen[3:] == [signal.SIGTERM]


def test_a_handler_that_calls_our_handler_is_called_once() -> None:
    """Also if tracing has stopped and started again beneath it."""
    seen: list[str] = []
    signal.signal(signal.SIGTERM, lambda number, frame: seen.append("first"))

    def before() -> None:
        seen.append("before")

    signals.register(before)
    ours: Any = signal.getsignal(signal.SIGTERM)

    def around(number: int, frame: Any) -> None:
        seen.append("around")
        ours(number, frame)

    signal.signal(signal.SIGTERM, around)
    signals.unregister(before)
    signals.register(before)
    os.kill(os.getpid(), signal.SIGTERM)
    assert seen == ["before", "around", "before", "first"]
    signals.unregister(before)
    assert signal.getsignal(signal.SIGTERM) is around


def test_an_ignored_signal_stays_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signals.register(print)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    signals.unregister(print)


@pytest.mark.parametrize("is_outer_first", [True, False])
def test_runtimes_may_stop_in_any_order(root: Path, is_outer_first: bool) -> None:
    """The previous handler is called while one runtime runs, and is restored after both."""
    seen: list[int] = []

    def own(number: int, frame: Any) -> None:
        seen.append(number)

    signal.signal(signal.SIGTERM, own)
    runtimes = [enable_tracing(root), enable_tracing(root)]
    first, second = runtimes if is_outer_first else runtimes[::-1]
    first.stop()
    os.kill(os.getpid(), signal.SIGTERM)
    assert seen == [signal.SIGTERM]
    second.stop()
    assert signal.getsignal(signal.SIGTERM) is own


_IN_A_CALL = """
from fib_tracer.policies.filtering import KeepRandomK

class Interrupted(KeepRandomK):
    def admit(self, call):
        slot = super().admit(call)
        if self._seen == 3:
            for number in SIGNALS:
                os.kill(os.getpid(), number)
        return slot

runtime = enable_tracing(sys.argv[1], TracingConfig("dump_all", filter_policy=lambda: Interrupted(9, 0)))
for index in range(3):
    call(index)
threading.Event().wait()
"""


@pytest.mark.parametrize("signals", ["[signal.SIGTERM]", "[signal.SIGTERM, signal.SIGTERM]"])
def test_a_signal_during_a_kept_call_loses_nothing(root: Path, signals: str) -> None:
    """The call holds its policy's lock, which draining the sample needs."""
    process = start(root, _IN_A_CALL.replace("SIGNALS:", f"{signals}:"))
    _, err = process.communicate(timeout=120)
    assert process.returncode == -signal.SIGTERM
    assert "are not stored" not in err
    assert values(root) == [0, 1, 2]


def test_a_signal_during_a_flush_loses_nothing(root: Path) -> None:
    """The signal arrives while the main thread waits for the storage thread."""
    process = start(
        root,
        """
from fib_tracer.policies.filtering import KeepRandomK

class Interrupted(KeepRandomK):
    def drain(self):
        if self._slots:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().drain()

runtime = enable_tracing(sys.argv[1], TracingConfig("dump_all", filter_policy=lambda: Interrupted(9, 0)))
for index in range(3):
    call(index)
runtime.flush()
threading.Event().wait()
""",
    )
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGTERM
    assert values(root) == [0, 1, 2]


def test_a_handler_of_the_engine_may_be_interrupted_by_the_next_signal(root: Path) -> None:
    """A second signal does not wait for the first one's handler."""
    out = run(
        root,
        """
def own(number, frame):
    print("own", number, flush=True)
    if number == signal.SIGTERM:
        os.kill(os.getpid(), signal.SIGINT)
        print("after", flush=True)
signal.signal(signal.SIGTERM, own)
signal.signal(signal.SIGINT, own)
enable_tracing(sys.argv[1], TracingConfig("dump_all"))
call(1)
os.kill(os.getpid(), signal.SIGTERM)
""",
    )
    assert out.splitlines() == ["own 15", "own 2", "after"]
    assert values(root) == [1]
