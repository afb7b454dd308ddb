"""Tables of traffic-weighted reports for people, printed on stdout."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console

from ..report.quantities import format_latency, format_ratio
from ..report.weighted import WeightedEntry, WeightedSummary
from .printing import safe_cell, safe_text
from .table_style import make_table, print_table
from .tables import print_devices

_MAX_SHOWN_MS = 1e4
"""Longer times are shown in seconds."""


def print_weighted(console: Console, summary: WeightedSummary) -> None:
    """Print the solutions of each definition with the time of the traced calls, then the totals of each device."""
    print_devices(console, [entry.hardware for entry in summary.entries])
    has_devices = len({entry.hardware for entry in summary.entries}) > 1
    groups: dict[tuple[str, str], list[WeightedEntry]] = {}
    for entry in summary.entries:
        groups.setdefault((entry.definition, entry.hardware), []).append(entry)
    for (definition, hardware), rows in groups.items():
        console.print()
        _print_definition(console, f"{definition} on {hardware}" if has_devices else definition, rows)
    if summary.totals:
        console.print()
    for total in summary.totals:
        where = f" on {total.hardware}" if has_devices else ""
        text = (
            f"{_calls(total.calls)} traced calls of {total.definitions} "
            f"definition{'s' * (total.definitions != 1)}{where}: {_duration(total.reference_ms)} with the reference, "
            f"{_duration(total.best_ms)} with the best solutions, {format_ratio(total.reference_ms / total.best_ms)}"
        )
        console.print(safe_text(text), soft_wrap=True)


def _print_definition(console: Console, title: str, rows: Iterable[WeightedEntry]) -> None:
    table = make_table(title, ["solution"], ["calls", "of all", "reference", "solution", "weighted speedup"])
    for row in rows:
        times = ("-" if ms is None else _duration(ms) for ms in (row.reference_ms, row.solution_ms))
        cells = (row.solution, _calls(row.calls), f"{row.share:.1%}", *times, row.speedup_text)
        table.add_row(*map(safe_cell, cells), style="red" if row.problem else "")
    print_table(console, table)


def _calls(calls: float) -> str:
    return f"{calls:,.0f}"


def _duration(milliseconds: float) -> str:
    """A sum of latencies, which may be hours."""
    if milliseconds < _MAX_SHOWN_MS:
        return format_latency(milliseconds)
    return f"{milliseconds / 1e3:,.{1 if milliseconds < 10 * _MAX_SHOWN_MS else 0}f} s"
