"""Tables of comparisons and merges for people, printed on stdout."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from fib_schema.command import print_problems
from fib_schema.display import counted
from rich.console import Console
from rich.table import Table

from ..report.comparing import Comparison, Pair, Verdict
from ..report.merging import MergeReport
from ..report.quantities import latency_with_bounds
from .printing import error_console, safe_cell, safe_text
from .table_style import make_table, print_table
from .tables import print_devices

_SHOWN_PAIRS = 100
_STYLES = {
    Verdict.BROKEN: "red",
    Verdict.SLOWER: "red",
    Verdict.FASTER: "green",
    Verdict.FIXED: "green",
    Verdict.UNMEASURED: "",
    Verdict.UNRANKED: "yellow",
}
"""The verdicts that the table shows."""
_NOT_COMPARED = frozenset({Verdict.UNMEASURED, Verdict.UNRANKED})


def print_comparison(console: Console, found: Comparison) -> None:
    """Print the changes, the worst first, and the totals."""
    changed = [pair for pair in found.pairs if pair.verdict in _STYLES]
    print_devices(console, [pair.hardware for pair in found.pairs])
    if changed:
        print_table(console, _table_of(f"{found.before} -> {found.after}", changed[:_SHOWN_PAIRS]))
    if (more := len(changed) - _SHOWN_PAIRS) > 0:
        console.print(f"{more} more changed (--json lists all)")
    broken: dict[str, list[Pair]] = {}
    for pair in found.pairs:
        if pair.verdict is Verdict.BROKEN:
            broken.setdefault(f"{pair.solution}: {pair.reason}", []).append(pair)
    for reason, pairs in broken.items():
        where = "" if len(pairs) == 1 else f" ({len(pairs)} workloads)"
        console.print(safe_text(f"{reason}{where}", "red"), soft_wrap=True)
    skipped = Counter((str(p.verdict), p.reason) for p in found.pairs if p.verdict in _NOT_COMPARED and p.reason)
    for (verdict, reason), count in skipped.items():
        text = reason if reason.startswith(f"{verdict}: ") else f"{verdict}: {reason}"
        console.print(safe_text(f"{count} {text}", "yellow"), soft_wrap=True)
    counts = ", ".join(f"{count} {verdict}" for verdict, count in found.counts.items())
    ratio = "" if found.ratio_text == "-" else f"; after / before: {found.ratio_text} (geometric mean)"
    style = "red" if found.is_worse else ""
    console.print(safe_text(f"{counts}{ratio}; {_criterion(found.pairs)}", style), soft_wrap=True)


def _table_of(title: str, pairs: Sequence[Pair]) -> Table:
    has_devices, has_methods = len({pair.hardware for pair in pairs}) > 1, any(pair.timed_by for pair in pairs)
    words = ["definition", *(["device"] if has_devices else []), "solution", "axes"]
    words += ["timed by"] if has_methods else []
    table = make_table(title, words, ["before", "after", "ratio", "verdict"])
    for pair in pairs:
        axes = ", ".join(f"{axis}={size}" for axis, size in pair.axes.items()) or pair.workload
        cells = [pair.definition, *([pair.hardware] if has_devices else []), pair.solution, axes]
        cells += [pair.timed_by or "linked"] if has_methods else []
        table.add_row(*map(safe_cell, cells), *_numbers_of(pair), str(pair.verdict), style=_STYLES[pair.verdict])
    return table


def _numbers_of(pair: Pair) -> tuple[str, str, str]:
    before = "-" if pair.before_ms is None else latency_with_bounds(pair.before_ms, pair.before_bounds_ms)
    after = "-" if pair.after_ms is None else latency_with_bounds(pair.after_ms, pair.after_bounds_ms)
    return before, after, pair.ratio_text


def _criterion(pairs: Iterable[Pair]) -> str:
    """The criterion by which latencies were compared."""
    criteria = [pair.decided_by for pair in pairs if pair.decided_by]
    by_margin = criteria.count("margin")
    if not criteria:
        return "no latencies to compare"
    if not by_margin:
        return "decided by confidence intervals"
    if by_margin == len(criteria):
        return "decided by --margin: these traces have no confidence intervals"
    return f"decided by confidence intervals, and for {by_margin} without any by --margin"


def print_merge(console: Console, report: MergeReport) -> None:
    """Print the result of a merge."""
    counts = ", ".join(counted(count, kind.removesuffix("s")) for kind, count in report.counts.items()) or "nothing"
    console.print(safe_text(f"{' + '.join(report.sources)} -> {report.target}: {counts}"), soft_wrap=True)
    console.print(f"copied byte for byte: {counted(report.copied, 'file')}")
    if report.repeated:
        repeated = ", ".join(counted(count, kind.removesuffix("s")) for kind, count in report.repeated.items())
        console.print(f"duplicates, written once: {repeated}", soft_wrap=True)
    for notice in report.notices:
        console.print(safe_text(f"notice: {notice}", "yellow"), soft_wrap=True)
    for problem in report.problems:
        error_console().print(safe_text(f"error: {problem}", "red"), soft_wrap=True)
    validation = report.validation
    print_problems([*validation.problems, *validation.warnings])
    if not validation.is_ok:
        error_console().print(safe_text(validation.summary, "red"), soft_wrap=True)
