"""The command ``fib-compat``: its subcommands, implemented by fib-bench. `parser` defines the options.

Exit codes: 0 success; 1 an evaluation could not run, or a data set has errors; 2 invalid arguments, or a file that
cannot be read or written; 130 interrupted; 141 the reader of the output has ended.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
from fib_bench.cli.options import names_of
from fib_bench.cli.output import error_console, output_console
from fib_bench.cli.progress import progress_on
from fib_bench.cli.tables import print_best, print_leaderboard, print_merge, print_skipped, print_summary
from fib_bench.config.benchmark import read_fields
from fib_bench.report import best as best_of
from fib_bench.report import summarise
from fib_bench.report.merging import merge as merge_folders
from fib_schema import TraceSet, UnknownName
from fib_schema.command import print_problems, run_command
from fib_schema.data_files import missing_data
from fib_schema.trace_facts import CPU_TIMING

from .data_sets import export_traceset, merge_tracesets
from .parser import make_parser

if TYPE_CHECKING:
    from fib_bench.benchmark import RunResult

    from ..names.bench_settings import BenchmarkConfig

__all__ = ["best", "cli", "export_traceset", "merge", "merge_tracesets", "run", "summary", "visualize"]

_INTERRUPTED = "interrupted; finished evaluations are recorded (--resume continues)"


def cli(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    return run_command("fib-compat", lambda: _run(arguments), interrupted=_INTERRUPTED)


def _run(arguments: Sequence[str] | None) -> int:
    options = make_parser().parse_args(arguments)
    with _logging(options.log_level):
        return _COMMANDS[options.command](options)


@contextmanager
def _logging(level: str) -> Iterator[None]:
    """Write log messages from a level on to stderr, while a command runs."""
    root, handler = logging.getLogger(), logging.StreamHandler()
    before = root.level
    handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    handler.setLevel(level)
    root.addHandler(handler)
    root.setLevel(level)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(before)


def run(args: argparse.Namespace) -> int:
    """Benchmark each data set and append each trace to it at once."""
    results = [_run_one(TraceSet.from_path(path), args) for path in args.local]
    return 1 if any(result.failures for result in results) else 0


def _config(args: argparse.Namespace, trace_set: TraceSet) -> BenchmarkConfig:
    """The settings of a run; names are refused if the data set has none of them.

    Raises:
        UnknownName: The data set has none of the definitions, or none of the solutions.
    """
    from ..names.bench_settings import BenchmarkConfig, ResolvedEvalConfig

    known = [*attrs.fields_dict(BenchmarkConfig), *attrs.fields_dict(ResolvedEvalConfig)]
    given = {name: getattr(args, name, None) for name in known}
    fields = {name: value for name, value in given.items() if value is not None}
    for kind, have in (("definition", trace_set.definition_names()), ("solution", trace_set.solution_names())):
        if (names := names_of(getattr(args, f"{kind}s"))) is not None:
            fields[f"{kind}s"] = names
            if not set(names) & set(have):
                raise UnknownName(kind, names[0], have)
    if args.config is None:
        return BenchmarkConfig.default(**fields)
    return BenchmarkConfig(**{**read_fields(Path(args.config)), **fields})


def _run_one(trace_set: TraceSet, args: argparse.Namespace) -> RunResult:
    from ..names.benchmark import Benchmark

    if not trace_set.definition_names():
        print_problems([missing_data(str(trace_set.root))])
    errors = error_console()
    with progress_on(errors) as observe, Benchmark(trace_set, _config(args, trace_set)) as benchmark:
        result = benchmark.run(dump_traces=args.save_results, resume=args.resume, observe=observe)
    shown = _in_memory(trace_set, result) if not args.save_results else benchmark.get_trace_set()
    ran = {trace.definition for trace in result.traces}
    print_leaderboard(output_console(), [row for row in summarise(shown).leaderboard if row.definition in ran])
    print_problems(trace_set.problems)
    print_skipped(errors, result.skipped)
    return result


def _in_memory(trace_set: TraceSet, result: RunResult) -> TraceSet:
    """The traces of a run as a data set of their own."""
    names = dict.fromkeys(trace.definition for trace in result.traces)
    return TraceSet(
        None,
        {name: trace_set.definitions[name] for name in names},
        {name: trace_set.solutions[name] for name in names},
        traces={name: [trace for trace in result.traces if trace.definition == name] for name in names},
    )


def _loaded(paths: Sequence[str]) -> TraceSet:
    """Data sets merged in memory; their problems are printed."""
    sets = [TraceSet.from_path(path) for path in paths]
    merged = sets[0] if len(sets) == 1 else merge_tracesets(sets)
    for trace_set in sets:
        print_problems(trace_set.all_problems())
    return merged


def summary(args: argparse.Namespace) -> int:
    """Print totals, the leaderboard and the ranking of authors."""
    print_summary(output_console(), summarise(_loaded(args.local)))
    return 0


def best(args: argparse.Namespace) -> int:
    """Print the fastest passing solution of each workload."""
    rows = best_of(_loaded(args.local), allow_flags=(CPU_TIMING,))  # the table labels these rows
    if rows:
        print_best(output_console(), rows)
    else:
        error_console().print("no passing trace yet; run 'fib-compat run' first", style="yellow")
    return 0


def visualize(args: argparse.Namespace) -> int:
    """Print a table for each definition, with its solutions from best to worst."""
    print_leaderboard(output_console(), summarise(_loaded(args.local)).leaderboard)
    return 0


def merge(args: argparse.Namespace) -> int:
    """Write the data sets, tensors included, into a new one."""
    report = merge_folders(args.local, args.output)
    print_merge(output_console(), report)
    return 0 if report.is_ok else 1


def _validate(args: argparse.Namespace) -> int:
    from .validation import validate

    return validate(args)


def _render(args: argparse.Namespace) -> int:
    from ..names.dataset_report import render_report

    text = render_report(args.report, args.output)
    if args.output is None:
        print(text, end="")
    return 0


def _enable(args: argparse.Namespace) -> int:
    from ..activation import enable

    del args
    print(enable())
    return 0


def _disable(args: argparse.Namespace) -> int:
    from ..activation import disable

    del args
    print(disable())
    return 0


def _migrate(args: argparse.Namespace) -> int:
    from ..migration.command import migrate

    return migrate(args.paths, is_check=args.check, shows_diff=args.diff)


def _serve(args: argparse.Namespace) -> int:
    from .serving import serve

    return serve(args)


_COMMANDS = {
    "run": run,
    "report summary": summary,
    "report best": best,
    "report visualize": visualize,
    "report merge": merge,
    "validate": _validate,
    "validate-render": _render,
    "enable": _enable,
    "disable": _disable,
    "migrate-imports": _migrate,
    "serve": _serve,
}
