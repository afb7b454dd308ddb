"""``fib-bench report ...``: what the traces say, to people, to programs, and to a gate in CI."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import attrs
from fib_schema import UNRANKED_FLAGS, FibError, TraceSet
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ..report.comparing import DEFAULT_MARGIN, DEFAULT_MIN_CHANGE, Comparison, Pair, Rule, Run, Verdict, compare
from ..report.merging import MergeConflicts, MergeReport, merge
from ..report.standings import WIN_FACTORS, Options, best, summarise
from .help_pages import dress
from .printing import print_csv, print_json
from .run_options import names_of
from .tables import format_latency, print_best, print_summary

_SHOWN_PAIRS = 100
_STYLES = {Verdict.BROKEN: "red", Verdict.SLOWER: "red", Verdict.FASTER: "green", Verdict.FIXED: "green"}


@attrs.frozen
class InvalidRequest(FibError, ValueError):
    """Words on the command line that do not go together."""

    problem: str

    def __str__(self) -> str:
        return self.problem


class _Commands(Protocol):
    """What `argparse` gives to add sub-commands to; its own type is private."""

    def add_parser(self, name: str, *, help: str) -> argparse.ArgumentParser: ...


def add_reports(commands: _Commands) -> None:
    """Declare ``report`` and its parts, and ``summary`` and ``best`` as short forms of two of them."""
    report = commands.add_parser("report", help="show what the traces say")
    dress(report, "report")
    reports = report.add_subparsers(required=True, metavar="REPORT")
    for where in (reports, commands):
        add_summary(where.add_parser("summary", help="totals, the leaderboard, and the ranking of authors"))
        add_best(where.add_parser("best", help="the fastest passing solution of each workload"))
    add_compare(reports.add_parser("compare", help="what became faster or slower between two runs, or two solutions"))
    add_merge(reports.add_parser("merge", help="make several data sets one"))
    add_html(reports.add_parser("html", help="one page with everything, which needs no network"))


def add_summary(parser: argparse.ArgumentParser) -> None:
    """Declare what ``summary`` takes."""
    dress(parser, "report summary")
    parser.add_argument("dir", metavar="DIR", help="the data set")
    _add_output(parser)
    _add_options(parser)
    parser.set_defaults(command=_summary)


def add_best(parser: argparse.ArgumentParser) -> None:
    """Declare what ``best`` takes."""
    dress(parser, "report best")
    parser.add_argument("dir", metavar="DIR", help="the data set")
    _add_definitions(parser)
    _add_output(parser)
    _add_flags(parser)
    parser.set_defaults(command=_best)


def add_compare(parser: argparse.ArgumentParser) -> None:
    """Declare what ``compare`` takes."""
    dress(parser, "report compare")
    parser.add_argument("before", metavar="BEFORE", help="a data set")
    parser.add_argument("after", metavar="AFTER", nargs="?", help="another run of it (default: the same)")
    said = "compare solution X with solution Y, whatever their names, instead of each solution with itself"
    parser.add_argument("--solutions", nargs=2, metavar=("X", "Y"), help=said)
    _add_definitions(parser)
    said = f"share by which latencies without an interval must differ (default: {DEFAULT_MARGIN:g})"
    parser.add_argument("--margin", type=_share, default=DEFAULT_MARGIN, metavar="SHARE", help=said)
    said = f"share by which latencies whose intervals are apart must differ too (default: {DEFAULT_MIN_CHANGE:g})"
    parser.add_argument("--min-change", type=_share, default=DEFAULT_MIN_CHANGE, metavar="SHARE", help=said)
    said = "compare what ran on different devices too"
    parser.add_argument("--any-hardware", action="store_true", help=said)
    said = "exit with 1 also if something was not tried any more"
    parser.add_argument("--complete", action="store_true", help=said)
    _add_output(parser)
    _add_flags(parser)
    parser.set_defaults(command=_compare)


def add_merge(parser: argparse.ArgumentParser) -> None:
    """Declare what ``merge`` takes."""
    dress(parser, "report merge")
    parser.add_argument("sources", metavar="DIR", nargs="+", help="the data sets; they are not changed")
    parser.add_argument("--into", required=True, metavar="DST", help="a folder that is new or empty")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(command=_merge)


def add_html(parser: argparse.ArgumentParser) -> None:
    """Declare what ``html`` takes."""
    dress(parser, "report html")
    parser.add_argument("dir", metavar="DIR", help="the data set")
    parser.add_argument("--output", default="report.html", metavar="FILE", help="the page (default: %(default)s)")
    parser.add_argument("--png", metavar="FOLDER", help="write each chart as a PNG file too")
    _add_definitions(parser)
    parser.add_argument("--json", action="store_true", help="print what was written as JSON")
    _add_options(parser)
    parser.set_defaults(command=_html)


def _add_output(parser: argparse.ArgumentParser) -> None:
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--json", action="store_true", help="print JSON")
    group.add_argument("--csv", action="store_true", help="print the rows as CSV")


def _add_definitions(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--definitions", nargs="+", metavar="NAME", help="only these")


def _add_flags(parser: argparse.ArgumentParser) -> None:
    flags = ", ".join(sorted(UNRANKED_FLAGS))
    said = f"rank solutions with these flags too, which are left out otherwise ({flags})"
    parser.add_argument("--allow-flags", nargs="+", metavar="FLAG", default=(), choices=UNRANKED_FLAGS, help=said)


def _add_options(parser: argparse.ArgumentParser) -> None:
    _add_flags(parser)
    said = "quote speedups against this solution too (default: the one that traces were timed beside)"
    parser.add_argument("--baseline", metavar="NAME", help=said)
    said = "rank authors against this one's solutions (default: %(default)s)"
    parser.add_argument("--baseline-author", default="baseline", metavar="NAME", help=said)
    said = f"factors p of win@p (default: {' '.join(f'{factor:g}' for factor in WIN_FACTORS)})"
    parser.add_argument("--win", nargs="+", type=_factor, default=WIN_FACTORS, metavar="P", help=said)


def _options_of(arguments: argparse.Namespace) -> Options:
    return Options(
        allow_flags=arguments.allow_flags,
        baseline=arguments.baseline,
        baseline_author=arguments.baseline_author,
        win_factors=tuple(dict.fromkeys(arguments.win)),
    )


def _share(text: str) -> float:
    return _number(text, 0.0)


def _factor(text: str) -> float:
    return _number(text, 1.0)


def _number(text: str, least: float) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None
    if not least <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be at least {least:g} and finite, got {text}")
    return value


# -- the commands ------------------------------------------------------------------------------


def _summary(arguments: argparse.Namespace, errors: Console) -> int:
    summary = summarise(TraceSet.from_path(arguments.dir), _options_of(arguments))
    if arguments.json:
        print_json(attrs.asdict(summary))
    elif arguments.csv:
        print_csv(map(attrs.asdict, summary.standings))
    else:
        print_summary(Console(), summary)
        if summary.authors_note:
            errors.print(Text(summary.authors_note, style="yellow"), soft_wrap=True)
    return 0


def _best(arguments: argparse.Namespace, errors: Console) -> int:
    rows = best(TraceSet.from_path(arguments.dir), names_of(arguments.definitions), allow_flags=arguments.allow_flags)
    if arguments.json:
        print_json([attrs.asdict(row) for row in rows])
    elif arguments.csv:
        print_csv(map(attrs.asdict, rows))
    elif rows:
        print_best(Console(), rows)
    else:
        errors.print("no passing trace yet; make some with 'fib-bench run'", style="yellow")
    return 0


def _compare(arguments: argparse.Namespace, errors: Console) -> int:
    before, after = _sides(arguments)
    rule = Rule(
        margin=arguments.margin,
        min_change=arguments.min_change,
        allow_flags=arguments.allow_flags,
        any_hardware=arguments.any_hardware,
    )
    found = compare(before, after, rule, names_of(arguments.definitions))
    if arguments.json:
        print_json(attrs.asdict(found) | {"is_worse": found.is_worse})
    elif arguments.csv:
        print_csv(map(attrs.asdict, found.pairs))
    else:
        print_comparison(Console(), found)
    if found.missing and not arguments.json:
        errors.print(f"{found.missing} workloads were tried before only (--complete makes that fail)", style="yellow")
    return 1 if found.is_worse or (arguments.complete and found.missing) else 0


def _sides(arguments: argparse.Namespace) -> tuple[Run, Run]:
    """What is compared with what.

    Raises:
        InvalidRequest: It would be compared with itself.
    """
    if arguments.after is None and arguments.solutions is None:
        raise InvalidRequest("compare takes two data sets, or --solutions X Y and one")
    sets = [TraceSet.from_path(arguments.before)]
    sets.append(sets[0] if arguments.after is None else TraceSet.from_path(arguments.after))
    places = [arguments.before, arguments.after or arguments.before]
    if arguments.solutions is None:
        return Run(sets[0], places[0]), Run(sets[1], places[1])
    names = [f"{name} ({place})" for name, place in zip(arguments.solutions, places, strict=True)]
    old, new = arguments.solutions
    return Run(sets[0], names[0], old), Run(sets[1], names[1], new)


def _merge(arguments: argparse.Namespace, errors: Console) -> int:
    try:
        report = merge(arguments.sources, arguments.into)
    except MergeConflicts as error:
        if arguments.json:
            print_json({"conflicts": [attrs.asdict(conflict) for conflict in error.conflicts]})
        else:
            errors.print(Text(f"fib-bench: {error}", style="red"), soft_wrap=True)
        return 1
    if arguments.json:
        print_json(attrs.asdict(report))
    else:
        print_merge(Console(), report)
    return 0


def _html(arguments: argparse.Namespace, errors: Console) -> int:
    del errors
    from ..report.charts import save_png
    from ..report.digest import charts, digest
    from ..report.page import page_of

    found = digest(TraceSet.from_path(arguments.dir), _options_of(arguments), names_of(arguments.definitions))
    page = Path(arguments.output)
    page.write_text(page_of(found), "utf-8")
    written = [page]
    if arguments.png is not None:
        folder = Path(arguments.png)
        folder.mkdir(parents=True, exist_ok=True)
        for section in found.sections:
            for name, spec in charts(section):
                save_png(spec, folder / name)
                written.append(folder / name)
    if arguments.json:
        print_json({"written": [{"path": str(path), "bytes": path.stat().st_size} for path in written]})
    else:
        size = page.stat().st_size / 2**20
        shown = f"{page}: {found.counts['traces']} traces, {size:.1f} MiB"
        shown += f"; {len(written) - 1} charts in {arguments.png}" if arguments.png is not None else ""
        Console().print(Text(shown), soft_wrap=True)
    return 0


# -- to people ---------------------------------------------------------------------------------


def print_comparison(console: Console, found: Comparison) -> None:
    """Print what changed, the worst first, and what it adds up to."""
    changed = [pair for pair in found.pairs if pair.verdict in _STYLES or pair.verdict is Verdict.UNMEASURED]
    if changed:
        table = Table(title=escape(f"{found.before} -> {found.after}"), title_justify="left", title_style="bold")
        for column in ("definition", "solution", "axes"):
            table.add_column(column, overflow="fold")
        for column in ("before", "after", "ratio", "verdict"):
            table.add_column(column, justify="right", no_wrap=True)
        for pair in changed[:_SHOWN_PAIRS]:
            table.add_row(*_cells(pair), style=_STYLES.get(pair.verdict, ""))
        console.print(table)
    if (more := len(changed) - _SHOWN_PAIRS) > 0:
        console.print(f"{more} more changed (--json lists all)")
    for reason in dict.fromkeys(f"{p.solution}: {p.reason}" for p in changed if p.verdict is Verdict.BROKEN):
        console.print(Text(reason, style="red"), soft_wrap=True)
    counts = ", ".join(f"{count} {verdict}" for verdict, count in found.counts.items())
    ratio = "" if found.ratio is None else f"; after / before: {found.ratio:.3f} (geometric mean)"
    style = "red" if found.is_worse else ""
    console.print(Text(f"{counts}{ratio}; {_grounds(found.pairs)}", style=style), soft_wrap=True)


def _cells(pair: Pair) -> tuple[str, ...]:
    axes = ", ".join(f"{axis}={size}" for axis, size in pair.axes.items()) or pair.workload
    times = ("-" if ms is None else format_latency(ms) for ms in (pair.before_ms, pair.after_ms))
    ratio = "-" if pair.ratio is None else f"{pair.ratio:.3f}"
    return *map(escape, (pair.definition, pair.solution, axes)), *times, ratio, str(pair.verdict)


def _grounds(pairs: Iterable[Pair]) -> str:
    """By what latencies were compared."""
    grounds = [pair.decided_by for pair in pairs if pair.decided_by]
    by_margin = grounds.count("margin")
    if not grounds:
        return "no latencies to compare"
    if not by_margin:
        return "decided by confidence intervals"
    if by_margin == len(grounds):
        return "decided by --margin, for these traces have no confidence intervals"
    return f"decided by confidence intervals, and for {by_margin} without any by --margin"


def print_merge(console: Console, report: MergeReport) -> None:
    """Print what a merge did."""
    counts = ", ".join(f"{count} {kind}" for kind, count in report.counts.items()) or "nothing"
    console.print(Text(f"{' + '.join(report.sources)} -> {report.target}: {counts}"), soft_wrap=True)
    console.print(f"{report.copied} files are byte for byte those of a source")
    if report.repeated:
        repeated = ", ".join(f"{count} {kind}" for kind, count in report.repeated.items())
        console.print(f"there more than once, and taken once: {repeated}", soft_wrap=True)
    for notice in report.notices:
        console.print(Text(f"notice: {notice}", style="yellow"), soft_wrap=True)
