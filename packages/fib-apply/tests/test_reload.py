"""Reloads by signal, by watching files and by call: calls go on, and a failure keeps the earlier table."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import pytest
import torch
from fib_apply import ApplyConfig, add_event_listener, apply, enable_apply, get_runtime, remove_event_listener
from fib_apply.events import Event, OperationFailed, Reloaded, ReloadFailed
from fib_apply.operation import reload_signal
from fib_schema import Definition, TraceSet, format_json
from fib_schema.files import atomic_write

SECONDS = 60.0
X = torch.ones(2, 4)


class Events:
    """The events of a test, which may come from any thread."""

    def __init__(self) -> None:
        self.queue: SimpleQueue[Event] = SimpleQueue()

    def next(self, *kinds: type[Event], seconds: float = SECONDS) -> Any:
        deadline = time.monotonic() + seconds
        while True:
            event = self.queue.get(timeout=max(0.0, deadline - time.monotonic()))
            if isinstance(event, kinds):
                return event

    def has(self, *kinds: type[Event], seconds: float) -> bool:
        try:
            self.next(*kinds, seconds=seconds)
        except Empty:
            return False
        return True


@pytest.fixture(name="events")
def events_fixture() -> Iterator[Events]:
    made = Events()
    add_event_listener(made.queue.put)
    yield made
    remove_event_listener(made.queue.put)


class Folder:
    """A data set with one solution, which multiplies by a factor."""

    def __init__(self, path: Path, new_solution: Any) -> None:
        self.path = path
        self.new_solution = new_solution

    def set_factor(self, factor: int | str, extra: str = "") -> None:
        content = f"{extra}\ndef run(x, y):\n    y.copy_({factor} * x)\n"
        made = self.new_solution("fast", content=content)
        paths = list((self.path / "solutions").rglob("*.json"))
        if paths:
            atomic_write(paths[0], format_json(made).encode())
        else:
            TraceSet.from_path(self.path).add_solutions([made])


@pytest.fixture(name="found")
def found_fixture(definition: Definition, new_solution: Any, new_trace: Any, tmp_path: Path) -> Folder:
    made = TraceSet(tmp_path / "set")
    made.add_definitions([definition])
    folder = Folder(tmp_path / "set", new_solution)
    folder.set_factor(3)
    TraceSet.from_path(tmp_path / "set").add_traces([new_trace("fast", m=2)])
    return folder


@pytest.fixture
def config(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        (tmp_path / "apply.yaml").write_text(text)
        return tmp_path / "apply.yaml"

    return write


@apply("scale")
def scale(x: Any) -> Any:
    return 2 * x


def factor() -> float:
    return float(scale(X)[0, 0].item())


@pytest.fixture(autouse=True)
def _signals_restored() -> Iterator[None]:
    before = signal.getsignal(signal.SIGUSR1)
    yield
    assert not isinstance(signal.getsignal(signal.SIGUSR1), reload_signal._Handler)
    signal.signal(signal.SIGUSR1, before)


class TestSignals:
    def test_a_signal_reloads_and_calls_the_earlier_handler(
        self, found: Folder, config: Callable[[str], Path], events: Events
    ) -> None:
        earlier: list[int] = []
        signal.signal(signal.SIGUSR1, lambda number, frame: earlier.append(number))
        with enable_apply(found.path, config("reload: {signal: SIGUSR1}")):
            assert factor() == 3
            found.set_factor(5)
            os.kill(os.getpid(), signal.SIGUSR1)
            reloaded = events.next(Reloaded, ReloadFailed)
            assert (reloaded.cause, reloaded.is_changed) == ("signal", True)
            assert factor() == 5
        assert earlier == [signal.SIGUSR1]
        os.kill(os.getpid(), signal.SIGUSR1)  # the earlier handler is restored
        assert earlier == [signal.SIGUSR1] * 2

    def test_without_the_setting_no_handler_is_installed(self, found: Folder, config: Callable[[str], Path]) -> None:
        before = signal.getsignal(signal.SIGUSR1)
        with enable_apply(found.path, config("reload: {watch_seconds: 100}")):
            assert signal.getsignal(signal.SIGUSR1) is before

    def test_signals_during_a_reload_are_one_more_reload(
        self, found: Folder, config: Callable[[str], Path], events: Events
    ) -> None:
        with enable_apply(found.path, config("reload: {signal: SIGUSR1}")) as runtime:
            begun, may_end = threading.Event(), threading.Event()

            def block(*step: object) -> None:
                begun.set()
                may_end.wait(SECONDS)

            runtime._on_progress = block
            os.kill(os.getpid(), signal.SIGUSR1)
            assert begun.wait(SECONDS)
            found.set_factor(5)
            for _ in range(100):
                os.kill(os.getpid(), signal.SIGUSR1)
                assert factor() == 3  # calls go on with the earlier table
                time.sleep(0.002)  # so that the thread sees many of them
            may_end.set()
            assert events.next(Reloaded, ReloadFailed).cause == "signal"
            events.next(Reloaded, ReloadFailed)
            assert factor() == 5
            assert not events.has(Reloaded, ReloadFailed, seconds=0.5)

    def test_another_thread_than_the_main_one_installs_no_handler(
        self, found: Folder, config: Callable[[str], Path], events: Events
    ) -> None:
        before = signal.getsignal(signal.SIGUSR1)
        path = config("reload: {signal: SIGUSR1}")
        thread = threading.Thread(target=lambda: enable_apply(found.path, path))
        thread.start()
        thread.join(SECONDS)
        assert "routing was started in another thread" in events.next(OperationFailed).problem
        assert signal.getsignal(signal.SIGUSR1) is before
        assert factor() == 3

    def test_a_configured_engine_reloads_by_a_signal(
        self, found: Folder, config: Callable[[str], Path], tmp_path: Path
    ) -> None:
        """Its runtime is made in a background thread, and the default action of the signal would end it."""
        program = (
            "import os, signal, sys, time, torch, fib_apply\n"
            "@fib_apply.apply('scale')\ndef scale(x):\n    return 2 * x\n"
            "assert fib_apply.wait_until_built(60)\n"
            "seen = []\nfib_apply.add_event_listener(lambda event: seen.append(type(event).__name__))\n"
            "os.kill(os.getpid(), signal.SIGHUP)\n"
            "end = time.monotonic() + 60\n"
            "while 'Reloaded' not in seen and time.monotonic() < end: time.sleep(0.01)\n"
            "print(scale(torch.ones(2, 4))[0, 0].item(), 'Reloaded' in seen)\n"
        )
        environment = {
            **os.environ,
            "FIB_ENABLE_APPLY": "1",
            "FIB_DATASET_PATH": str(found.path),
            "FIB_APPLY_CONFIG": str(config("reload: {signal: SIGHUP}")),
        }
        ended = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert (ended.stdout, ended.stderr, ended.returncode) == ("3.0 True\n", "", 0)


class TestWatching:
    def test_changed_files_are_loaded_once(self, found: Folder, config: Callable[[str], Path], events: Events) -> None:
        with enable_apply(found.path, config("reload: {watch_seconds: 0.1}")):
            assert not events.has(Reloaded, ReloadFailed, seconds=0.5)
            found.set_factor(5)
            reloaded = events.next(Reloaded, ReloadFailed)
            assert (reloaded.cause, reloaded.is_changed) == ("watch", True)
            assert factor() == 5
            assert not events.has(Reloaded, ReloadFailed, seconds=0.5)

    def test_a_changed_configuration_file_is_loaded(
        self, found: Folder, config: Callable[[str], Path], events: Events
    ) -> None:
        with enable_apply(found.path, config("reload: {watch_seconds: 0.1}")) as runtime:
            config("reload: {watch_seconds: 0.1}\ndefault: {on_error: fallback}")
            assert isinstance(events.next(Reloaded, ReloadFailed), Reloaded)
            assert runtime.config.default.on_error == "fallback"

    def test_what_cannot_be_loaded_is_reported_once_and_tried_again_when_it_changes(
        self, found: Folder, config: Callable[[str], Path], events: Events
    ) -> None:
        with enable_apply(found.path, config("reload: {watch_seconds: 0.1}")):
            shutil.move(found.path, found.path.with_name("moved"))
            failed = events.next(Reloaded, ReloadFailed)
            assert isinstance(failed, ReloadFailed)
            assert "no data set" in failed.problem
            assert factor() == 3
            assert not events.has(Reloaded, ReloadFailed, seconds=0.5)
            shutil.move(found.path.with_name("moved"), found.path)
            found.set_factor(5)
            assert isinstance(events.next(Reloaded, ReloadFailed), Reloaded)
            assert factor() == 5

    def test_watching_ends_with_the_runtime(self, found: Folder, config: Callable[[str], Path]) -> None:
        with enable_apply(found.path, config("reload: {watch_seconds: 0.1}")):
            assert "fib-apply reload" in thread_names()
        deadline = time.monotonic() + SECONDS
        while "fib-apply reload" in thread_names() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert "fib-apply reload" not in thread_names()


def thread_names() -> list[str]:
    return [thread.name for thread in threading.enumerate()]


class TestCalls:
    def test_a_running_call_keeps_the_earlier_table(self, found: Folder, tmp_path: Path) -> None:
        inside, may_end = tmp_path / "inside", tmp_path / "end"
        wait = (
            "import pathlib, time\n"
            "def wait():\n"
            f"    pathlib.Path({str(inside)!r}).touch()\n"
            f"    while not pathlib.Path({str(may_end)!r}).exists(): time.sleep(0.01)\n"
        )
        found.set_factor("(wait(), 3)[1]", wait)
        results: list[float] = []
        with enable_apply(found.path) as runtime:
            thread = threading.Thread(target=lambda: results.append(factor()))
            thread.start()
            while not inside.exists():
                time.sleep(0.01)
            found.set_factor(5)
            runtime.reload()
            assert factor() == 5
            may_end.touch()
            thread.join(SECONDS)
        assert results == [3]

    def test_a_fork_during_a_reload_routes_by_the_earlier_table_and_reloads_itself(
        self, found: Folder, config: Callable[[str], Path]
    ) -> None:
        with enable_apply(found.path, config("reload: {watch_seconds: 0.2}")) as runtime:
            begun, may_end = threading.Event(), threading.Event()

            def block(*step: object) -> None:
                begun.set()
                may_end.wait(SECONDS)

            runtime._on_progress = block
            found.set_factor(5)
            assert begun.wait(SECONDS)
            # A fork while another thread imports a module leaves that module's lock held in the child, for ever.
            assert runtime._router.build_service.wait(SECONDS)
            pid = os.fork()
            if pid == 0:
                may_end.set()
                code = 1
                try:
                    is_earlier = factor() == 3
                    deadline = time.monotonic() + SECONDS
                    while factor() != 5 and time.monotonic() < deadline:
                        time.sleep(0.05)
                    code = 0 if is_earlier and factor() == 5 and get_runtime() is runtime else (2 if is_earlier else 3)
                finally:
                    os._exit(code)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
            may_end.set()

    def test_a_first_call_during_a_reload_gets_the_earlier_version_of_a_solution(self, found: Folder) -> None:
        during: list[float] = []
        with enable_apply(found.path) as runtime:
            found.set_factor(5)

            def call(done: int, total: int, name: str) -> None:
                if done == total:  # the new version is loaded
                    during.append(factor())

            runtime._on_progress = call
            runtime.reload()
            assert factor() == 5
        assert during == [3]

    def test_quarantines_of_a_reload_in_progress_are_kept(self, found: Folder) -> None:
        with enable_apply(found.path, ApplyConfig(on_error="fallback")) as runtime:
            assert factor() == 3

            def quarantine(*step: object) -> None:
                runtime.dispatcher("scale").quarantine("fast", "it is wrong")  # type: ignore[union-attr]

            runtime._on_progress = quarantine
            runtime.reload()
            assert factor() == 2
