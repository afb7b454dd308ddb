"""Tests of the timer of a process's steps."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from fib_bench import step_timer
from fib_bench.step_timer import StepTimer, process_age_seconds


def test_steps_begin_with_the_process_and_follow_each_other() -> None:
    now = iter([10.0, 10.5, 12.0, 12.25])
    timer = StepTimer(age_seconds=2.0, clock=lambda: next(now))
    for step in ("start", "work", "start"):
        timer.finish(step)
    assert timer.seconds == {"start": 2.75, "work": 1.5}
    assert list(timer.seconds) == ["start", "work"]


def test_the_age_of_a_process_is_at_least_its_cpu_time() -> None:
    code = (
        "import time; from fib_bench.step_timer import process_age_seconds as age; "
        "used = time.process_time(); print(used - 0.02 <= age() < 60)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


@pytest.mark.parametrize("text", ["", "1 (python) S", "1 (a) b) " + "0 " * 50])
def test_a_system_that_does_not_tell_the_age_leaves_the_cpu_time(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "stat"
    file.write_text(text)
    monkeypatch.setattr(step_timer, "_STATUS", file)
    monkeypatch.setattr("time.clock_gettime", lambda _: 1e6)
    monkeypatch.setattr("time.process_time", lambda: 0.5)
    assert process_age_seconds() == 0.5
