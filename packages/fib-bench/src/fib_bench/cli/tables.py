"""Shows reports and progress to people: tables on stdout, progress on stderr."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from fib_schema import EvaluationStatus, Trace
from rich import box
from rich.console import Console
from rich.markup import escape
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
from rich.table import Table
from rich.text import Text

from ..events import DeviceOut, Evaluated, Event, Observer, Planned, Skipped, Working
from ..judge.phase_timer import Phase
from ..plan import Skip
from ..report import Author, Best, Standing, Summary, complaint

_SHOWN_SKIPS = 10
_FULL_FAILURES = 3
_WIDE = 100
_ROOMY = 6


def print_summary(console: Console, summary: Summary) -> None:
    """Print totals and the leaderboard."""
    statuses = ", ".join(f"{count} {status}" for status, count in summary.statuses.items()) or "none yet"
    console.print(
        f"{summary.definitions} definitions, {summary.solutions} solutions, "
        f"{summary.workloads} workloads, {summary.traces} traces ({statuses})",
        soft_wrap=True,
    )
    print_leaderboard(console, summary.standings)
    print_authors(console, summary.authors)


def print_leaderboard(console: Console, standings: Iterable[Standing]) -> None:
    """Print the solutions of each definition, the best first; below, why others failed."""
    complaints = []
    for title, rows in _grouped(standings):
        is_wide = console.width >= _WIDE
        lines, padding = (box.HEAVY_HEAD, (0, 1)) if is_wide else (box.SIMPLE_HEAD, (0, 1, 0, 0))
        table = Table(title=escape(title), title_justify="left", title_style="bold", box=lines, padding=padding)
        table.add_column("solution", overflow="fold", min_width=16)
        columns = _columns_of(rows)
        if not is_wide:
            del columns["language"]
        for column in columns:
            is_range, has_words = column == "latency", " " in column
            is_squeezed = not is_wide and (has_words or (is_range and len(columns) > _ROOMY))
            most = 8 if is_squeezed else None
            table.add_column(column, justify="right", no_wrap=not (is_range or has_words), max_width=most)
        for row in rows:
            cells = (show(row) for show in columns.values())
            table.add_row(escape(row.solution), *cells, style="red" if row.complaint else "")
            if row.complaint:
                complaints.append(f"{row.solution}: {row.complaint}{_more_failures(row)}")
        console.print(table)
        if baselines := sorted({row.baseline for row in rows if row.baseline is not None}):
            console.print(Text(f"baseline: {', '.join(baselines)}"), soft_wrap=True)
    for text in complaints:
        console.print(Text(text, style="red"), soft_wrap=True)


def _columns_of(rows: Sequence[Standing]) -> dict[str, Callable[[Standing], str]]:
    """The columns that say something about these solutions."""
    columns: dict[str, Callable[[Standing], str]] = {
        "language": lambda row: row.language,
        "passed": lambda row: f"{row.passed}/{row.total}",
        "speedup": lambda row: _ratio_or_dash(row.speedup),
    }
    if any(row.baseline_speedup is not None for row in rows):
        columns["vs baseline"] = lambda row: _ratio_or_dash(row.baseline_speedup)
    if len(rows) > 1:
        for factor in rows[0].win_at:
            columns[f"win@{factor}"] = lambda row, factor=factor: f"{row.win_at[factor]:.0%}"  # type: ignore[misc]
    if any(row.attainable_fraction is not None for row in rows):
        columns["light"] = lambda row: _share_or_dash(row.attainable_fraction)
    columns["latency"] = lambda row: _latency_range(row.latency_ms)
    return columns


def _more_failures(row: Standing) -> str:
    """What else went wrong, beside the first failure."""
    failures = {status: count for status, count in row.statuses.items() if status != EvaluationStatus.PASSED}
    if sum(failures.values()) < 2:
        return ""
    return f" (of {', '.join(f'{count} {status}' for status, count in failures.items())})"


def print_authors(console: Console, authors: Sequence[Author]) -> None:
    """Print the authors by score, if any has one."""
    if not authors:
        return
    table = Table(title="authors", title_justify="left", title_style="bold")
    table.add_column("author", overflow="fold")
    for column in ("speedup", "workloads"):
        table.add_column(column, justify="right", no_wrap=True)
    for author in authors:
        table.add_row(escape(author.author), format_ratio(author.speedup), str(author.workloads))
    console.print(table)


def print_best(console: Console, rows: Sequence[Best]) -> None:
    """Print the fastest solution of each workload."""
    has_devices = len({row.hardware for row in rows}) > 1
    has_light = any(row.attainable_fraction is not None for row in rows)
    table = Table()
    for column in ("definition", *(["device"] if has_devices else []), "axes", "solution"):
        table.add_column(column, overflow="fold")
    for column in ("speedup", "latency", "reference", *(["light"] if has_light else [])):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        axes = ", ".join(f"{axis}={size}" for axis, size in row.axes.items())
        device = [row.hardware] if has_devices else []
        words = [escape(word) for word in (row.definition, *device, axes, row.solution)]
        reference = "-" if row.reference_latency_ms is None else format_latency(row.reference_latency_ms)
        light = [_share_or_dash(row.attainable_fraction)] if has_light else []
        table.add_row(*words, _ratio_or_dash(row.speedup), format_latency(row.latency_ms), reference, *light)
    console.print(table)


def print_skipped(console: Console, skipped: Iterable[Skip]) -> None:
    """Print what a run left out; of what failed, of which progress gave the first line, the rest."""
    skips = list(skipped)
    failures = [skip for skip in skips if skip.is_failure]
    for skip in [skip for skip in failures if "\n" in skip.reason][:_FULL_FAILURES]:
        console.print(Text(f"could not run: {skip}", style="red"), soft_wrap=True)
    if failures:
        text = f"{len(failures)} could not run, for the reasons above (--json lists them in full)"
        console.print(Text(text, style="red"))
    harmless = [skip for skip in skips if not skip.is_failure]
    for skip in harmless[:_SHOWN_SKIPS]:
        console.print(Text(f"skipped: {skip}", style="yellow"), soft_wrap=True)
    if (more := len(harmless) - _SHOWN_SKIPS) > 0:
        console.print(Text(f"skipped: {more} more (--json lists all)", style="yellow"))


def print_seconds(console: Console, seconds: Mapping[Phase, float]) -> None:
    """Print where the time of a run went."""
    if seconds:
        shown = ", ".join(f"{phase} {spent:.1f}" for phase, spent in seconds.items())
        console.print(f"seconds: {shown}", markup=False, highlight=False, soft_wrap=True)


def format_ratio(ratio: float) -> str:
    """A speedup: two decimals, or two digits where that would show nothing."""
    return f"{ratio:.2f}x" if ratio >= 0.1 else f"{ratio:.2g}x"


def format_latency(milliseconds: float) -> str:
    """A latency with three digits and a fitting unit."""
    if milliseconds >= 1000:
        return f"{milliseconds / 1000:.3g} s"
    if milliseconds >= 1:
        return f"{milliseconds:.3g} ms"
    return f"{milliseconds * 1000:.3g} us"


def format_trace(trace: Trace) -> str:
    """One evaluation in one line."""
    evaluation = trace.evaluation
    if evaluation is None:
        return f"{trace.definition} {trace.workload.uuid}"
    axes = ",".join(f"{axis}={size}" for axis, size in trace.workload.axes.items())
    head = f"{trace.definition} [{axes}] {trace.solution}: {evaluation.status}"
    if evaluation.performance is not None:
        performance = evaluation.performance
        return f"{head} {format_latency(performance.latency_ms)}, {format_ratio(performance.speedup_factor)}"
    return f"{head} {complaint(evaluation)}"


@contextmanager
def progress_on(console: Console) -> Iterator[Observer]:
    """An observer that shows a run's progress: a bar on a terminal, plain lines in a log."""
    if not console.is_terminal:
        yield _plain_lines(lambda text: console.print(text, markup=False, highlight=False, soft_wrap=True))
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
                    total += plan.count  # of several runs, the next one's come on top
                    progress.update(task, total=total)
                case Working():
                    progress.update(task, description=escape(str(event)))
                case Evaluated(trace=trace):
                    progress.advance(task)
                    if trace.evaluation and trace.evaluation.status is not EvaluationStatus.PASSED:
                        progress.console.print(Text(format_trace(trace), style="red"), soft_wrap=True)
                case Skipped(skip=skip, count=count):
                    progress.advance(task, count)
                    text = f"could not run: {_first_line(str(skip))}"
                    progress.console.print(Text(text, style="red"), soft_wrap=True)
                case DeviceOut():
                    progress.console.print(Text(str(event), style="red"), soft_wrap=True)

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
                total += plan.count  # of several runs, the next one's come on top
                write(f"{plan.count} evaluations to make")
            case Evaluated(trace=trace):
                done += 1
                write(f"{_position(done, total, start)} {format_trace(trace)}")
            case Skipped(skip=skip, count=count):
                done += count
                write(f"{_position(done, total, start)} could not run: {_first_line(str(skip))}")
            case DeviceOut():
                write(str(event))

    return observe


def _position(done: int, total: int, start: float) -> str:
    elapsed = time.monotonic() - start
    left = elapsed / done * (total - done) if done else 0.0
    return f"[{done}/{total} {done / max(elapsed, 1e-9):.1f}/s {left:.0f}s left]"


def _first_line(text: str) -> str:
    return text.partition("\n")[0]


def _latency_range(latencies: tuple[float, float] | None) -> str:
    if latencies is None:
        return "-"
    low, high = map(format_latency, latencies)
    return low if low == high else f"{low} .. {high}"


def _ratio_or_dash(ratio: float | None) -> str:
    return "-" if ratio is None else format_ratio(ratio)


def _share_or_dash(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _grouped(standings: Iterable[Standing]) -> Iterator[tuple[str, list[Standing]]]:
    """The solutions that are ranked together; the device is named where there are several."""
    groups: dict[tuple[str, str], list[Standing]] = {}
    for standing in standings:
        groups.setdefault((standing.definition, standing.hardware), []).append(standing)
    has_devices = len({hardware for _, hardware in groups}) > 1
    for (definition, hardware), rows in groups.items():
        yield f"{definition} on {hardware}" if has_devices else definition, rows
