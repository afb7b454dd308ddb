"""Metrics for Prometheus: a textfile and an endpoint; what fails there never reaches the engine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from socket import socket
from typing import Any

import pytest
import torch
from fib_apply import add_event_listener, apply, enable_apply, get_runtime, remove_event_listener
from fib_apply.events import Event, OperationFailed
from fib_schema import Definition, TraceSet

client = pytest.importorskip("prometheus_client", reason="needs the extra `metrics`")

X = torch.ones(2, 4)
SECONDS = 60.0
Config = Callable[[str], Path]


@pytest.fixture(name="found")
def found_fixture(definition: Definition, new_solution: Any, new_trace: Any) -> TraceSet:
    solution = new_solution("fast", content="def run(x, y):\n    y.copy_(3 * x)\n")
    return TraceSet(None, {"scale": definition}, {"scale": (solution,)}, {}, {"scale": (new_trace("fast", m=2),)})


@pytest.fixture
def config(tmp_path: Path) -> Config:
    def write(text: str) -> Path:
        (tmp_path / "apply.yaml").write_text(text)
        return tmp_path / "apply.yaml"

    return write


@pytest.fixture(name="problems")
def problems_fixture() -> Iterator[list[str]]:
    problems: list[str] = []

    def keep(event: Event) -> None:
        if isinstance(event, OperationFailed):
            problems.append(event.problem)

    add_event_listener(keep)
    yield problems
    remove_event_listener(keep)


@apply("scale")
def scale(x: Any) -> Any:
    return 2 * x


def free_port() -> int:
    with socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def until(is_done: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + SECONDS
    while not is_done() and time.monotonic() < deadline:
        time.sleep(0.01)
    return is_done()


def values_in(text: str) -> dict[str, float]:
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


class TestTextfile:
    def test_it_has_counts_by_definition_and_reason_and_durations(
        self, found: TraceSet, config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))  # so that the solution is probed
        path = tmp_path / "metrics" / f"fib-apply-{os.getpid()}.prom"
        with enable_apply(found, config("metrics: {folder: metrics, interval_seconds: 0.1}")) as runtime:
            for rows in (2, 2, 2, 5):
                scale(torch.ones(rows, 4))
            runtime.reload()
            runtime.dispatcher("scale").quarantine("fast", "it is wrong")  # type: ignore[union-attr]
            label = f'pid="{os.getpid()}"'
            name = f'fib_apply_quarantines_total{{definition="scale",{label}}}'
            assert until(lambda: path.exists() and values_in(path.read_text()).get(name) == 1)
            found_values = values_in(path.read_text())
            assert found_values[f'fib_apply_hits_total{{definition="scale",{label}}}'] == 3
            assert found_values[f'fib_apply_misses_total{{definition="scale",{label},reason="not recorded"}}'] == 1
            assert found_values[f'fib_apply_reload_seconds_count{{{label},result="done"}}'] == 1
            assert found_values[f"fib_apply_up{{{label}}}"] == 1
            assert found_values[f"fib_apply_left_out_solutions{{{label}}}"] == 1
            assert path.stat().st_mode & 0o777 == 0o644
        assert not path.exists()

    def test_builds_and_probes_have_durations(
        self, found: TraceSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from fib_apply.operation.prometheus import ApplyCollector

        monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
        registry = client.CollectorRegistry()
        collector = ApplyCollector(get_runtime)
        registry.register(collector)
        try:
            with enable_apply(found):
                found_values = values_in(client.generate_latest(registry).decode())
        finally:
            collector.close()
        for kind in ("build", "probe"):
            assert found_values[f'fib_apply_{kind}_seconds_count{{result="done"}}'] == 1
            assert found_values[f'fib_apply_{kind}_seconds_sum{{result="done"}}'] > 0

    @pytest.mark.parametrize("folder", ["/proc/self/fdinfo", "/dev/null/metrics", "apply.yaml/metrics"])
    def test_a_folder_that_cannot_be_written_is_reported_once(
        self, found: TraceSet, config: Config, problems: list[str], folder: str
    ) -> None:
        with enable_apply(found, config(f"metrics: {{folder: {folder}, interval_seconds: 0.1}}")):
            assert until(lambda: bool(problems))
            time.sleep(0.5)  # several intervals
            assert scale(X)[0, 0] == 3
        assert [text.partition(":")[0] for text in problems] == ["metrics are not written"]

    def test_a_full_disk_never_reaches_the_engine(self, tmp_path: Path) -> None:
        """A limit of file sizes refuses each write, as a full disk does."""
        (tmp_path / "apply.yaml").write_text("metrics: {folder: metrics, interval_seconds: 0.1}")
        program = (
            "import resource, sys, time, fib_apply\n"
            "from fib_schema import TraceSet\n"
            "problems = []\n"
            "fib_apply.add_event_listener(lambda event: hasattr(event, 'problem') and problems.append(event.problem))\n"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
            "with fib_apply.enable_apply(TraceSet(), sys.argv[1]):\n"
            "    time.sleep(1)\n"
            "print(len(problems), 'too large' in problems[0])\n"
        )
        command = [sys.executable, "-c", program, str(tmp_path / "apply.yaml")]
        ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=120, check=False)
        assert (ended.stdout, ended.returncode) == ("1 True\n", 0)
        assert list((tmp_path / "metrics").iterdir()) == []

    def test_a_forked_child_has_a_file_of_its_own(self, found: TraceSet, config: Config, tmp_path: Path) -> None:
        with enable_apply(found, config("metrics: {folder: metrics, interval_seconds: 0.1}")):
            pid = os.fork()
            if pid == 0:
                path = tmp_path / "metrics" / f"fib-apply-{os.getpid()}.prom"
                os._exit(0 if until(path.exists) else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


class TestEndpoint:
    def test_it_serves_metrics_until_the_runtime_stops(self, found: TraceSet, config: Config) -> None:
        port = free_port()
        url = f"http://127.0.0.1:{port}/metrics"
        with enable_apply(found, config(f"metrics: {{port: {port}}}")):
            scale(X)
            with urllib.request.urlopen(url, timeout=SECONDS) as answer:
                assert values_in(answer.read().decode())['fib_apply_hits_total{definition="scale"}'] == 1
        with pytest.raises(urllib.error.URLError):
            urllib.request.urlopen(url, timeout=SECONDS)

    def test_a_forked_child_can_stop(self, found: TraceSet, config: Config) -> None:
        with enable_apply(found, config(f"metrics: {{port: {free_port()}}}")) as runtime:
            pid = os.fork()
            if pid == 0:
                signal.alarm(30)
                runtime.stop()
                os._exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

    def test_a_port_that_is_taken_is_reported(self, found: TraceSet, config: Config, problems: list[str]) -> None:
        with socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            with enable_apply(found, config(f"metrics: {{port: {port}}}")):
                assert scale(X)[0, 0] == 3
        assert problems == [
            f"metrics are not served at 127.0.0.1:{port}: Address already in use; set another port or `folder`"
        ]


def test_a_reload_resets_no_counter(found: TraceSet) -> None:
    with enable_apply(found, stats=True) as runtime:
        apply("scale", args=(X,), fallback=lambda x: 2 * x)
        runtime.reload()
        assert runtime.stats()["scale"].hits == {"M=2": 1}


def test_without_the_extra_metrics_are_reported_as_missing(
    found: TraceSet, config: Config, problems: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "fib_apply.operation.prometheus", raising=False)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with enable_apply(found, config("metrics: {folder: metrics}")):
        assert scale(X)[0, 0] == 3
    assert len(problems) == 1
    assert "pip install 'fib-apply[metrics]'" in problems[0]
