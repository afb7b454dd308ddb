"""Build service: solutions are built once, in the background, without harm to the process or its callers."""

from __future__ import annotations

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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from fib_apply.build_service import service
from fib_apply.build_service.service import BuildService
from fib_compile import BuilderRegistry, PythonBuilder, Runnable
from fib_schema import AxisVar, BuildSpec, Definition, Solution, SourceFile, TensorSpec

RUN = "\ndef run(x):\n    return x\n"
VECTOR = TensorSpec(("n",), "float32")
DEFINITION = Definition(
    "copy",
    "elementwise",
    axes={"n": AxisVar()},
    inputs={"x": VECTOR},
    outputs={"y": VECTOR},
    reference=RUN,
)
SOON = 60.0
"""Seconds after which a test fails that would wait forever."""


def solution(name: str, code: str = "") -> Solution:
    """A solution in Python that runs some code when it is imported."""
    spec = BuildSpec("python", ("cpu",), "kernel.py::run", destination_passing_style=False)
    return Solution(name, "copy", "tests", spec, (SourceFile("kernel.py", f"# {name}\n{code}{RUN}"),))


def pair(name: str, code: str = "") -> tuple[Definition, Solution]:
    return DEFINITION, solution(name, code)


def loaded(build_service: BuildService) -> int:
    """The number of loaded solutions."""
    return sum(result.runnable is not None for result in build_service._results.values())


class Gated(PythonBuilder):
    """Builds what is called ``gated`` after the gate was opened."""

    def __init__(self) -> None:
        super().__init__()
        self.started = threading.Event()
        self.gate = threading.Event()
        self.built: list[str] = []

    def build(self, definition: Definition, solution: Solution) -> Runnable:
        self.built.append(solution.name)
        if solution.name == "gated":
            self.started.set()
            assert self.gate.wait(SOON)
        return super().build(definition, solution)


@pytest.fixture(autouse=True)
def cache_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))


@pytest.fixture
def builder() -> Iterator[Gated]:
    gated = Gated()
    yield gated
    gated.gate.set()


@pytest.fixture
def build_service(builder: Gated) -> Iterator[BuildService]:
    made = BuildService(BuilderRegistry([builder]))
    yield made
    made.close()


@pytest.fixture
def no_probing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the probe, which has its own tests."""

    def safe(pairs: Any, **_: Any) -> dict[str, None]:
        return {solution.name: None for _, solution in pairs}

    monkeypatch.setattr(service, "probe", safe)


def in_thread(call: Any) -> threading.Thread:
    thread = threading.Thread(target=call)
    thread.start()
    return thread


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_bad_solutions_are_left_out_with_one_warning_each(
    build_service: BuildService, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
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
    assert runnable is not None
    assert runnable(7) == 7
    assert [build_service.find(name) for name in ("raises", "unknown")] == [None, None]
    assert (build_service.problem("works"), build_service.problem("unknown")) == (None, None)
    assert build_service.left_out().keys() == {"raises", "exits", "interrupts", "leaves"}
    assert build_service.problem("raises") == build_service.left_out()["raises"]
    assert "ValueError: one" in build_service.left_out()["raises"]
    assert warned(caplog) == [
        "copy: solution leaves is left out: it ended the process that loaded it with exit status 3",
        "copy: solution raises is left out: importing 'kernel.py' failed with ValueError: one",
        "copy: solution exits is left out: importing 'kernel.py' called exit with code 1; remove the call",
        "copy: solution interrupts is left out: KeyboardInterrupt",
    ]
    assert {record.name for record in caplog.records} == {"fib_apply"}
    end = time.monotonic() + 10  # the result of the last one is counted after it can be found
    while build_service.pending and time.monotonic() < end:
        time.sleep(0.01)
    assert (loaded(build_service), len(build_service.left_out()), build_service.pending) == (1, 4, 0)
    assert capfd.readouterr() == ("", "")


def test_a_solution_that_does_not_compile_is_left_out_and_not_probed(
    builder: Gated, build_service: BuildService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "probe", lambda pairs, **_: dict.fromkeys(pairs))
    spec = BuildSpec("cpp", ("cpu",), "kernel.cpp::run")
    build_service.build_ahead([(DEFINITION, Solution("c++", "copy", "tests", spec, (SourceFile("kernel.cpp", ""),)))])

    assert "no builder for language 'cpp'" in (build_service.problem("c++") or "")
    assert builder.built == []


@pytest.mark.usefixtures("no_probing")
def test_concurrent_requests_build_a_solution_once(builder: Gated, build_service: BuildService) -> None:
    one = solution("gated")
    build_service.request(DEFINITION, one)
    assert builder.started.wait(SOON)
    threads = [in_thread(lambda: build_service.request(DEFINITION, solution("gated"))) for _ in range(4)]
    for thread in threads:
        thread.join()
    build_service.request(DEFINITION, one)
    assert build_service.find("gated") is None
    builder.gate.set()

    assert build_service.wait(SOON)
    assert build_service.find("gated") is not None
    assert builder.built == ["gated"]


@pytest.mark.usefixtures("no_probing")
def test_background_errors_are_logged_and_counted(
    build_service: BuildService, caplog: pytest.LogCaptureFixture
) -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise ValueError

    def fail(error: BaseException) -> None:
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


@pytest.mark.usefixtures("no_probing")
def test_new_content_of_the_same_name_replaces_the_old(build_service: BuildService) -> None:
    build_service.build_ahead([pair("one")])
    first = build_service.find("one")
    build_service.build_ahead([pair("one", "VERSION = 2")])
    second = build_service.find("one")
    assert second is not None
    assert second is not first
    build_service.request(*pair("one", "raise ValueError"))
    assert build_service.wait(SOON)

    assert build_service.find("one") is None
    assert (loaded(build_service), len(build_service.left_out()), build_service.pending) == (0, 1, 0)


@pytest.mark.usefixtures("no_probing")
@pytest.mark.parametrize("is_late", [False, True], ids=["during a wait", "just before a wait"])
def test_the_user_s_interrupt_ends_the_wait_and_cancels_the_rest(
    builder: Gated, build_service: BuildService, is_late: bool
) -> None:
    def interrupt() -> None:
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


@pytest.mark.usefixtures("no_probing")
def test_close_drops_queued_jobs_and_ends_waits(builder: Gated, build_service: BuildService) -> None:
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


@pytest.mark.usefixtures("no_probing")
def test_a_job_may_build_ahead(build_service: BuildService) -> None:
    build_service.submit(lambda: build_service.build_ahead([pair("one")]), "reloading")
    assert build_service.wait(SOON)

    assert build_service.find("one") is not None


def test_an_unprobed_solution_is_not_loaded(
    builder: Gated, build_service: BuildService, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(pairs: Any, **_: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(service, "probe", fail)
    build_service.build_ahead([pair("one")])

    assert build_service.left_out() == {"one": "the probe failed: MemoryError"}
    assert builder.built == []


@attrs.define
class FakeCuda:
    """The part of ``torch.cuda`` that the executor uses."""

    device: int = 0
    has_begun: bool = True
    entered: list[int] = attrs.field(factory=list)

    def is_initialized(self) -> bool:
        return self.has_begun

    def current_device(self) -> int:
        return self.device

    def set_device(self, index: int) -> None:
        self.entered.append(index)


def test_jobs_use_the_caller_s_device_and_relaxed_capture_mode(
    build_service: BuildService, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda, modes = FakeCuda(device=3, has_begun=False), []

    def exchange(mode: Any) -> int:
        modes.append(mode._obj.value)
        return 0

    driver = types.SimpleNamespace(cuThreadExchangeStreamCaptureMode=exchange)
    monkeypatch.setattr(ctypes, "CDLL", {"libcuda.so.1": driver}.__getitem__)
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))
    build_service.submit(lambda: None, "before CUDA is in use")
    assert build_service.wait(SOON)
    assert (cuda.entered, modes) == ([], [])

    cuda.has_begun = True
    for _ in range(2):
        build_service.submit(lambda: None, "with CUDA")
    assert build_service.wait(SOON)
    assert (cuda.entered, modes) == ([3, 3], [2])
