"""Command line of fib-compile: builds ahead of time."""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from collections.abc import Callable, Sequence

from fib_schema import Definition, FibError, Severity, Solution, TraceSet, UnknownName
from fib_schema.command import CommandParser, add_data_set, data_set_of, run_command
from fib_schema.data_files import missing_data

from ._plan import ARCH_VARIABLE, parse_architectures
from .builder import Limits
from .registry import BuilderRegistry, BuildOutcome, BuildState

_DESCRIPTION = """\
Build the solutions of a data set ahead of time.

fib-bench, fib-apply and programs find what is built by its content. The cache is the folder fib-compile-v2 below
FIB_CACHE_PATH and may be deleted at any time. Exit codes: 0; 1 if a solution does not build or its file is bad; 2 if
the command is wrong, or cannot read or write a file; 130 after an interrupt; 141 if the reader of the output has
ended."""

_BUILD = """\
Compile all C++ and CUDA solutions of a data set into the cache. Nothing is loaded, no code of a solution runs,
and no GPU is needed. Solutions in Python and in languages embedded in it are skipped, because they compile
when they are imported or called. Cached libraries are not built again. Failures are recorded and not repeated with the
same compiler until their files are deleted."""

_BUILD_EXAMPLES = """\
examples:
  fib-compile build DATASET
  fib-compile build DATASET -j 8 --definitions rmsnorm_h4096 gemm_n4096_k4096
  fib-compile build DATASET --arch '9.0a 10.0a'     for H200 and B200, on a machine without either
  FIB_CACHE_PATH=/shared/cache fib-compile build DATASET
                                       for machines without a compiler, which set FIB_CACHE_ONLY=1"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 1 if a solution does not build or cannot be read, 2 if it is wrong."""
    return run_command("fib-compile", lambda: _build(_parser().parse_args(arguments)))


def _parser() -> argparse.ArgumentParser:
    form = argparse.RawDescriptionHelpFormatter
    parser = CommandParser(prog="fib-compile", description=_DESCRIPTION, formatter_class=form)
    summary = "compile the solutions of a data set into the cache"
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    command = commands.add_parser(
        "build", help=summary, description=_BUILD, epilog=_BUILD_EXAMPLES, formatter_class=form
    )
    add = command.add_argument
    add_data_set(command, is_first=True)
    add("-j", "--jobs", type=int, help="number of concurrent builds (default: all cores)")
    add("--definitions", nargs="+", metavar="NAME", help="only solutions of these definitions")
    add("--solutions", nargs="+", metavar="NAME", help="only these solutions")
    arch = f"CUDA architectures, such as '9.0a 10.0a' (default: {ARCH_VARIABLE}, or this machine's)"
    add("--arch", help=arch)
    add("--timeout", type=float, default=600, metavar="SECONDS", help="limit of each compiler command (default: 600)")
    return parser


def _build(options: argparse.Namespace) -> int:
    if options.arch:
        os.environ[ARCH_VARIABLE] = ",".join(parse_architectures(options.arch))
    root = data_set_of(options)
    trace_set = TraceSet.from_path(root)
    pairs, bad = _selected(trace_set, options.definitions, options.solutions)
    if not (options.definitions or options.solutions):
        list(trace_set.solutions.values())  # reads also those of definitions that the set lacks
        errors = [str(problem) for problem in trace_set.problems if problem.severity is Severity.ERROR]
        bad += [error for error in errors if not any(error in text for text in bad)]
    if not trace_set.definition_names():
        bad.append(str(missing_data(str(root))))
    outcomes = BuilderRegistry.get_instance().build_many(
        pairs, jobs=options.jobs, limits=Limits(options.timeout), on_done=_shows_progress(len(pairs))
    )
    return _summarise(outcomes, list(dict.fromkeys(bad)))


def _selected(
    trace_set: TraceSet, definitions: Sequence[str] | None, solutions: Sequence[str] | None
) -> tuple[list[tuple[Definition, Solution]], list[str]]:
    """The solutions to build, and the problems of records that cannot be read."""
    for name in definitions or ():
        if name not in trace_set.definition_names():
            raise UnknownName("definition", name, trace_set.definition_names())
    of_definition = {name: trace_set.solution_names(name) for name in definitions or trace_set.definition_names()}
    known = tuple(name for names in of_definition.values() for name in names)
    for name in solutions or ():
        if name not in known:
            raise UnknownName("solution", name, known)
    pairs: list[tuple[Definition, Solution]] = []
    bad: list[str] = []
    for definition_name, names in of_definition.items():
        wanted = [name for name in names if solutions is None or name in solutions]
        if solutions is not None and not wanted:  # a bad file of another definition does not matter
            continue
        try:
            definition = trace_set.get_definition(definition_name)
        except (FibError, OSError) as error:
            bad.append(str(error))
            continue
        for name in wanted:
            try:
                if (solution := trace_set.get_solution(name)) is not None:
                    pairs.append((definition, solution))
            except (FibError, OSError) as error:
                bad.append(str(error))
    return pairs, bad


def _shows_progress(total: int) -> Callable[[BuildOutcome], None]:
    """A function that prints a line for each solution to stderr."""
    count = itertools.count(1)

    def show(outcome: BuildOutcome) -> None:
        text = f"[{next(count)}/{total}] {outcome.state} {outcome.solution.name} {outcome.seconds:.1f} s"
        print(text, file=sys.stderr, flush=True)

    return show


def _summarise(outcomes: Sequence[BuildOutcome], bad: Sequence[str]) -> int:
    """Print what was built and what was not; returns the exit code."""
    counts = {state: sum(outcome.state is state for outcome in outcomes) for state in BuildState}
    print(", ".join(f"{count} {state}" for state, count in counts.items()))
    for outcome in outcomes:
        if outcome.error is not None:
            print(f"\n{outcome.error}")
    for problem in bad:
        print(f"\nskipped: {problem}")
    return 1 if counts[BuildState.FAILED] or bad else 0
