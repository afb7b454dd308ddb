"""Commands ``fib-bench report ...``: tables for people, JSON and CSV for programs, exit codes for CI."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from pathlib import Path
from typing import Protocol

import attrs
from fib_schema import UNRANKED_FLAGS, FibError, Problem, TraceSet
from fib_schema.command import print_problems
from fib_schema.data_files import missing_data
from fib_schema.display import counted
from fib_schema.files import write_output
from rich.console import Console

from ..flags import CPU_TIMING
from ..report import best, summarise
from ..report.comparing import DEFAULT_MARGIN, DEFAULT_MIN_CHANGE, Rule, Run, compare
from ..report.merging import MergeConflicts, merge
from ..report.results import FAST_FACTORS, Options, count_cpu_timed, layout_problems
from ..report.weighted import summarise_weighted
from .comparison_tables import print_comparison, print_merge
from .help_pages import add_help
from .printing import output_console, print_csv, print_json, safe_text
from .run_options import names_of
from .tables import print_best, print_summary
from .weighted_tables import print_weighted


@attrs.frozen
class InvalidRequest(FibError, ValueError):
    """Arguments that cannot be combined."""

    problem: str

    def __str__(self) -> str:
        return self.problem


class _Commands(Protocol):
    """The object of `argparse` that sub-commands are added to; its own type is private."""

    def add_parser(self, name: str, *, help: str) -> argparse.ArgumentParser: ...


def add_reports(commands: _Commands) -> None:
    """Declare ``report`` and its sub-commands, and short forms of three of them."""
    report = commands.add_parser("report", help="tables and pages made from traces")
    add_help(report, "report")
    reports = report.add_subparsers(required=True, metavar="REPORT")
    for where in (reports, commands):
        add_summary(where.add_parser("summary", help="totals, the leaderboard, and the ranking of authors"))
        add_best(where.add_parser("best", help="the fastest passing solution of each workload"))
        add_compare(where.add_parser("compare", help="changes of latency between two runs, or two solutions"))
    add_merge(reports.add_parser("merge", help="merge several data sets"))
    add_html(reports.add_parser("html", help="one HTML page that needs no network"))


def add_summary(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``summary``."""
    add_help(parser, "report summary")
    parser.add_argument("dir", metavar="DIR", help="the data set")
    text = "weight workloads by the calls that fib-tracer counted: times and speedups of the traced traffic"
    parser.add_argument("--weighted", action="store_true", help=text)
    _add_output(parser)
    _add_options(parser)
    parser.set_defaults(command=_summary)


def add_best(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``best``."""
    add_help(parser, "report best")
    parser.add_argument("dir", metavar="DIR", help="the data set")
    _add_definitions(parser)
    _add_output(parser)
    _add_flags(parser)
    parser.set_defaults(command=_best)


def add_compare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``compare``."""
    add_help(parser, "report compare")
    parser.add_argument("before", metavar="BEFORE", help="a data set")
    parser.add_argument("after", metavar="AFTER", nargs="?", help="another run of it (default: the same)")
    text = "compare solution X with solution Y, whatever their names, instead of each solution with itself"
    parser.add_argument("--solutions", nargs=2, metavar=("X", "Y"), help=text)
    _add_definitions(parser)
    text = f"share by which latencies without an interval must differ (default: {DEFAULT_MARGIN:g})"
    parser.add_argument("--margin", type=_share, default=DEFAULT_MARGIN, metavar="SHARE", help=text)
    text = f"share by which latencies whose intervals are apart must differ too (default: {DEFAULT_MIN_CHANGE:g})"
    parser.add_argument("--min-change", type=_share, default=DEFAULT_MIN_CHANGE, metavar="SHARE", help=text)
    text = "compare traces of different devices too"
    parser.add_argument("--any-hardware", action="store_true", help=text)
    text = "exit with 1 also if a workload was tried before only"
    parser.add_argument("--complete", action="store_true", help=text)
    parser.add_argument("--html", metavar="FILE", help="write one page that needs no network, too")
    _add_output(parser)
    _add_flags(parser)
    parser.set_defaults(command=_compare)


def add_merge(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``merge``."""
    add_help(parser, "report merge")
    parser.add_argument("sources", metavar="DIR", nargs="+", help="the data sets; they are not changed")
    parser.add_argument("--into", required=True, metavar="DST", help="a folder that is new or empty")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(command=_merge)


def add_html(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``html``."""
    add_help(parser, "report html")
    parser.add_argument("dir", metavar="DIR", help="the data set")
    parser.add_argument("--output", default="report.html", metavar="FILE", help="the page (default: %(default)s)")
    parser.add_argument("--png", metavar="FOLDER", help="write each chart as a PNG file too")
    parser.add_argument(
        "--note", metavar="TEXT", default="", help="text below the title, such as where inputs come from"
    )
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
    text = f"rank solutions with these flags too, which are left out otherwise ({flags})"
    parser.add_argument("--allow-flags", nargs="+", metavar="FLAG", default=(), choices=UNRANKED_FLAGS, help=text)
    text = f"rank traces with the flag {CPU_TIMING!r} too: for solutions that you trust"
    parser.add_argument("--include-unranked", action="store_true", help=text)


def _add_options(parser: argparse.ArgumentParser) -> None:
    _add_flags(parser)
    text = "quote speedups against this solution too (default: the one that traces were timed beside)"
    parser.add_argument("--baseline", metavar="NAME", help=text)
    text = "rank authors against this one's solutions (default: %(default)s)"
    parser.add_argument("--baseline-author", default="baseline", metavar="NAME", help=text)
    text = f"factors p of fast_p (default: {' '.join(f'{factor:g}' for factor in FAST_FACTORS)})"
    parser.add_argument("--fast", nargs="+", type=_factor, default=FAST_FACTORS, metavar="P", help=text)


def _flags_of(arguments: argparse.Namespace) -> tuple[str, ...]:
    """The flags with which traces are ranked all the same."""
    return (*arguments.allow_flags, *([CPU_TIMING] if arguments.include_unranked else ()))


def _options_of(arguments: argparse.Namespace) -> Options:
    return Options(
        allow_flags=_flags_of(arguments),
        baseline=arguments.baseline,
        baseline_author=arguments.baseline_author,
        fast_factors=tuple(dict.fromkeys(arguments.fast)),
    )


def _share(text: str) -> float:
    return _number(text, 0.0)


def _factor(text: str) -> float:
    return _number(text, 0.0)


def _number(text: str, least: float) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not least <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be at least {least:g} and finite, got {text}")
    return value


def _print_problems(trace_set: TraceSet, root: str, definitions: Collection[str] | None = None) -> int:
    """Print the problems of a data set; returns the exit code of a report: 1 for a folder without records.

    Args:
        trace_set: The data set.
        root: Its folder.
        definitions: The definitions of the report; without them, files that it has not read are read too.
    """
    problems = _problems(trace_set, definitions)
    is_empty = not trace_set.definition_names() and not trace_set.traces
    print_problems([*problems, missing_data(root)] if is_empty else problems)
    return int(is_empty)


def _problems(trace_set: TraceSet, definitions: Collection[str] | None) -> list[Problem]:
    problems = trace_set.problems if definitions else trace_set.all_problems()
    return [*problems, *layout_problems(trace_set, definitions or None)]


# -- the commands ------------------------------------------------------------------------------


def _summary(arguments: argparse.Namespace, errors: Console) -> int:
    trace_set = TraceSet.from_path(arguments.dir)
    if arguments.weighted:
        return _weighted_summary(trace_set, arguments, errors)
    summary = summarise(trace_set, _options_of(arguments))
    code = _print_problems(trace_set, arguments.dir)
    if arguments.json:
        print_json(attrs.asdict(summary))
    elif arguments.csv:
        print_csv(map(attrs.asdict, summary.leaderboard))
    else:
        print_summary(output_console(), summary)
        if summary.authors_note:
            errors.print(safe_text(summary.authors_note, "yellow"), soft_wrap=True)
    return code


def _weighted_summary(trace_set: TraceSet, arguments: argparse.Namespace, errors: Console) -> int:
    summary = summarise_weighted(trace_set, _options_of(arguments))
    print_problems([*_problems(trace_set, None), *summary.problems])
    if arguments.json:
        print_json(summary.to_plain())
    elif arguments.csv:
        print_csv(map(attrs.asdict, summary.entries))
    else:
        print_weighted(output_console(), summary)
    if summary.uncounted and not arguments.json:
        note = f"without counted calls of benchmarked workloads: {', '.join(summary.uncounted)}"
        errors.print(safe_text(note, "yellow"), soft_wrap=True)
    return 0


def _best(arguments: argparse.Namespace, errors: Console) -> int:
    trace_set, definitions = TraceSet.from_path(arguments.dir), names_of(arguments.definitions)
    rows = best(trace_set, definitions, allow_flags=_flags_of(arguments))
    left_out = 0 if arguments.include_unranked else count_cpu_timed(trace_set, definitions)
    code = _print_problems(trace_set, arguments.dir, definitions)
    if arguments.json:
        print_json([attrs.asdict(row) for row in rows])
    elif arguments.csv:
        print_csv(map(attrs.asdict, rows))
    elif rows:
        print_best(output_console(), rows)
    elif not left_out and not code:
        errors.print("no passing trace yet; make some with 'fib-bench run'", style="yellow")
    if left_out:
        note = f"left out: {counted(left_out, 'trace')}, {CPU_TIMING} (--include-unranked includes them)"
        errors.print(safe_text(note, "yellow"), soft_wrap=True)
    return code


def _compare(arguments: argparse.Namespace, errors: Console) -> int:
    before, after = _sides(arguments)
    rule = Rule(
        margin=arguments.margin,
        min_change=arguments.min_change,
        allow_flags=_flags_of(arguments),
        any_hardware=arguments.any_hardware,
    )
    try:
        found = compare(before, after, rule, names_of(arguments.definitions))
    finally:  # a bad file may be why there is nothing to compare
        for side in (before, after):
            print_problems(_problems(side.trace_set, names_of(arguments.definitions)))
    if arguments.json:
        print_json(attrs.asdict(found) | {"is_worse": found.is_worse})
    elif arguments.csv:
        print_csv(map(attrs.asdict, found.pairs))
    else:
        print_comparison(output_console(), found)
    if arguments.html is not None:
        from ..report.comparison_page import comparison_page

        write_output(Path(arguments.html), comparison_page(found).encode())
    if found.missing and not arguments.json:
        errors.print(
            f"tried before only: {counted(found.missing, 'workload')} (--complete makes that fail)", style="yellow"
        )
    return 1 if found.is_worse or (arguments.complete and found.missing) else 0


def _sides(arguments: argparse.Namespace) -> tuple[Run, Run]:
    """The two runs to compare.

    Raises:
        InvalidRequest: The arguments name one run only.
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
            errors.print(safe_text(f"fib-bench: {error}", "red"), soft_wrap=True)
        return 1
    if arguments.json:
        print_json(report.to_plain())
    else:
        print_merge(output_console(), report)
    return 0 if report.is_ok else 1


def _html(arguments: argparse.Namespace, errors: Console) -> int:
    del errors
    from ..report.charts import save_png
    from ..report.page import page_of
    from ..report.page_data import page_data
    from ..report.section_charts import charts

    trace_set, definitions = TraceSet.from_path(arguments.dir), names_of(arguments.definitions)
    found = page_data(trace_set, attrs.evolve(_options_of(arguments), note=arguments.note), definitions)
    if code := _print_problems(trace_set, arguments.dir, definitions):
        return code
    page = Path(arguments.output)
    text = page_of(found).encode()
    write_output(page, text)
    written = {page: len(text)}
    if arguments.png is not None:
        folder = Path(arguments.png)
        for section in found.sections:
            for name, spec in charts(section):
                written[folder / name] = save_png(spec, folder / name)
    if arguments.json:
        print_json({"written": [{"path": str(path), "bytes": size_bytes} for path, size_bytes in written.items()]})
    else:
        size = len(text) / 2**20
        shown = f"{page}: {counted(found.counts['traces'], 'trace')}, {size:.1f} MiB"
        shown += f"; {counted(len(written) - 1, 'chart')} in {arguments.png}" if arguments.png is not None else ""
        output_console().print(safe_text(shown), soft_wrap=True)
    return 0
