"""Commands ``fib-bench report ...``: tables for people, JSON for programs, exit codes for CI."""

from __future__ import annotations

import argparse
import math
from collections.abc import Collection
from pathlib import Path

from fib_schema import InvalidField, Problem, TraceSet
from fib_schema.command import add_data_set, data_set_of, print_problems
from fib_schema.data_files import missing_data
from fib_schema.files import write_output
from fib_schema.trace_facts import CPU_TIMING
from rich.console import Console

from ..report import best, summarise
from ..report.comparing import DEFAULT_MIN_CHANGE, compare
from ..report.leaderboard import report_problems
from ..report.merging import MergeConflicts, merge
from ..report.ratios import plain_record
from .options import add_command, add_definitions, add_json, names_of, set_help
from .output import output_console, print_best, print_comparison, print_json, print_merge, print_summary, say

_HELP = """\
Show the results in a data set. Only traces of the same kind of device are compared, and of several traces
of a solution on a workload the latest counts. CPU timings are shown in no order unless --include-unranked is
given; logs are marked as untrusted output of the solution.

Examples:
  fib-bench report summary DIR
  fib-bench report compare BEFORE AFTER            as a gate: exits with 1 if something became slower
  fib-bench report html DIR --output report.html"""


def declare_report(report: argparse.ArgumentParser) -> None:
    """Declare ``report`` and its sub-commands."""
    set_help(report, _HELP)
    reports = report.add_subparsers(required=True, metavar="REPORT")
    summary = add_command(reports, "summary", "totals and the leaderboard", _summary)
    add_data_set(summary, is_first=True)
    add_json(summary)
    _add_flags(summary)
    fastest = add_command(reports, "best", "the fastest passing solution of each workload", _best)
    add_data_set(fastest, is_first=True)
    add_definitions(fastest)
    add_json(fastest)
    _add_flags(fastest)
    _add_compare(add_command(reports, "compare", "changes of latency between two runs", _compare))
    merged = add_command(reports, "merge", "merge several data sets", _merge)
    merged.add_argument("sources", metavar="DIR", nargs="+", help="the data sets; they are not changed")
    merged.add_argument("--into", required=True, metavar="DST", help="a folder that is new or empty")
    page = add_command(reports, "html", "one HTML page that needs no network", _html)
    add_data_set(page, is_first=True)
    page.add_argument("--output", default="report.html", metavar="FILE", help="the page (default: %(default)s)")
    text = "text below the title, such as where inputs come from"
    page.add_argument("--note", metavar="TEXT", default="", help=text)
    _add_flags(page)


def _add_compare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("before", metavar="BEFORE", help="a data set")
    parser.add_argument("after", metavar="AFTER", help="another run of it")
    text = "share by which latencies must differ (default: %(default)g)"
    parser.add_argument("--min-change", type=float, default=DEFAULT_MIN_CHANGE, metavar="SHARE", help=text)
    add_json(parser)
    _add_flags(parser)


def _add_flags(parser: argparse.ArgumentParser) -> None:
    text = f"rank traces with the flag {CPU_TIMING!r} too: for solutions that you trust"
    parser.add_argument("--include-unranked", action="store_true", help=text)


def _flags_of(arguments: argparse.Namespace) -> tuple[str, ...]:
    return (CPU_TIMING,) if arguments.include_unranked else ()


def _print_problems(trace_set: TraceSet, root: Path, definitions: Collection[str] | None = None) -> int:
    """Print the problems of a data set; returns the exit code of a report: 1 for a folder without records."""
    problems = _problems(trace_set, definitions)
    is_empty = not trace_set.definition_names() and not trace_set.traces
    print_problems([*problems, missing_data(str(root))] if is_empty else problems)
    return int(is_empty)


def _problems(trace_set: TraceSet, definitions: Collection[str] | None = None) -> list[Problem]:
    """The problems of the definitions of a report; without them, files that it has not read are read too."""
    problems = trace_set.problems if definitions else trace_set.all_problems()
    return [*problems, *report_problems(trace_set, definitions or None)]


def _summary(arguments: argparse.Namespace, errors: Console) -> int:
    """Totals, then the solutions of each definition with the fastest first.

    speedup    geometric mean of reference latency / latency; none for a solution that fails anywhere. Marked
               `noise` if its interval includes 1, `wide` if the interval is wider than 10 % to each side
    timed by   the timing method, unless all are `handshake`; `eager` is a call latency
    fast_1     share of workloads on which it passes and is faster than the reference (KernelBench)
    light      median share of what the device can attain, where the op_type is known

    Examples:
      fib-bench report summary DIR
      fib-bench report summary DIR --json | jq '.leaderboard[].speedup.value'
    """
    del errors
    root = data_set_of(arguments)
    trace_set = TraceSet.from_path(root)
    summary = summarise(trace_set, _flags_of(arguments))
    code = _print_problems(trace_set, root)
    if arguments.json:
        print_json(plain_record(summary))
    else:
        print_summary(output_console(), summary, root)
    return code


def _best(arguments: argparse.Namespace, errors: Console) -> int:
    """The fastest passing solution of each workload: what `fib-apply` chooses from.

    Examples:
      fib-bench report best DIR
      fib-bench report best DIR --definitions rmsnorm_h4096 --json
    """
    root, definitions = data_set_of(arguments), names_of(arguments.definitions)
    trace_set = TraceSet.from_path(root)
    rows = best(trace_set, definitions, allow_flags=_flags_of(arguments))
    code = _print_problems(trace_set, root, definitions)
    if arguments.json:
        print_json(list(map(plain_record, rows)))
    elif rows:
        print_best(output_console(), rows)
    elif not code:
        note = f"no passing trace yet that is ranked; make some with 'fib-bench run' ({CPU_TIMING}: --include-unranked)"
        say(errors, note, "yellow")
    return code


def _compare(arguments: argparse.Namespace, errors: Console) -> int:
    """List the changes of latency between two runs.

    Latencies differ if the medians differ by --min-change, and their 95 % confidence intervals, where traces have
    them, are apart. Only traces of one device are compared, CPU timings with --include-unranked only. Exits with 0 if
    nothing became slower or stopped passing, with 1 if a workload did, with 2 if there is nothing to compare.

    Examples:
      fib-bench report compare BEFORE AFTER
      fib-bench report compare BEFORE AFTER --json | jq .counts.missing
    """
    del errors
    if not 0 <= arguments.min_change < math.inf:
        raise InvalidField("--min-change", f"must be at least 0 and finite, got {arguments.min_change}")
    before, after = map(TraceSet.from_path, (arguments.before, arguments.after))
    try:
        found = compare(before, after, min_change=arguments.min_change, allow_flags=_flags_of(arguments))
    finally:  # a bad file may be why there is nothing to compare
        for run in (before, after):
            print_problems(_problems(run))
    if arguments.json:
        print_json(plain_record(found) | {"is_worse": found.is_worse})
    else:
        print_comparison(output_console(), found)
    return 1 if found.is_worse else 0


def _merge(arguments: argparse.Namespace, errors: Console) -> int:
    """Merge data sets; every record is written once.

    If two sets have different records with one name, all conflicts are listed, nothing is written, and the exit
    code is 1. Bad records are copied unchanged. Files that cannot be read are left out. The result is validated;
    if it has errors, or something was left out, the exit code is 1.

    Examples:
      fib-bench report merge MINE YOURS --into BOTH
    """
    try:
        report = merge(arguments.sources, arguments.into)
    except MergeConflicts as error:
        say(errors, f"fib-bench: {error}", "red")
        return 1
    print_merge(output_console(), report)
    return 0 if report.validation.is_ok else 1


def _html(arguments: argparse.Namespace, errors: Console) -> int:
    """Write one page with the leaderboard, and per definition latency against sizes, failures and all traces.

    It loads nothing from a network, and shows output of solutions as untrusted text. Needs the extra 'report':
    pip install 'fib-bench[report]'.

    Examples:
      fib-bench report html DIR --output report.html
    """
    del errors
    from ..report.page import page_of

    root = data_set_of(arguments)
    trace_set = TraceSet.from_path(root)
    page = page_of(trace_set, _flags_of(arguments), note=arguments.note)
    if code := _print_problems(trace_set, root):
        return code
    data = page.encode()
    write_output(Path(arguments.output), data)
    say(output_console(), f"wrote {arguments.output}, {len(data) / 2**20:.1f} MiB")
    return 0
