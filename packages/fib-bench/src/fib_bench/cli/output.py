"""Output of commands: JSON on stdout for programs; consoles, progress and tables of rich for people.

Progress of a run goes to stderr, as a bar on a terminal and as a line for each evaluation in a log. A signal ends it.
"""

from __future__ import annotations

import json
import re
import shlex
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any

import attrs
from fib_schema.command import print_problems, unescaped
from fib_schema.display import counted, escape_controls, escape_line, finite_values
from fib_schema.trace_facts import CPU_TIMING, INTERPRETED, OLDER_TIMING
from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from ..events import DeviceExcluded, Evaluated, Event, Observer, Phase, Planned, Skipped, Working
from ..flags import SYNTHESIZED
from ..plan import Plan, Skip
from ..report import Best, LeaderboardRow, Summary
from ..report.comparing import Change, ChangeReport, Pair
from ..report.leaderboard import Failure, axes_text, format_trace
from ..report.ratios import DEFAULT_METHOD, Bounds, latency_range, latency_with_bounds

if TYPE_CHECKING:
    from ..report.merging import MergeReport


_SILENT_SECONDS = 10.0


class _Terminal(Console):
    """A console that escapes control characters of texts, whichever way they come to it, but not its own colours."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text = segment.text
            is_plain = segment.control is not None or text.isprintable()
            yield segment if is_plain else Segment(escape_controls(text), segment.style)

    def on_broken_pipe(self) -> None:
        """Leave the exit code to `run_command`."""
        raise  # noqa: PLE0704 - it is called while the error is handled


def output_console() -> Console:
    """A console on stdout; make it when it is used, because stdout may be redirected."""
    return _Terminal(file=unescaped(sys.stdout))


def error_console() -> Console:
    """A console on stderr."""
    return _Terminal(file=unescaped(sys.stderr), stderr=True)


def say(console: Console, text: str, style: str = "") -> None:
    """Print text that may hold data; its lines are not wrapped."""
    console.print(safe_text(text, style), soft_wrap=True)


def print_done(text: str, fields: Mapping[str, str], following: str = "", style: str = "green") -> None:
    """Print what a command did: a line, the fields, and the command that follows."""
    console = output_console()
    say(console, text, style)
    for title, value in fields.items():
        say(console, f"  {title:12} {value}")
    if following:
        say(console, f"next: {following}")


def safe_text(text: str, style: str = "") -> Text:
    """Text of one or more lines that may hold data; rich drops some control characters, so they are escaped before."""
    return Text(escape_controls(text), style)


def safe_cell(text: str) -> str:
    """Text of one line that may hold data, as markup of rich."""
    return escape(escape_line(text))


def print_json(value: object) -> None:
    """Print one JSON value."""
    json.dump(finite_values(value), sys.stdout, indent=2)
    sys.stdout.write("\n")


def make_table(title: str, words: Sequence[str] = (), numbers: Sequence[str] = ()) -> Table:
    """A table without rows: words stand on the left, numbers on the right."""
    table = Table(title=title or None, box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for column in words:
        table.add_column(column, no_wrap=True)
    for column in numbers:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def print_table(console: Console, table: Table) -> None:
    """Print a table. Nothing is cut or broken: on a terminal that is too narrow each row takes several lines.

    A file or a pipe gets one line for each row, whatever its length.
    """
    if title := table.title:
        table.title = None  # rich centres it, or pads it with spaces
        say(console, str(title), "bold")
    width = Measurement.get(console, console.options.update(max_width=10_000), table).maximum
    if width > console.width and console.is_terminal:
        _print_stacked(console, table)
        return
    table.width = width
    console.print(table, crop=False)


def _print_stacked(console: Console, table: Table) -> None:
    """Print each row on several lines: its words, then each number with its heading."""
    cells = [[console.render_str(str(cell)).plain for cell in column.cells] for column in table.columns]
    for row, texts in zip(table.rows, zip(*cells, strict=True), strict=True):
        for column, text in zip(table.columns, texts, strict=True):
            line = text if column.justify == "left" else f"    {column.header}: {text}"
            say(console, line, str(row.style or ""))


# -- progress ------------------------------------------------------------------------------------------------


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
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TaskID,
        TextColumn,
        TimeRemainingColumn,
    )

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


_ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def interruptible(stop: Callable[[], object], errors: Console) -> Iterator[None]:
    """Let an interrupt, SIGTERM or the end of the terminal stop a run; its results and reasons are still printed."""

    def end(*_: object) -> None:
        for number in _ENDINGS:
            if signal.getsignal(number) is end:
                signal.signal(number, signal.default_int_handler)
        errors.print("stopping")
        stop()

    with handled(end, *_ENDINGS):
        yield


@contextmanager
def handled(handler: Callable[[int, FrameType | None], Any], *numbers: int) -> Iterator[None]:
    """Handle signals in the block but those that are ignored (nohup); the handlers before it come back."""
    heard = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in heard}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


# -- tables of reports ---------------------------------------------------------------------------------------

_SHOWN_SKIPS = 3
_SHOWN_WORKLOADS = 20
_SIZE = re.compile(r"\d+\.\d (?=GiB)")
_BLOB = re.compile(r"(?:input '[^']*': )?blob '[^']*':")
"""The part of a reason that names a blob: workloads without theirs are one group, shown with the first blob."""
_STYLES = {
    Change.BROKEN: "red",
    Change.SLOWER: "red",
    Change.FASTER: "green",
    Change.FIXED: "green",
    Change.UNMEASURED: "yellow",
}
"""The verdicts that the table shows."""
_MEANINGS = {
    CPU_TIMING: ", no order (--include-unranked orders them)",
    OLDER_TIMING: ", no order (evaluate them again)",
    SYNTHESIZED: ", on workloads whose blobs are missing",
}
_UNORDERED = {CPU_TIMING, OLDER_TIMING}


@attrs.frozen
class Column:
    """A column of a table; one without a text in any row is left out."""

    title: str
    cell: Callable[[Any], str]
    is_word: bool = False
    """Whether it may be folded on narrow terminals; other columns stand on the right."""
    blank: str = "-"


def rows_table(title: str, rows: Sequence[Any], columns: Sequence[Column], style: Callable[[Any], str]) -> Table:
    """A table with a row for each record."""
    texts = [[column.cell(row) for column in columns] for row in rows]
    shown = [index for index in range(len(columns)) if any(cells[index] for cells in texts)]
    words = [columns[index].title for index in shown if columns[index].is_word]
    table = make_table(title, words, [columns[index].title for index in shown if not columns[index].is_word])
    for row, cells in zip(rows, texts, strict=True):
        table.add_row(*(safe_cell(cells[index] or columns[index].blank) for index in shown), style=style(row))
    return table


def _light(row: LeaderboardRow | Best) -> str:
    return "" if row.attainable_fraction is None else f"{row.attainable_fraction:.0%}"


def _axes(row: Best | Pair) -> str:
    return axes_text(row.axes) or row.workload


def _device_column(rows: Iterable[Any]) -> Column:
    is_needed = len({row.hardware for row in rows}) > 1
    return Column("device", lambda row: row.hardware if is_needed else "", is_word=True)


def print_summary(console: Console, summary: Summary, data_set: object = "DIR") -> None:
    """Print totals and the leaderboard."""
    statuses = ", ".join(f"{count} {status}" for status, count in summary.statuses.items()) or "none yet"
    counts = (counted(getattr(summary, f"{kind}s"), kind) for kind in ("definition", "solution", "workload", "trace"))
    say(console, f"{', '.join(counts)} ({statuses})")
    print_leaderboard(console, summary.leaderboard, data_set)


def print_leaderboard(console: Console, rows: Iterable[LeaderboardRow], data_set: object = "DIR") -> None:
    """Print the solutions of each definition, the best first; below them, the labels and all failures."""
    rows = list(rows)
    print_devices(console, [row.hardware for row in rows])
    for title, group in _by_definition(rows).items():
        console.print()
        print_table(console, _leaderboard_of(title, group))
        if baselines := sorted({row.baseline for row in group if row.baseline is not None}):
            say(console, f"baseline: {', '.join(baselines)}")
    print_failures(console, rows)
    if any(row.failures for row in rows):
        say(console, f"whole logs: fib-bench report html {shlex.quote(str(data_set))}")
    for note, solutions in _notes(rows).items():
        is_long = len(solutions) > _SHOWN_WORKLOADS
        say(console, f"{note}: {counted(len(solutions), 'solution') if is_long else ', '.join(solutions)}", "yellow")


def _notes(rows: Iterable[LeaderboardRow]) -> dict[str, list[str]]:
    """Meanings of flags, and the solutions with them; without flags that a reason for leaving them unranked shows."""
    found: dict[str, list[str]] = {}
    for row in rows:
        for flag in row.flags:
            is_said = flag in row.problem or (row.is_ranked and flag in _UNORDERED)
            if not is_said and flag != INTERPRETED:
                found.setdefault(f"{flag}{_MEANINGS.get(flag, '')}", []).append(row.solution)
    return found


def print_devices(console: Console, names: Iterable[str]) -> None:
    """Print the devices on which the results below were measured."""
    if devices := dict.fromkeys(names):
        say(console, f"device{'s' * (len(devices) > 1)}: {', '.join(devices)}")


def _by_definition(rows: Sequence[LeaderboardRow]) -> dict[str, list[LeaderboardRow]]:
    has_devices = len({row.hardware for row in rows}) > 1
    groups: dict[str, list[LeaderboardRow]] = {}
    for row in rows:
        groups.setdefault(f"{row.definition} on {row.hardware}" if has_devices else row.definition, []).append(row)
    return groups


def _leaderboard_of(title: str, rows: Sequence[LeaderboardRow]) -> Table:
    timed = [row for row in rows if row.passed]
    is_cpu_timed = bool(timed) and all(CPU_TIMING in row.labels for row in timed)
    columns = [
        Column("solution", lambda row: row.solution, is_word=True),
        Column("language", lambda row: row.language, is_word=True),
        Column("passed", lambda row: f"{row.passed}/{row.total}"),
        Column("speedup", lambda row: row.speedup.text),
        Column("vs baseline", lambda row: row.baseline_speedup.text if row.baseline is not None else ""),
        Column("fast_1", lambda row: f"{row.fast_1:.0%}" if row.is_ranked else ""),
        Column("light", _light),
        Column("latency", _latency_of),
        Column("call", lambda row: "" if row.call_ms is None else latency_range(row.call_ms)),
        Column("timed by", lambda row: "" if is_cpu_timed else ", ".join(row.timed_by), blank=DEFAULT_METHOD),
        Column("note", lambda row: "" if is_cpu_timed or not _UNORDERED & set(row.labels) else ", ".join(row.labels)),
    ]
    title = f"{title} ({CPU_TIMING})" if is_cpu_timed else title
    return rows_table(title, rows, columns, lambda row: "red" if row.problem else "")


def _latency_of(row: LeaderboardRow) -> str:
    if INTERPRETED in row.labels and row.latency_ms is None:
        return INTERPRETED
    if row.latency_ms is not None and row.latency_bounds_ms is not None:
        return latency_with_bounds(row.latency_ms[0], row.latency_bounds_ms)
    return latency_range(row.latency_ms)


def print_failures(console: Console, rows: Iterable[LeaderboardRow]) -> None:
    """Print each cause of failures once, with the solutions and workloads that have it, then unranked solutions."""
    rows = list(rows)
    has_definitions = len({row.definition for row in rows}) > 1
    causes: dict[str, list[str]] = {}
    texts: dict[str, str] = {}
    for row in rows:
        subject = f"{row.definition} / {row.solution}" if has_definitions else row.solution
        if row.problem and not row.failures:
            causes.setdefault(row.problem, []).append(subject)
        for failure in row.failures:
            texts.setdefault(failure.cause, failure.text)
            causes.setdefault(failure.cause, []).append(f"{subject} on {_workloads_of(failure, row.total)}")
    if causes:
        console.print()
    for cause, subjects in causes.items():
        say(console, texts.get(cause, cause), "red")
        for subject in subjects:
            say(console, f"  {subject}")


def _workloads_of(failure: Failure, total: int) -> str:
    names, count = failure.workloads, len(failure.workloads)
    if count == total and count > 1:
        return f"all {count} workloads"
    more = f"; and {count - _SHOWN_WORKLOADS} more (--json lists all)" if count > _SHOWN_WORKLOADS else ""
    return f"{count} of {total} workloads: {'; '.join(names[:_SHOWN_WORKLOADS])}{more}" if total > 1 else names[0]


def print_best(console: Console, rows: Sequence[Best]) -> None:
    """Print the fastest solution of each workload."""
    print_devices(console, [row.hardware for row in rows])
    columns = [
        Column("definition", lambda row: row.definition, is_word=True),
        _device_column(rows),
        Column("axes", _axes, is_word=True),
        Column("solution", lambda row: row.solution, is_word=True),
        Column("note", lambda row: ", ".join(row.labels), is_word=True),
        Column("timed by", lambda row: row.timed_by, is_word=True, blank=DEFAULT_METHOD),
        Column("speedup", lambda row: row.speedup.text),
        Column("latency", lambda row: latency_with_bounds(row.latency_ms, row.bounds_ms)),
        Column("call", lambda row: _latency_or_blank(row.call_ms)),
        Column("reference", lambda row: _latency_or_blank(row.reference_latency_ms)),
        Column("light", _light),
    ]
    print_table(console, rows_table("", rows, columns, lambda _: ""))


def _latency_or_blank(latency_ms: float | None, bounds_ms: Bounds | None = None) -> str:
    return "" if latency_ms is None else latency_with_bounds(latency_ms, bounds_ms)


def print_skipped(console: Console, skipped: Iterable[Skip]) -> None:
    """Print the work that a run skipped: each reason once, with what it concerns, failures last."""
    skips = sorted(skipped, key=lambda skip: skip.is_failure)
    groups: dict[tuple[bool, str], list[Skip]] = {}
    for skip in skips:
        reason = _SIZE.sub("#", _BLOB.sub("blob #:", skip.reason))
        groups.setdefault((skip.is_failure, reason), []).append(skip)
    for (is_failure, _), group in groups.items():
        if all(skip.is_done for skip in group):
            text = f"{counted(len(group), 'evaluation')} skipped: {group[0].reason} (--json lists all)"
            say(console, text, "yellow")
            continue
        more = f", and {len(group) - _SHOWN_SKIPS} more (--json lists all)" if len(group) > _SHOWN_SKIPS else ""
        shown = f"{'; '.join(skip.subject for skip in group[:_SHOWN_SKIPS])}{more}: {group[0].reason}"
        count = f"{len(group)} " if len(group) > 1 else ""
        kind, style = ("could not run", "red") if is_failure else ("skipped", "yellow")
        say(console, f"{count}{kind}: {shown}", style)


def print_seconds(
    console: Console, seconds: Mapping[Phase, float] | Mapping[str, float], busy_share: float | None = None
) -> None:
    """Print the time that each phase of a run took; the sum is the wall time, times the number of devices."""
    if seconds:
        shown = ", ".join(f"{phase} {spent:.1f}" for phase, spent in seconds.items())
        busy = "" if busy_share is None else f"; device busy {busy_share:.0%}"
        text = f"{sum(seconds.values()):.1f} seconds: {shown}{busy}"
        say(console, text)


def print_comparison(console: Console, found: ChangeReport) -> None:
    """Print the changes, the worst first, and the totals."""
    changed = [pair for pair in found.pairs if pair.verdict in _STYLES]
    print_devices(console, [pair.hardware for pair in found.pairs])
    if changed:
        print_table(console, _changes(f"{found.before} -> {found.after}", changed))
    reasons = Counter((pair.verdict, pair.solution, pair.reason) for pair in changed if pair.reason)
    for (verdict, solution, reason), count in reasons.items():
        say(console, f"{solution}: {counted(count, 'workload')} {verdict}: {reason}", _STYLES[verdict])
    counts = ", ".join(f"{count} {verdict}" for verdict, count in found.counts.items())
    ratio = "" if found.ratio.text == "-" else f"; after / before: {found.ratio.text} (geometric mean)"
    say(console, f"{counts}{ratio}", "red" if found.is_worse else "")


def _changes(title: str, pairs: Sequence[Pair]) -> Table:
    columns = [
        Column("definition", lambda pair: pair.definition, is_word=True),
        _device_column(pairs),
        Column("solution", lambda pair: pair.solution, is_word=True),
        Column("axes", _axes, is_word=True),
        Column("before", lambda pair: _latency_or_blank(pair.before_ms, pair.before_bounds_ms)),
        Column("after", lambda pair: _latency_or_blank(pair.after_ms, pair.after_bounds_ms)),
        Column("ratio", lambda pair: pair.ratio.text),
        Column("verdict", lambda pair: str(pair.verdict)),
    ]
    return rows_table(title, pairs, columns, lambda pair: _STYLES[pair.verdict])


def print_merge(console: Console, report: MergeReport) -> None:
    """Print the result of a merge."""
    for notice in report.notices:
        say(console, f"notice: {notice}", "yellow")
    print_problems([*report.validation.problems, *report.validation.warnings])
    say(console, f"{' + '.join(report.sources)} -> {report.validation.summary}")
