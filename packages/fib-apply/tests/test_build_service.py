"""Build service: solutions are built once, in the background, without harm to the process or its callers."""

import _thread
import ctypes
import functools
import logging
import os
import signal
import sys
import threading
import time
import types

import pytest
from apply_samples import SCALE, new_solution
from apply_samples import loading as pair
from fib_apply.build_service import service
from fib_apply.build_service.service import BuildService
from fib_compile import BuilderRegistry, PythonBuilder
from fib_schema import UnknownName

pytestmark = pytest.mark.usefixtures("cache_path")
SOON = 300.0
"""Seconds after which a test fails that would wait forever."""


class Gated(PythonBuilder):
    """Builds what is called ``gated`` after the gate was opened."""

    def __init__(self):
        super().__init__()
        self.started = threading.Event()
        self.gate = threading.Event()
        self.built: list[str] = []

    def build(self, definition, solution):
        self.built.append(solution.name)
        if solution.name == "gated":
            self.started.set()
            assert self.gate.wait(SOON)
        return super().build(definition, solution)


@pytest.fixture
def builder():
    gated = Gated()
    yield gated
    gated.gate.set()


@pytest.fixture
def build_service(builder):
    made = BuildService(BuilderRegistry([builder]))
    yield made
    made.close()


def in_thread(call):
    thread = threading.Thread(target=call)
    thread.start()
    return thread


def warned(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_bad_solutions_are_left_out_with_one_warning_each(build_service, caplog, capfd):
    pairs = [
        pair("works"),
        pair("raises", "raise ValueError('one\\ntwo')"),
        pair("exits", "import sys; sys.exit(1)"),
        pair("interrupts", "raise KeyboardInterrupt"),
        pair("leaves", "import os; os._exit(3)"),
    ]
    build_service.build_ahead(pairs)
    build_service.build_ahead(pairs)

    runnable = build_service.find("works")
    assert runnable(7) == 7
    assert [build_service.find(name) for name in ("raises", "unknown")] == [None, None]
    assert (build_service.problem("works"), build_service.problem("unknown")) == (None, None)
    assert build_service.left_out().keys() == {"raises", "exits", "interrupts", "leaves"}
    assert build_service.problem("raises") == build_service.left_out()["raises"]
    assert "ValueError: one" in build_service.left_out()["raises"]
    assert warned(caplog) == [
        "scale: solution leaves is left out: it ended the process that loaded it with exit status 3",
        "scale: solution raises is left out: importing 'main.py' failed with ValueError: one",
        "scale: solution exits is left out: importing 'main.py' called exit with code 1; remove the call",
        "scale: solution interrupts is left out: KeyboardInterrupt",
    ]
    assert {record.name for record in caplog.records} == {"fib_apply"}
    end = time.monotonic() + 60  # the result of the last one is counted after it can be found
    while build_service.pending and time.monotonic() < end:
        time.sleep(0.01)
    assert build_service.pending == 0
    assert capfd.readouterr() == ("", "")


def test_a_solution_that_does_not_compile_is_left_out_and_not_probed(builder, build_service, monkeypatch):
    monkeypatch.setattr(service, "probe", lambda pairs, **_: dict.fromkeys(pairs))
    build_service.build_ahead([(SCALE, new_solution("c++", "cpp"))])

    assert "no builder for language 'cpp'" in (build_service.problem("c++") or "")
    assert builder.built == []


@pytest.mark.usefixtures("without_probes")
def test_concurrent_requests_build_a_solution_once(builder, build_service):
    build_service.request(*pair("gated"))
    assert builder.started.wait(SOON)
    threads = [in_thread(lambda: build_service.request(*pair("gated"))) for _ in range(4)]
    for thread in threads:
        thread.join()
    build_service.request(*pair("gated"))
    assert build_service.find("gated") is None
    builder.gate.set()

    assert build_service.wait(SOON)
    assert build_service.find("gated") is not None
    assert builder.built == ["gated"]


@pytest.mark.usefixtures("without_probes")
def test_background_errors_are_logged_and_counted(build_service, caplog):
    class Silent(Exception):
        def __str__(self):
            raise ValueError

    def fail(error):
        raise error

    for error, name in ((ValueError("a\nb"), "sweeping"), (Silent(), "dusting"), (SystemExit(1), "leaving")):
        build_service.submit(functools.partial(fail, error), name)
    assert build_service.wait(SOON)
    assert warned(caplog) == [
        "sweeping failed in the background: ValueError: a",
        "dusting failed in the background: Silent",
        "leaving failed in the background: SystemExit: 1",
    ]
    assert build_service.pending == 0


@pytest.mark.usefixtures("without_probes")
def test_a_successor_keeps_the_results_of_unchanged_solutions(build_service):
    build_service.build_ahead([pair("one"), pair("two"), pair("three")])
    now = {"one": pair("one")[1], "two": pair("two", "VERSION = 2")[1]}

    def load(name):
        if name not in now:
            raise UnknownName("solution", name, tuple(now))
        return now[name]

    successor = build_service.successor(load)
    assert successor.find("one") is build_service.find("one")
    assert [successor.find(name) for name in ("two", "three")] == [None, None]
    successor.request(*pair("two", "raise ValueError"))
    assert successor.wait(SOON)
    assert (len(successor.left_out()), successor.pending) == (1, 0)
    assert build_service.find("two") is not None


@pytest.mark.usefixtures("without_probes")
@pytest.mark.parametrize("is_late", [False, True], ids=["during a wait", "just before a wait"])
def test_the_user_s_interrupt_ends_the_wait_and_cancels_the_rest(builder, build_service, is_late):
    def interrupt():
        assert builder.started.wait(SOON)
        if is_late:
            _thread.interrupt_main()  # wakes no wait
        else:
            os.kill(os.getpid(), signal.SIGINT)

    thread = in_thread(interrupt)
    with pytest.raises(KeyboardInterrupt):
        build_service.build_ahead([pair("gated"), pair("another")])
    thread.join()
    builder.gate.set()
    assert build_service.wait(SOON)

    assert builder.built == ["gated"]
    assert build_service.find("gated") is not None
    build_service.build_ahead([pair("another")])
    assert build_service.find("another") is not None


@pytest.mark.usefixtures("without_probes")
def test_close_drops_queued_jobs_and_ends_waits(builder, build_service):
    build_service.request(*pair("gated"))
    assert builder.started.wait(SOON)
    called = threading.Event()
    build_service.request(*pair("waiting"))
    waiting = in_thread(lambda: build_service.build_ahead([pair("ahead")]))
    while build_service.pending < 3:
        time.sleep(0.01)
    build_service.close()
    waiting.join(SOON)
    assert not waiting.is_alive()
    builder.gate.set()
    assert build_service.wait(SOON)

    build_service.request(*pair("late"))
    build_service.build_ahead([pair("later")])
    build_service.submit(called.set, "late")
    build_service.close()
    assert build_service.wait(0)
    assert builder.built == ["gated"]
    assert build_service.find("gated") is not None
    assert not called.is_set()


@pytest.mark.usefixtures("without_probes")
def test_a_job_may_build_ahead(build_service):
    build_service.submit(lambda: build_service.build_ahead([pair("one")]), "reloading")
    assert build_service.wait(SOON)

    assert build_service.find("one") is not None


def test_an_unprobed_solution_is_not_loaded(builder, build_service, monkeypatch):
    def fail(pairs, **_):
        raise MemoryError

    monkeypatch.setattr(service, "probe", fail)
    build_service.build_ahead([pair("one")])

    assert build_service.left_out() == {"one": "the probe failed: MemoryError"}
    assert builder.built == []


def test_jobs_use_the_caller_s_device_and_relaxed_capture_mode(build_service, monkeypatch):
    entered, modes, is_initialized = [], [], [False]
    cuda = types.SimpleNamespace(
        is_initialized=lambda: is_initialized[0], current_device=lambda: 3, set_device=entered.append
    )

    def exchange(mode):
        modes.append(mode._obj.value)
        return 0

    driver = types.SimpleNamespace(cuThreadExchangeStreamCaptureMode=exchange)
    monkeypatch.setattr(ctypes, "CDLL", {"libcuda.so.1": driver}.__getitem__)
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))
    build_service.submit(lambda: None, "before CUDA is in use")
    assert build_service.wait(SOON)
    assert (entered, modes) == ([], [])

    is_initialized[0] = True
    for _ in range(2):
        build_service.submit(lambda: None, "with CUDA")
    assert build_service.wait(SOON)
    assert (entered, modes) == ([3, 3], [2])
