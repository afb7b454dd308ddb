"""Solutions are built once, in the background, and none of them harms the process or its callers."""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import signal
import subprocess
import sys
import threading
import types
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from fib_apply.building import background, rounds
from fib_apply.building.workshop import Progress, Workshop
from fib_compile import BuilderRegistry, Limits, PythonBuilder, Runnable
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
def workshop(builder: Gated) -> Iterator[Workshop]:
    made = Workshop(BuilderRegistry([builder]))
    yield made
    made.close()


@pytest.fixture
def no_probing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Probing has tests of its own; here it would only take time."""

    def safe(pairs: Any, **_: Any) -> dict[str, None]:
        return {solution.name: None for _, solution in pairs}

    monkeypatch.setattr(rounds, "probe", safe)


def in_thread(call: Any) -> threading.Thread:
    thread = threading.Thread(target=call)
    thread.start()
    return thread


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_bad_solutions_are_left_out_with_one_warning_each(
    workshop: Workshop, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    pairs = [
        pair("works"),
        pair("raises", "raise ValueError('one\\ntwo')"),
        pair("exits", "import sys; sys.exit(1)"),
        pair("interrupts", "raise KeyboardInterrupt"),
        pair("leaves", "import os; os._exit(3)"),
    ]
    steps: list[tuple[int, int, str]] = []
    workshop.build_ahead(pairs, lambda *step: steps.append(step))
    workshop.build_ahead(pairs)

    runnable = workshop.find("works")
    assert runnable is not None
    assert runnable(7) == 7
    assert [workshop.find(name) for name in ("raises", "unknown")] == [None, None]
    assert (workshop.problem("works"), workshop.problem("unknown")) == (None, None)
    assert workshop.left_out().keys() == {"raises", "exits", "interrupts", "leaves"}
    assert workshop.problem("raises") == workshop.left_out()["raises"]
    assert "ValueError: one" in workshop.left_out()["raises"]
    assert warned(caplog) == [
        "solution leaves is left out: it ended the process that loaded it with exit status 3",
        "solution raises is left out: importing 'kernel.py' failed with ValueError: one",
        "solution exits is left out: importing 'kernel.py' called exit with code 1; remove the call",
        "solution interrupts is left out: KeyboardInterrupt",
    ]
    assert {record.name for record in caplog.records} == {"fib_apply"}
    assert workshop.progress == Progress(built=1, left_out=4, waiting=0, failures=0)
    assert steps[-1] == (5, 5, "interrupts")
    assert [done for done, _, _ in steps] == sorted(done for done, _, _ in steps)
    assert {total for _, total, _ in steps} == {5}
    assert capfd.readouterr() == ("", "")


def test_what_does_not_compile_is_left_out_and_not_probed(
    builder: Gated, workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "probe", lambda pairs, **_: dict.fromkeys(pairs))
    spec = BuildSpec("cpp", ("cpu",), "kernel.cpp::run")
    workshop.build_ahead([(DEFINITION, Solution("c++", "copy", "tests", spec, (SourceFile("kernel.cpp", ""),)))])

    assert "no builder for language 'cpp'" in (workshop.problem("c++") or "")
    assert builder.built == []


@pytest.mark.usefixtures("no_probing")
def test_two_threads_that_ask_for_the_same_have_it_built_once(builder: Gated, workshop: Workshop) -> None:
    one = solution("gated")
    workshop.request(DEFINITION, one)
    assert builder.started.wait(SOON)
    calls: list[int] = []
    threads = [
        in_thread(lambda n=n: workshop.request(DEFINITION, solution("gated"), lambda: calls.append(n)))
        for n in range(4)
    ]
    for thread in threads:
        thread.join()
    workshop.request(DEFINITION, one)
    assert workshop.find("gated") is None
    builder.gate.set()

    assert workshop.wait(SOON)
    assert workshop.find("gated") is not None
    assert builder.built == ["gated"]
    assert sorted(calls) == [0, 1, 2, 3]


@pytest.mark.usefixtures("no_probing")
def test_what_follows_is_called_in_order_in_the_background_thread(workshop: Workshop) -> None:
    calls: list[tuple[str, str, bool]] = []

    def then(name: str) -> Any:
        return lambda: calls.append((name, threading.current_thread().name, workshop.find("one") is not None))

    workshop.request(DEFINITION, solution("one"), then("first"))
    workshop.request(DEFINITION, solution("one"), then("second"))
    assert workshop.wait(SOON)
    workshop.request(DEFINITION, solution("one"), then("after it was built"))
    workshop.request(DEFINITION, solution("bad", "raise ValueError"), then("bad"))
    assert workshop.wait(SOON)

    names = ["first", "second", "after it was built", "bad"]
    assert calls == [(name, "fib-apply", True) for name in names]


@pytest.mark.usefixtures("no_probing")
def test_what_raises_in_the_background_is_logged_and_counted(
    workshop: Workshop, caplog: pytest.LogCaptureFixture
) -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise ValueError

    def fail(error: BaseException) -> Any:
        def raising() -> None:
            raise error

        return raising

    done = threading.Event()
    workshop.submit(fail(ValueError("a\nb")), "sweeping")
    workshop.submit(fail(Silent()), "dusting")
    workshop.submit(fail(SystemExit(1)), "leaving")
    workshop.request(DEFINITION, solution("one"), fail(KeyError("k")))
    workshop.submit(done.set, "the last")
    assert workshop.wait(SOON)

    assert done.is_set()
    assert warned(caplog) == [
        "sweeping failed in the background: ValueError: a",
        "dusting failed in the background: Silent",
        "leaving failed in the background: SystemExit: 1",
        "what follows the building of one failed in the background: KeyError: 'k'",
    ]
    assert workshop.progress == Progress(built=1, left_out=0, waiting=0, failures=4)


@pytest.mark.usefixtures("no_probing")
def test_what_is_built_is_found_while_another_is_built(builder: Gated, workshop: Workshop) -> None:
    workshop.build_ahead([pair("one")])
    workshop.request(*pair("gated"))
    assert builder.started.wait(SOON)

    assert workshop.find("one") is not None
    assert workshop.problem("gated") is None
    assert workshop.progress == Progress(built=1, left_out=0, waiting=1, failures=0)
    assert not workshop.wait(0)


@pytest.mark.usefixtures("no_probing")
def test_other_content_under_the_same_name_takes_its_place(workshop: Workshop) -> None:
    workshop.build_ahead([pair("one")])
    first = workshop.find("one")
    workshop.build_ahead([pair("one", "VERSION = 2")])
    second = workshop.find("one")
    assert second is not None
    assert second is not first
    workshop.request(*pair("one", "raise ValueError"))
    assert workshop.wait(SOON)

    assert workshop.find("one") is None
    assert workshop.progress == Progress(built=0, left_out=1, waiting=0, failures=0)


@pytest.mark.usefixtures("no_probing")
def test_the_user_s_interrupt_ends_the_waiting_and_the_rest(builder: Gated, workshop: Workshop) -> None:
    def interrupt() -> None:
        assert builder.started.wait(SOON)
        os.kill(os.getpid(), signal.SIGINT)

    thread = in_thread(interrupt)
    with pytest.raises(KeyboardInterrupt):
        workshop.build_ahead([pair("gated"), pair("another")])
    thread.join()
    builder.gate.set()
    assert workshop.wait(SOON)

    assert builder.built == ["gated"]
    assert workshop.find("gated") is not None
    workshop.build_ahead([pair("another")])
    assert workshop.find("another") is not None


@pytest.mark.usefixtures("no_probing")
def test_an_interrupt_stops_the_compilers(builder: Gated, workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_ahead(definition: Definition, solution: Solution, limits: Limits) -> bool:
        builder.started.set()
        tick = threading.Event()
        assert any(limits.is_stopped() or tick.wait(0.01) for _ in range(6000))
        return True

    def interrupt() -> None:
        assert builder.started.wait(SOON)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(builder, "compile_ahead", compile_ahead)
    thread = in_thread(interrupt)
    with pytest.raises(KeyboardInterrupt):
        workshop.build_ahead([pair("one")], jobs=1)
    thread.join()

    assert workshop.wait(SOON)
    assert workshop.progress == Progress(built=0, left_out=0, waiting=0, failures=0)


@pytest.mark.usefixtures("no_probing")
def test_what_a_progress_bar_raises_ends_the_rest_and_reaches_the_caller(builder: Gated, workshop: Workshop) -> None:
    def report(done: int, total: int, name: str) -> None:
        raise OSError(name)

    with pytest.raises(OSError, match="gated"):
        workshop.build_ahead([pair("gated"), pair("another")], report)
    builder.gate.set()
    assert workshop.wait(SOON)

    assert workshop.find("another") is None
    assert workshop.progress.failures == 0


@pytest.mark.usefixtures("no_probing")
def test_a_forked_process_keeps_what_is_built_and_builds_on(builder: Gated, workshop: Workshop) -> None:
    workshop.build_ahead([pair("one")])
    workshop.request(*pair("gated"))
    workshop.request(*pair("waiting"))
    assert builder.started.wait(SOON)

    def check() -> None:
        assert workshop.wait(0)
        assert workshop.find("one") is not None
        assert workshop.progress == Progress(built=1, left_out=0, waiting=0, failures=0)
        builder.gate.set()
        workshop.request(*pair("gated"))
        assert workshop.wait(SOON)
        assert workshop.find("gated") is not None
        assert workshop.find("waiting") is None

    assert exit_code_of_fork(check) == 0
    assert workshop.find("gated") is None
    builder.gate.set()
    assert workshop.wait(SOON)
    assert workshop.find("waiting") is not None


def exit_code_of_fork(check: Any) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that the process has threads is the point
        process = os.fork()
    if process:
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    try:
        signal.alarm(int(2 * SOON))
        check()
    except BaseException:  # noqa: BLE001 - the border of a process
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    os._exit(0)


@pytest.mark.usefixtures("no_probing")
def test_a_copy_that_a_job_forks_does_not_go_on_with_the_queue(workshop: Workshop, tmp_path: Path) -> None:
    count = tmp_path / "count"
    codes: list[int] = []
    begun = threading.Event()

    def add() -> None:
        with count.open("a") as file:
            file.write("x")

    def fork() -> None:
        assert begun.wait(SOON)
        process = os.fork()
        if process:
            codes.append(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        workshop.submit(fork, "forking")
        workshop.submit(add, "counting")
        begun.set()
        assert workshop.wait(SOON)

    assert codes == [0]
    assert count.read_text() == "x"


@pytest.mark.usefixtures("no_probing")
def test_closing_drops_what_waits_and_lets_go_those_who_wait(
    builder: Gated, workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    workshop.request(*pair("gated"))
    assert builder.started.wait(SOON)
    called = threading.Event()
    workshop.request(*pair("waiting"), called.set)
    submitted = threading.Event()
    submit = workshop._background.submit

    def submitting(*job: Any, **drop: Any) -> None:
        submit(*job, **drop)
        submitted.set()

    monkeypatch.setattr(workshop._background, "submit", submitting)
    waiting = in_thread(lambda: workshop.build_ahead([pair("ahead")]))
    assert submitted.wait(SOON)
    workshop.close()
    waiting.join(SOON)
    assert not waiting.is_alive()
    builder.gate.set()
    assert workshop.wait(SOON)

    workshop.request(*pair("late"))
    workshop.build_ahead([pair("later")])
    workshop.submit(called.set, "late")
    workshop.close()
    assert workshop.wait(0)
    assert builder.built == ["gated"]
    assert workshop.find("gated") is not None
    assert not called.is_set()


@pytest.mark.usefixtures("no_probing")
def test_a_job_may_build_ahead(workshop: Workshop) -> None:
    steps: list[Any] = []
    workshop.submit(lambda: workshop.build_ahead([pair("one")], lambda *step: steps.append(step)), "reloading")
    assert workshop.wait(SOON)

    assert workshop.find("one") is not None
    assert steps[-1] == (1, 1, "one")


def test_the_thread_ends_when_idle_and_comes_back(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_IDLE_SECONDS", 0.0)
    threads: list[threading.Thread] = []
    for _ in range(2):
        workshop.submit(lambda: threads.append(threading.current_thread()), "looking")
        assert workshop.wait(SOON)
        threads[-1].join(SOON)
        assert not threads[-1].is_alive()

    assert threads[0] is not threads[1]
    assert all(thread.daemon for thread in threads)


@pytest.mark.usefixtures("no_probing")
def test_an_idle_thread_keeps_no_workshop_alive(builder: Gated) -> None:
    workshop = Workshop(BuilderRegistry([builder]))
    workshop.build_ahead([pair("one")])
    assert workshop.wait(SOON)
    reference = weakref.ref(workshop)
    del workshop
    gc.collect()

    assert reference() is None


@pytest.mark.usefixtures("no_probing")
def test_where_there_can_be_no_thread_a_request_can_be_repeated(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    one = pair("one")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        workshop.request(*one)
        workshop.build_ahead([one])
    assert warned(caplog) == ["nothing can be done in the background: can't start new thread"] * 2
    workshop.request(*one)
    assert workshop.wait(SOON)

    assert workshop.find("one") is not None


@pytest.mark.usefixtures("no_probing")
def test_a_registry_that_cannot_be_made_leaves_solutions_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> BuilderRegistry:
        raise OSError("a plugin is broken")

    monkeypatch.setattr(BuilderRegistry, "get_instance", fail)
    workshop = Workshop()
    workshop.build_ahead([pair("one")])

    assert workshop.left_out() == {"one": "OSError: a plugin is broken"}
    assert warned(caplog)[0] == "compiling ahead failed: OSError: a plugin is broken"


def test_what_cannot_be_probed_is_not_loaded(
    builder: Gated, workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(pairs: Any, **_: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(rounds, "probe", fail)
    workshop.build_ahead([pair("one")])

    assert workshop.left_out() == {"one": "it could not be probed: MemoryError"}
    assert builder.built == []


def test_nothing_is_imported_before_it_is_needed() -> None:
    code = "import sys; from fib_apply.building.workshop import Workshop; w = Workshop(); w.find('x'); w.request"
    code += "; assert not {'torch', 'triton', 'fib_compile.registry'} & sys.modules.keys()"
    subprocess.run(
        [sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )


@attrs.define
class FakeCuda:
    """What the background asks of ``torch.cuda``."""

    device: int = 0
    has_begun: bool = True
    entered: list[int] = attrs.field(factory=list)

    def is_initialized(self) -> bool:
        return self.has_begun

    def current_device(self) -> int:
        return self.device

    def set_device(self, index: int) -> None:
        self.entered.append(index)


def test_jobs_use_the_caller_s_device_and_let_others_capture(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda, modes = FakeCuda(device=3, has_begun=False), []

    def exchange(mode: Any) -> int:
        modes.append(mode._obj.value)
        return 0

    driver = types.SimpleNamespace(cuThreadExchangeStreamCaptureMode=exchange)
    monkeypatch.setattr(ctypes, "CDLL", {"libcuda.so.1": driver}.__getitem__)
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))
    workshop.submit(lambda: None, "before CUDA is in use")
    assert workshop.wait(SOON)
    assert (cuda.entered, modes) == ([], [])

    cuda.has_begun = True
    for _ in range(2):
        workshop.submit(lambda: None, "with CUDA")
    assert workshop.wait(SOON)
    assert (cuda.entered, modes) == ([3, 3], [2])


def test_a_machine_without_the_driver_is_no_failure(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=FakeCuda()))
    done = threading.Event()
    workshop.submit(done.set, "anything")
    assert workshop.wait(SOON)

    assert done.is_set()
    assert workshop.progress.failures == 0
