"""Tables of reports for people, printed on stdout."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from fib_schema.display import counted
from rich.console import Console
from rich.table import Table

from ..events import Phase, Started
from ..flags import CPU_TIMING, INTERPRETED, SYNTHESIZED
from ..plan import Skip
from ..report import Author, Best, Entry, Summary
from ..report.failures import Failure
from ..report.quantities import format_latency, format_ratio, latency_range, latency_with_bounds
from .printing import safe_cell, safe_text
from .table_style import make_table, print_table

_SHOWN_SKIPS = 3
_SHOWN_WORKLOADS = 20
_SIZE = re.compile(r"\d+\.\d (?=GiB)")
_BLOB = re.compile(r"(?:input '[^']*': )?blob '[^']*':")
"""The part of a reason that names a blob: workloads without theirs are one group, shown with the first blob."""
_WORDS = frozenset({"definition", "device", "axes", "solution", "note", "timed by"})


def print_summary(console: Console, summary: Summary) -> None:
    """Print totals and the leaderboard."""
    statuses = ", ".join(f"{count} {status}" for status, count in summary.statuses.items()) or "none yet"
    console.print(
        f"{counted(summary.definitions, 'definition')}, {counted(summary.solutions, 'solution')}, "
        f"{counted(summary.workloads, 'workload')}, {counted(summary.traces, 'trace')} ({statuses})",
        soft_wrap=True,
    )
    print_leaderboard(console, summary.leaderboard)
    print_authors(console, summary.authors)


def print_leaderboard(console: Console, entries: Iterable[Entry]) -> None:
    """Print the solutions of each definition, the best first; below them, the labels and all failures."""
    rows = list(entries)
    print_devices(console, [row.hardware for row in rows])
    cpu_timed = set()
    for title, group in _grouped(rows):
        console.print()
        print_table(console, _leaderboard_of(title, group))
        cpu_timed |= {row.solution for row in group if CPU_TIMING in row.labels and not row.is_ranked}
        if baselines := sorted({row.baseline for row in group if row.baseline is not None}):
            console.print(safe_text(f"baseline: {', '.join(baselines)}"), soft_wrap=True)
    print_failures(console, rows)
    if made := sum(SYNTHESIZED in row.labels for row in rows):
        note = f"{SYNTHESIZED}: of {counted(made, 'solution')}, on workloads whose blobs are missing"
        console.print(safe_text(note, "yellow"), soft_wrap=True)
    if cpu_timed:
        note = f"{CPU_TIMING}: no order for {counted(len(cpu_timed), 'solution')} (--include-unranked orders them)"
        console.print(safe_text(note, "yellow"), soft_wrap=True)


def print_devices(console: Console, names: Iterable[str]) -> None:
    """Print the devices on which the results below were measured."""
    if devices := dict.fromkeys(names):
        console.print(safe_text(f"device{'s' * (len(devices) > 1)}: {', '.join(devices)}"), soft_wrap=True)


def _leaderboard_of(title: str, rows: Sequence[Entry]) -> Table:
    if _is_cpu_timed(rows):
        title = f"{title} ({CPU_TIMING})"
    columns = _columns_of(rows)
    table = make_table(title, ["solution", "language"], list(columns))
    for row in rows:
        cells = (safe_cell(show(row)) for show in columns.values())
        table.add_row(safe_cell(row.solution), row.language, *cells, style="red" if row.problem else "")
    return table


def _columns_of(rows: Sequence[Entry]) -> dict[str, Callable[[Entry], str]]:
    """The columns that are not empty for these solutions."""
    columns: dict[str, Callable[[Entry], str]] = {
        "passed": lambda row: f"{row.passed}/{row.total}",
        "speedup": lambda row: row.speedup_text,
    }
    if any(row.baseline is not None for row in rows):
        columns["vs baseline"] = lambda row: row.baseline_speedup_text
    if any(row.is_ranked for row in rows):
        for factor in rows[0].fast_p:
            columns[f"fast_{factor}"] = functools.partial(_fast_of, factor)
    if any(row.attainable_fraction is not None for row in rows):
        columns["light"] = lambda row: _share_or_dash(row.attainable_fraction)
    columns["latency"] = _latency_of
    if any(row.timed_by for row in rows) and not _is_cpu_timed(rows):
        columns["timed by"] = _methods_of
    if len({CPU_TIMING in row.labels for row in rows if row.passed}) > 1:
        columns["note"] = lambda row: ", ".join(row.labels)
    return columns


def _is_cpu_timed(rows: Iterable[Entry]) -> bool:
    """Whether all latencies are CPU timings, which the title says."""
    timed = [row for row in rows if row.passed]
    return bool(timed) and all(CPU_TIMING in row.labels for row in timed)


def _fast_of(factor: str, row: Entry) -> str:
    return f"{row.fast_p[factor]:.0%}" if row.is_ranked or row.problem else "-"


def _latency_of(row: Entry) -> str:
    if INTERPRETED in row.labels and row.latency_ms is None:
        return INTERPRETED
    if row.latency_ms is not None and row.latency_bounds_ms is not None:
        return latency_with_bounds(row.latency_ms[0], row.latency_bounds_ms)
    return latency_range(row.latency_ms)


def _methods_of(row: Entry) -> str:
    if row.latency_ms is None:
        return "-"
    return ", ".join(row.timed_by) or "linked"


def print_failures(console: Console, rows: Iterable[Entry]) -> None:
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
        console.print(safe_text(texts.get(cause, cause), "red"), soft_wrap=True)
        for subject in subjects:
            console.print(safe_text(f"  {subject}"), soft_wrap=True)


def _workloads_of(failure: Failure, total: int) -> str:
    """The workloads of a failure; a long list says how many are left out."""
    names, count = failure.workloads, len(failure.workloads)
    if count == total and count > 1:
        return f"all {count} workloads"
    more = f"; and {count - _SHOWN_WORKLOADS} more (--json lists all)" if count > _SHOWN_WORKLOADS else ""
    return f"{count} of {total} workloads: {'; '.join(names[:_SHOWN_WORKLOADS])}{more}" if total > 1 else names[0]


def print_authors(console: Console, authors: Sequence[Author]) -> None:
    """Print the authors by score, if any has one."""
    if not authors:
        return
    table = make_table("authors", ["author"], ["speedup", "workloads"])
    for author in authors:
        table.add_row(safe_cell(author.author), format_ratio(author.speedup), str(author.workloads))
    print_table(console, table)


def print_best(console: Console, rows: Sequence[Best]) -> None:
    """Print the fastest solution of each workload."""
    print_devices(console, [row.hardware for row in rows])
    if len(common := {(row.labels, row.timed_by) for row in rows}) == 1:
        (labels, methods), *_ = common
        for text in (*labels, *([f"timed by: {methods}"] if methods else [])):
            console.print(safe_text(text), soft_wrap=True)
    columns = _best_columns(rows)
    words = [name for name in columns if name in _WORDS]
    table = make_table("", words, [name for name in columns if name not in _WORDS])
    for row in rows:
        table.add_row(*(safe_cell(show(row)) for show in columns.values()))
    print_table(console, table)


def _best_columns(rows: Sequence[Best]) -> dict[str, Callable[[Best], str]]:
    """The columns that are not empty for these rows, those of words first."""
    columns: dict[str, Callable[[Best], str]] = {"definition": lambda row: row.definition}
    if len({row.hardware for row in rows}) > 1:
        columns["device"] = lambda row: row.hardware
    columns["axes"] = lambda row: ", ".join(f"{axis}={size}" for axis, size in row.axes.items())
    columns["solution"] = lambda row: row.solution
    if len({(row.labels, row.timed_by) for row in rows}) > 1:
        columns["note"] = lambda row: ", ".join(row.labels)
        columns["timed by"] = lambda row: row.timed_by or "linked"
    columns["speedup"] = lambda row: row.speedup_text
    columns["latency"] = lambda row: latency_with_bounds(row.latency_ms, row.bounds_ms)
    columns["reference"] = lambda row: (
        "-" if row.reference_latency_ms is None else format_latency(row.reference_latency_ms)
    )
    if any(row.attainable_fraction is not None for row in rows):
        columns["light"] = lambda row: _share_or_dash(row.attainable_fraction)
    return columns


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
            console.print(safe_text(text, "yellow"), soft_wrap=True)
            continue
        more = f", and {len(group) - _SHOWN_SKIPS} more (--json lists all)" if len(group) > _SHOWN_SKIPS else ""
        shown = f"{_subjects(group[:_SHOWN_SKIPS])}{more}: {group[0].reason}"
        count = f"{len(group)} " if len(group) > 1 else ""
        kind, style = ("could not run", "red") if is_failure else ("skipped", "yellow")
        console.print(safe_text(f"{count}{kind}: {shown}", style), soft_wrap=True)


def _subjects(skips: Iterable[Skip]) -> str:
    """The names of skipped work, that of a definition once: ``a / x, y; b / x``."""
    groups: dict[str, list[str]] = {}
    for skip in skips:
        groups.setdefault(skip.definition, []).append(skip.subject.removeprefix(f"{skip.definition} / "))
    return "; ".join(
        definition if names == [definition] else f"{definition} / {', '.join(names)}"
        for definition, names in groups.items()
    )


def print_seconds(
    console: Console, seconds: Mapping[Phase, float] | Mapping[str, float], busy_share: float | None = None
) -> None:
    """Print the time that each phase of a run took; the sum is the wall time, times the number of devices."""
    if seconds:
        shown = ", ".join(f"{phase} {spent:.1f}" for phase, spent in seconds.items())
        busy = "" if busy_share is None else f"; device busy {busy_share:.0%}"
        text = f"{sum(seconds.values()):.1f} seconds: {shown}{busy}"
        console.print(text, markup=False, highlight=False, soft_wrap=True)


def print_starts(console: Console, starts: Iterable[Started]) -> None:
    """Print the steps in which each judge and its fork server started, which they do at the same time."""
    for start in starts:
        for title, steps in (("judge", start.judge), ("fork server", start.server)):
            shown = ", ".join(f"{step} {spent:.2f}" for step, spent in steps.items())
            text = f"start of the {title}: {sum(steps.values()):.2f} seconds: {shown}"
            console.print(text, markup=False, highlight=False, soft_wrap=True)


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
