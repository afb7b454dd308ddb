"""Tables of reports for people, printed on stdout."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from fib_schema import EvaluationStatus
from rich import box
from rich.console import Console
from rich.table import Table

from ..events import Phase
from ..flags import CPU_TIMING, INTERPRETED
from ..plan import Skip
from ..report import Author, Best, Entry, Summary
from ..report.ratios import format_ratio
from .printing import safe_cell, safe_text

_SHOWN_SKIPS = 10
_FULL_FAILURES = 3
_WIDE = 100
_ROOMY = 6
_SQUEEZED = 8


def print_summary(console: Console, summary: Summary) -> None:
    """Print totals and the leaderboard."""
    statuses = ", ".join(f"{count} {status}" for status, count in summary.statuses.items()) or "none yet"
    console.print(
        f"{summary.definitions} definitions, {summary.solutions} solutions, "
        f"{summary.workloads} workloads, {summary.traces} traces ({statuses})",
        soft_wrap=True,
    )
    print_leaderboard(console, summary.leaderboard)
    print_authors(console, summary.authors)


def print_leaderboard(console: Console, entries: Iterable[Entry]) -> None:
    """Print the solutions of each definition, the best first; below them, the labels and the failures."""
    failures = []
    cpu_timed = set()
    for title, rows in _grouped(entries):
        console.print(_leaderboard_of(title, rows, console.width >= _WIDE))
        cpu_timed |= {row.solution for row in rows if CPU_TIMING in row.labels and not row.is_ranked}
        if baselines := sorted({row.baseline for row in rows if row.baseline is not None}):
            console.print(safe_text(f"baseline: {', '.join(baselines)}"), soft_wrap=True)
        failures += [f"{row.solution}: {row.problem}{_more_failures(row)}" for row in rows if row.problem]
    for text in failures:
        console.print(safe_text(text, "red"), soft_wrap=True)
    if cpu_timed:
        note = f"{CPU_TIMING}: {len(cpu_timed)} solutions are in no order (--include-unranked orders them)"
        console.print(safe_text(note, "yellow"), soft_wrap=True)


def _leaderboard_of(title: str, rows: Sequence[Entry], is_wide: bool) -> Table:
    lines, padding = (box.HEAVY_HEAD, (0, 1)) if is_wide else (box.SIMPLE_HEAD, (0, 1, 0, 0))
    timed = [row for row in rows if row.passed]
    if timed and all(CPU_TIMING in row.labels for row in timed):
        title = f"{title} ({CPU_TIMING})"
    table = Table(title=safe_cell(title), title_justify="left", title_style="bold", box=lines, padding=padding)
    table.add_column("solution", overflow="fold", min_width=16)
    columns = _columns_of(rows)
    if not is_wide:
        del columns["language"]
    for column in columns:
        is_range, has_words = column == "latency", " " in column or column == "note"
        is_squeezed = not is_wide and (has_words or (is_range and len(columns) > _ROOMY))
        most = _SQUEEZED if is_squeezed else None
        table.add_column(column, justify="right", no_wrap=not (is_range or has_words), max_width=most)
    for row in rows:
        cells = (safe_cell(show(row)) for show in columns.values())
        table.add_row(safe_cell(row.solution), *cells, style="red" if row.problem else "")
    return table


def _columns_of(rows: Sequence[Entry]) -> dict[str, Callable[[Entry], str]]:
    """The columns that are not empty for these solutions."""
    columns: dict[str, Callable[[Entry], str]] = {
        "language": lambda row: row.language,
        "passed": lambda row: f"{row.passed}/{row.total}",
        "speedup": lambda row: row.speedup_text,
    }
    if any(row.baseline is not None for row in rows):
        columns["vs baseline"] = lambda row: row.baseline_speedup_text
    if len(rows) > 1 and any(not row.labels for row in rows if row.passed):
        for factor in rows[0].win_at:
            columns[f"win@{factor}"] = lambda row, factor=factor: _win_of(row, factor)  # type: ignore[misc]
    if any(row.attainable_fraction is not None for row in rows):
        columns["light"] = lambda row: _share_or_dash(row.attainable_fraction)
    columns["latency"] = lambda row: INTERPRETED if _is_interpreted(row) else _latency_range(row.latency_ms)
    if any(row.timed_by for row in rows):
        columns["timed by"] = _methods_of
    if len({CPU_TIMING in row.labels for row in rows if row.passed}) > 1:
        columns["note"] = lambda row: ", ".join(row.labels)
    return columns


def _win_of(row: Entry, factor: str) -> str:
    return f"{row.win_at[factor]:.0%}" if row.is_ranked or row.problem else "-"


def _methods_of(row: Entry) -> str:
    if row.latency_ms is None:
        return "-"
    return ", ".join(row.timed_by) or "linked"


def _is_interpreted(row: Entry) -> bool:
    return INTERPRETED in row.labels and row.latency_ms is None


def _more_failures(row: Entry) -> str:
    """The number of failures by status, if there are several."""
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
        table.add_row(safe_cell(author.author), format_ratio(author.speedup), str(author.workloads))
    console.print(table)


def print_best(console: Console, rows: Sequence[Best]) -> None:
    """Print the fastest solution of each workload."""
    has_devices = len({row.hardware for row in rows}) > 1
    has_light = any(row.attainable_fraction is not None for row in rows)
    has_methods = any(row.timed_by for row in rows)
    has_labels = any(row.labels for row in rows)
    table = Table()
    for column in ("definition", *(["device"] if has_devices else []), "axes", "solution"):
        table.add_column(column, overflow="fold")
    for column in ("speedup", "latency", "reference", *(["light"] if has_light else [])):
        table.add_column(column, justify="right", no_wrap=True)
    for column in (*(["timed by"] if has_methods else []), *(["note"] if has_labels else [])):
        table.add_column(column, overflow="fold")
    for row in rows:
        axes = ", ".join(f"{axis}={size}" for axis, size in row.axes.items())
        device = [row.hardware] if has_devices else []
        words = [safe_cell(word) for word in (row.definition, *device, axes, row.solution)]
        reference = "-" if row.reference_latency_ms is None else format_latency(row.reference_latency_ms)
        light = [_share_or_dash(row.attainable_fraction)] if has_light else []
        methods = [safe_cell(row.timed_by or "linked")] if has_methods else []
        labels = [safe_cell(", ".join(row.labels))] if has_labels else []
        table.add_row(*words, row.speedup_text, format_latency(row.latency_ms), reference, *light, *methods, *labels)
    console.print(table)


def print_skipped(console: Console, skipped: Iterable[Skip]) -> None:
    """Print the work that a run skipped. For failures print the full reason; progress has shown only the first line."""
    skips = list(skipped)
    failures = [skip for skip in skips if skip.is_failure]
    for skip in [skip for skip in failures if "\n" in skip.reason][:_FULL_FAILURES]:
        console.print(safe_text(f"could not run: {skip}", "red"), soft_wrap=True)
    if failures:
        text = f"{len(failures)} could not run, for the reasons above (--json lists them in full)"
        console.print(safe_text(text, "red"))
    harmless = [skip for skip in skips if not skip.is_failure]
    for skip in harmless[:_SHOWN_SKIPS]:
        console.print(safe_text(f"skipped: {skip}", "yellow"), soft_wrap=True)
    if (more := len(harmless) - _SHOWN_SKIPS) > 0:
        console.print(safe_text(f"skipped: {more} more (--json lists all)", "yellow"))


def print_seconds(console: Console, seconds: Mapping[Phase, float]) -> None:
    """Print the time that each phase of a run took; the sum is the wall time, times the number of devices."""
    if seconds:
        shown = ", ".join(f"{phase} {spent:.1f}" for phase, spent in seconds.items())
        text = f"{sum(seconds.values()):.1f} seconds: {shown}"
        console.print(text, markup=False, highlight=False, soft_wrap=True)


def format_latency(milliseconds: float) -> str:
    """A latency with three digits and a fitting unit."""
    if milliseconds >= 1000:
        return f"{milliseconds / 1000:.3g} s"
    if milliseconds >= 1:
        return f"{milliseconds:.3g} ms"
    return f"{milliseconds * 1000:.3g} us"


def _latency_range(latencies: tuple[float, float] | None) -> str:
    if latencies is None:
        return "-"
    low, high = map(format_latency, latencies)
    return low if low == high else f"{low} .. {high}"


def _share_or_dash(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _grouped(entries: Iterable[Entry]) -> Iterator[tuple[str, list[Entry]]]:
    """The entries by definition and device; titles name the device if there are several."""
    groups: dict[tuple[str, str], list[Entry]] = {}
    for entry in entries:
        groups.setdefault((entry.definition, entry.hardware), []).append(entry)
    has_devices = len({hardware for _, hardware in groups}) > 1
    for (definition, hardware), rows in groups.items():
        yield f"{definition} on {hardware}" if has_devices else definition, rows
