"""Progress of a run on stderr: a bar on a terminal, plain lines in a log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fib_schema import EvaluationStatus, Trace
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
from ..flags import CPU_TIMING, INTERPRETED
from ..report import failure_text, speedup_of
from ..report.trace_fields import labels_of, shown_latency_of, timed_by
from .printing import safe_cell, safe_text
from .tables import format_latency


def format_trace(trace: Trace) -> str:
    """One evaluation in one line.

    A CPU timing has no speedup here: whether it is reliable shows only after all solutions have run.
    """
    evaluation = trace.evaluation
    if evaluation is None:
        return f"{trace.definition} {trace.workload.uuid}"
    axes = ",".join(f"{axis}={size}" for axis, size in trace.workload.axes.items())
    head = f"{trace.definition} [{axes}] {trace.solution}"
    performance = evaluation.performance
    if performance is None:
        return f"{head}: {failure_text(evaluation)}"
    latency, labels, methods = shown_latency_of(evaluation), labels_of(evaluation), timed_by(performance)
    facts = [] if latency is None else [format_latency(latency)]
    if not {CPU_TIMING, INTERPRETED} & set(labels) and (text := speedup_of(performance).text) != "-":
        facts.append(text)
    facts += labels
    facts += [f"timed by: {methods}"] if methods and latency is not None else []
    return f"{head}: {evaluation.status} {', '.join(facts)}"


@contextmanager
def progress_on(console: Console) -> Iterator[Observer]:
    """An observer that prints the progress of a run."""
    if not console.is_terminal:
        yield _plain_lines(lambda text: console.print(safe_text(text), soft_wrap=True))
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
            match event:
                case Planned(plan=plan):
                    total += plan.count  # the counts of several runs add up
                    progress.update(task, total=total)
                case Working():
                    progress.update(task, description=safe_cell(str(event)))
                case Evaluated(trace=trace):
                    progress.advance(task)
                    if trace.evaluation and trace.evaluation.status is not EvaluationStatus.PASSED:
                        progress.console.print(safe_text(format_trace(trace), "red"), soft_wrap=True)
                case Skipped(skip=skip, count=count):
                    progress.advance(task, count)
                    text = f"could not run: {_first_line(str(skip))}"
                    progress.console.print(safe_text(text, "red"), soft_wrap=True)
                case DeviceExcluded():
                    progress.console.print(safe_text(str(event), "red"), soft_wrap=True)

        yield observe


class _RateColumn(ProgressColumn):
    """Evaluations per second."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:.1f}/s" if task.speed else "-/s")


def _plain_lines(write: Callable[[str], None]) -> Observer:
    start = time.monotonic()
    done, total = 0, 0

    def observe(event: Event) -> None:
        nonlocal done, total
        match event:
            case Planned(plan=plan):
                total += plan.count  # the counts of several runs add up
                write(f"{plan.count} evaluations to make")
            case Evaluated(trace=trace):
                done += 1
                write(f"{_position(done, total, start)} {format_trace(trace)}")
            case Skipped(skip=skip, count=count):
                done += count
                write(f"{_position(done, total, start)} could not run: {_first_line(str(skip))}")
            case DeviceExcluded():
                write(str(event))

    return observe


def _position(done: int, total: int, start: float) -> str:
    elapsed = time.monotonic() - start
    left = elapsed / done * (total - done) if done else 0.0
    return f"[{done}/{total} {done / max(elapsed, 1e-9):.1f}/s {left:.0f}s left]"


def _first_line(text: str) -> str:
    return text.partition("\n")[0]
