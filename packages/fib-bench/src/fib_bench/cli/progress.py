"""Progress of a run on stderr, a bar on a terminal, a line for each evaluation in a log; and its end by a signal."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from fib_schema.display import counted
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from ..events import DeviceExcluded, Evaluated, Event, Observer, Planned, Skipped, Working
from ..plan import Plan
from ..report.leaderboard import format_trace
from .output import safe_cell, say

_SILENT_SECONDS = 10.0


@contextmanager
def breaking_silence(show: Callable[[str], object], doing: Callable[[], str]) -> Iterator[Callable[[], None]]:
    """Show, from a thread, what is being done whenever nothing was noted for 10 s; yields the function that notes."""
    noted, ended = threading.Event(), threading.Event()

    def watch() -> None:
        begin = time.monotonic()
        while not ended.is_set():
            if noted.wait(_SILENT_SECONDS):
                noted.clear()
                begin = time.monotonic()
            else:
                with suppress(OSError, ValueError):  # nobody reads any more
                    show(f"{doing()}: {time.monotonic() - begin:.0f} s so far")

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield noted.set
    finally:
        ended.set()
        noted.set()
        thread.join()


@contextmanager
def progress_on(console: Console, *, has_reasons: bool = False) -> Iterator[Observer]:
    """An observer that prints the progress of a run: on a terminal all problems above a bar, in a log every line.

    Reasons of failures are printed by request; `run` prints them at its end.
    """
    bar, doing = TaskID(0), "starting"
    columns = (SpinnerColumn(), BarColumn(bar_width=24), MofNCompleteColumn(), TimeRemainingColumn())
    text = TextColumn("{task.description}")

    def show(text: str) -> None:
        if not console.is_terminal:
            say(console, f"[{progress.tasks[0].completed:.0f}/{progress.tasks[0].total:.0f}] {text}")

    def observe(event: Event) -> None:
        nonlocal doing
        if isinstance(event, Planned):  # the counts of several runs add up
            progress.update(bar, total=(progress.tasks[0].total or 0) + event.plan.count)
        elif isinstance(event, Working):
            doing = str(event)
            progress.update(bar, description=safe_cell(doing))
        text, done, is_problem = _news(event, has_reasons)
        progress.update(bar, advance=done)
        if text:
            note()
        if text and done and not console.is_terminal:
            show(text)
        elif text and (is_problem or not console.is_terminal):
            say(progress.console, text, "red" if console.is_terminal else "")

    with (
        Progress(*columns, text, console=console, transient=True, disable=not console.is_terminal) as progress,
        breaking_silence(show, lambda: doing) as note,
    ):
        progress.add_task("", total=0)
        yield observe


def _news(event: Event, has_reasons: bool) -> tuple[str, int, bool]:
    """The line of an event, empty if it has none; the evaluations that it ends; whether it is a problem."""
    match event:
        case Planned(plan=plan):
            return _planned(plan), 0, any(skip.is_failure for skip in plan.skipped)
        case Evaluated(trace=trace):
            return format_trace(trace, has_reason=has_reasons), 1, not trace.is_successful()
        case Skipped(skip=skip, count=count):
            return f"could not run: {skip.subject}", count, True
        case DeviceExcluded():
            return str(event), 0, True
    return "", 0, False


def _planned(plan: Plan) -> str:
    """The size of a plan; the reasons for work that cannot run are printed at the end."""
    failures = sum(skip.is_failure for skip in plan.skipped)
    return f"{counted(plan.count, 'evaluation')} to make" + (
        f"; {failures} cannot run, for the reasons below" if failures else ""
    )


@contextmanager
def interruptible(stop: Callable[[], object], errors: Console) -> Iterator[None]:
    """Let an interrupt or SIGTERM stop a run at once; its results and reasons are still printed."""

    def end(*_: object) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler)
        errors.print("stopping")
        stop()

    with handled(end, signal.SIGINT, signal.SIGTERM):
        yield


@contextmanager
def handled(handler: Callable[[int, FrameType | None], Any], *numbers: int) -> Iterator[None]:
    """Handle signals in the block; the handlers before it come back."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
