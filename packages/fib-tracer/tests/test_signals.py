"""Tests of signal handling: kept calls are stored before a signal ends the process."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from .test_processes import run, start, values

_OWN = """
arrived = threading.Event()
def own(number, frame):
    print("own", number, flush=True)
    arrived.set()
signal.signal(signal.SIGTERM, own)
"""


def test_a_later_handler_stays_installed_and_may_call_the_one_it_replaced(root: Path) -> None:
    """Also if tracing has stopped and started again beneath it."""
    out = run(
        root,
        _OWN
        + """
runtime = enable_tracing(sys.argv[1], TracingConfig("dump_all"))
ours = signal.getsignal(signal.SIGTERM)
def around(number, frame):
    print("around", flush=True)
    ours(number, frame)
signal.signal(signal.SIGTERM, around)
runtime.stop()
runtime.start()
call(1)
os.kill(os.getpid(), signal.SIGTERM)
arrived.wait()
print(runtime.stats()["silu_h8"].stored)
runtime.stop()
print(signal.getsignal(signal.SIGTERM) is around)
""",
    )
    assert out.splitlines() == ["around", "own 15", "1", "True"]
    assert values(root) == [1]


def test_an_ignored_signal_stays_ignored(root: Path) -> None:
    out = run(
        root,
        """
signal.signal(signal.SIGINT, signal.SIG_IGN)
with enable_tracing(sys.argv[1]):
    print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)
""",
    )
    assert out == "True\n"


_IN_A_CALL = """
from fib_tracer.policies import KeepRandomK

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
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGTERM
    assert values(root) == [0, 1, 2]


def test_a_signal_during_a_flush_loses_nothing(root: Path) -> None:
    """The signal arrives while the main thread waits for the storage thread."""
    process = start(
        root,
        """
from fib_tracer.policies import KeepRandomK

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
