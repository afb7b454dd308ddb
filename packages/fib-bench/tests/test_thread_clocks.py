"""Tests of thread clocks: the same times as files that are opened anew, from real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from fib_bench.transport.messages import Done, Release
from fib_bench.worker.outside_checks import NotPermitted
from fib_bench.worker.server_client import ForkServerClient
from fib_bench.worker.thread_clocks import ThreadClocks

PRELUDE = """
import sys, threading
def tell(value=""):
    print(value, flush=True)
    return sys.stdin.readline()
def started(work):
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread
def wait():
    threading.Event().wait()
"""
Process = subprocess.Popen[str]


@pytest.fixture
def start() -> Iterator[Callable[[str], Process]]:
    """Starts processes, which end with the test."""
    processes: list[Process] = []

    def run(code: str) -> Process:
        command = [sys.executable, "-c", PRELUDE + textwrap.dedent(code)]
        processes.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        return processes[-1]

    yield run
    for process in processes:
        process.kill()
        process.communicate()


def said(process: Process, *, after_a_line: bool = False) -> str:
    """The next line of a process, in answer to a line or by itself."""
    assert process.stdin is not None
    assert process.stdout is not None
    if after_a_line:
        process.stdin.write("\n")
        process.stdin.flush()
    return process.stdout.readline().strip()


def opened_anew(pid: int) -> dict[int, int]:
    """The times of threads, from files that are opened for this reading."""
    files = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return {int(file.parent.name): int(file.read_text().split()[0]) for file in files}


def settled(pid: int) -> dict[int, int]:
    """The times of threads, once all of them sleep."""
    before, after = dict[int, int](), opened_anew(pid)
    while before != after:
        before, after = after, opened_anew(pid)
    return after


def test_times_are_those_of_files_that_are_opened_anew(start: Callable[[str], Process]) -> None:
    process = start("""
        started(wait)
        tell(started(wait).native_id)
        sum(range(300_000))
        tell()
    """)
    said(process)
    clocks = ThreadClocks(process.pid)
    first = settled(process.pid)
    assert clocks.read() == first
    assert len(first) == 3
    said(process, after_a_line=True)
    second = settled(process.pid)
    assert clocks.read() == second
    assert second[process.pid] > first[process.pid]
    clocks.close()


def test_threads_that_start_and_end_are_seen(start: Callable[[str], Process]) -> None:
    process = start("""
        gate = threading.Event()
        first = started(gate.wait)
        tell(first.native_id)
        gate.set(); first.join()
        tell(started(wait).native_id)
    """)
    first = int(said(process))
    clocks = ThreadClocks(process.pid)
    assert set(clocks.read()) == {process.pid, first}
    second = int(said(process, after_a_line=True))
    while first in (found := clocks.read()):  # the system removes it a little after the join
        pass
    assert set(found) == {process.pid, second}
    clocks.close()


def test_a_process_that_has_ended_is_reported(start: Callable[[str], Process]) -> None:
    process = start("tell()")
    said(process)
    clocks = ThreadClocks(process.pid)
    clocks.read()
    process.kill()
    process.wait()
    with pytest.raises(ProcessLookupError, match=f"process {process.pid} has ended"):
        clocks.read()
    clocks.close()


def test_a_refusal_says_what_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> list[str]:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "listdir", refuse)
    with pytest.raises(NotPermitted, match="cannot read the threads of process 7: Permission denied"):
        ThreadClocks(7).read()


def test_a_worker_closes_the_files(
    server: ForkServerClient, nothing_left_open: Callable[[], AbstractContextManager[None]]
) -> None:
    with nothing_left_open(), server.spawn() as worker:
        assert isinstance(worker.request(Release(), seconds=60), Done)
        assert worker.pid in worker.threads.read()
