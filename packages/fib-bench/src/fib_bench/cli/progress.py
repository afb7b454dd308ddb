"""Progress of a run on stderr: a bar on a terminal, plain lines in a log."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fib_schema import Trace
from fib_schema.display import counted
from fib_schema.trace_facts import CPU_TIMING, INTERPRETED, shown_latency_of
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from ..events import DeviceExcluded, Evaluated, Event, Observer, Planned, Skipped, Working
from ..plan import Plan
from ..report import failure_text, speedup_of
from ..report.ratios import bounds_of, labels_of, latency_with_bounds, timed_by
from .output import safe_cell, say

_QUIET_SECONDS = 4.0
_BEAT_SECONDS = 0.5
"""Together they are below 5 seconds, the longest time without a line in a log."""


def format_trace(trace: Trace) -> str:
    """One evaluation in one line.

    A CPU timing has no speedup here: whether it is reliable shows only after all solutions have run.
    """
    evaluation = trace.evaluation
    if evaluation is None:
        return f"{trace.definition} {trace.workload.uuid}"
    head, performance = _head_of(trace), evaluation.performance
    if performance is None:
        return f"{head}: {failure_text(evaluation)}"
    latency, labels, methods = shown_latency_of(evaluation), labels_of(evaluation), timed_by(performance)
    facts = [] if latency is None else [latency_with_bounds(latency, bounds_of(performance))]
    if not {CPU_TIMING, INTERPRETED} & set(labels) and (text := speedup_of(performance).text) != "-":
        facts.append(text)
    facts += labels
    facts += [f"timed by: {methods}"] if methods and latency is not None else []
    return f"{head}: {evaluation.status} {', '.join(facts)}"


def progress_line(trace: Trace) -> str:
    """One evaluation in one line, without the reason of a failure, which is printed once at the end."""
    evaluation = trace.evaluation
    if evaluation is None or evaluation.performance is not None:
        return format_trace(trace)
    return f"{_head_of(trace)}: {evaluation.status}"


def _head_of(trace: Trace) -> str:
    axes = ",".join(f"{axis}={size}" for axis, size in trace.workload.axes.items())
    return f"{trace.definition} [{axes}] {trace.solution}"


@contextmanager
def progress_on(console: Console) -> Iterator[Observer]:
    """An observer that prints the progress of a run."""
    if not console.is_terminal:
        lines = LogProgress(lambda text: say(console, text))
        with _beating(lines):
            yield lines.observe
        return
    columns: tuple[ProgressColumn, ...] = (
        SpinnerColumn(),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        _RateColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}", table_column=None),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task, total = progress.add_task("", total=None), 0

        def observe(event: Event) -> None:
            nonlocal total
            if isinstance(event, Planned):
                total += event.plan.count  # the counts of several runs add up
                progress.update(task, total=total)
            elif isinstance(event, Working):
                progress.update(task, description=safe_cell(str(event)))
            text, done, is_problem = _news(event)
            progress.advance(task, done)
            if is_problem:
                say(progress.console, text, "red")

        yield observe


def _news(event: Event) -> tuple[str, int, bool]:
    """The line of an event, empty if it has none; the evaluations that it ends; whether it is a problem."""
    match event:
        case Planned(plan=plan):
            return _planned(plan), 0, any(skip.is_failure for skip in plan.skipped)
        case Evaluated(trace=trace):
            return progress_line(trace), 1, not trace.is_successful()
        case Skipped(skip=skip, count=count):
            return f"could not run: {skip.subject}", count, True
        case DeviceExcluded():
            return str(event), 0, True
    return "", 0, False


class _RateColumn(ProgressColumn):
    """Evaluations per second."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:.1f}/s" if task.speed else "-/s")


class LogProgress:
    """Progress as lines for a log: one per evaluation, and one whenever nothing was written for a while.

    Args:
        write: Called with each line.
        clock: Monotonic seconds.
    """

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._write = write
        self._clock = clock
        self._pace = Pace(clock)
        self._lock = threading.Lock()
        self._written = self._began = clock()
        self._work = "starting"

    def observe(self, event: Event) -> None:
        """Write the line of an event."""
        with self._lock:
            if isinstance(event, Planned):
                self._pace.total += event.plan.count  # the counts of several runs add up
                self._begin("starting")
            elif isinstance(event, Working):
                self._begin(str(event))
            text, done, _ = _news(event)
            if text:
                self._pace.add(done)
                self._write(f"{self._pace} {text}" if done else text)
                self._written = self._clock()

    def beat(self) -> None:
        """Write what is going on, and for how long, if the last line is old."""
        with self._lock:
            now = self._clock()
            if now - self._written >= _QUIET_SECONDS:
                self._written = now
                self._write(f"{self._pace} {self._work}, for {now - self._began:.0f} s")

    def _begin(self, work: str) -> None:
        self._work, self._began = work, self._clock()


@contextmanager
def _beating(progress: LogProgress) -> Iterator[None]:
    """Call `LogProgress.beat` from a thread."""
    is_over = threading.Event()

    def beat() -> None:
        while not is_over.wait(_BEAT_SECONDS):
            progress.beat()

    thread = threading.Thread(target=beat, name="fib-bench progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


class Pace:
    """Finished share of a run, and the expected time of the rest.

    What came before the first result (starting, and preparing the first workloads) says nothing about the rest.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since, self._before = clock(), 0
        self.done = 0
        self.total = 0

    def add(self, count: int) -> None:
        """Count evaluations as done."""
        if count and not self.done:
            self._since, self._before = self._clock(), count
        self.done += count

    def __str__(self) -> str:
        rate = (self.done - self._before) / max(self._clock() - self._since, 1e-9)
        left = f" {rate:.1f}/s {(self.total - self.done) / rate:.0f}s left" if rate else ""
        return f"[{self.done}/{self.total}{left}]"


def _planned(plan: Plan) -> str:
    """The size of a plan; the reasons for work that cannot run are printed at the end."""
    failures = sum(skip.is_failure for skip in plan.skipped)
    return f"{counted(plan.count, 'evaluation')} to make" + (
        f"; {failures} cannot run, for the reasons below" if failures else ""
    )
