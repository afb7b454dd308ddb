"""Progress of a run on stderr, a bar on a terminal, a line for each evaluation in a log; and its end by a signal."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from fib_schema.display import counted
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from ..events import DeviceExcluded, Evaluated, Event, Observer, Planned, Skipped, Working
from ..plan import Plan
from ..report.leaderboard import format_trace
from .output import safe_cell, say


@contextmanager
def progress_on(console: Console, *, has_reasons: bool = False) -> Iterator[Observer]:
    """An observer that prints the progress of a run: on a terminal all problems above a bar, in a log every line.

    Reasons of failures are printed by request; `run` prints them at its end.
    """
    columns = (SpinnerColumn(), BarColumn(bar_width=24), MofNCompleteColumn(), TimeRemainingColumn())
    text = TextColumn("{task.description}")
    with Progress(*columns, text, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=0)

        def observe(event: Event) -> None:
            if isinstance(event, Planned):  # the counts of several runs add up
                progress.update(bar, total=(progress.tasks[0].total or 0) + event.plan.count)
            elif isinstance(event, Working):
                progress.update(bar, description=safe_cell(str(event)))
            text, done, is_problem = _news(event, has_reasons)
            progress.update(bar, advance=done)
            if text and console.is_terminal and is_problem:
                say(progress.console, text, "red")
            elif text and not console.is_terminal:
                task = progress.tasks[0]
                say(console, f"[{task.completed:.0f}/{task.total:.0f}] {text}" if done else text)

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
