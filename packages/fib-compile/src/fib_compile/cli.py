"""Command line of fib-compile."""

from __future__ import annotations

import argparse
import itertools
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeAlias

from fib_schema import Definition, FibError, Severity, Solution, TraceSet, UnknownName
from fib_schema.command import FAILED, CommandParser, run_command
from fib_schema.data_files import missing_data
from fib_schema.display import counted

from ._plan import ARCH_VARIABLE, InvalidArch, parse_architectures
from .builder import Limits
from .cache import FAILURES, LOGS, cache_root, discard
from .errors import check_limit
from .registry import BuilderRegistry, BuildOutcome, BuildState

_DAY_SECONDS = 24 * 3600.0

_DESCRIPTION = """\
Build the solutions of a data set ahead of time, and manage the build cache.

fib-bench, fib-apply and programs find what is built by its content. The cache is below FIB_CACHE_PATH and may
be deleted at any time. Exit codes: 0; 1 if a solution does not build or its file is bad; 2 if the command
is wrong, or cannot read or write a file; 130 after an interrupt; 141 if the reader of the output has ended."""

_BUILD = """\
Compile all C++ and CUDA solutions of a data set into the cache. Nothing is loaded, no code of a solution runs,
and no GPU is needed. Solutions in Python and in languages embedded in it are skipped, because they compile
when they are imported or called. Cached libraries are not built again. Failures are recorded and not repeated with the
same compiler (see: cache prune --failures)."""

_BUILD_EXAMPLES = """\
examples:
  fib-compile build DATASET
  fib-compile build DATASET -j 8 --definitions rmsnorm_h4096 gemm_n4096_k4096
  fib-compile build DATASET --arch '9.0a 10.0a'     for H200 and B200, on a machine without either
  FIB_CACHE_PATH=/shared/cache fib-compile build DATASET
                                       for machines without a compiler, which set FIB_CACHE_ONLY=1"""

_CACHE = "Show the size of the build cache by builder, or remove what is not needed any more."

_PRUNE = """\
Remove what interrupted and failed builds left: temporary folders of a day ago, logs and recorded failures. Libraries
stay, unless --all is given. Removed entries are built again when they are needed."""

_PRUNE_EXAMPLES = """\
examples:
  fib-compile cache prune
  fib-compile cache prune --failures                after a compiler was repaired
  fib-compile cache prune --all"""

_Form = argparse.RawDescriptionHelpFormatter
_Commands: TypeAlias = "argparse._SubParsersAction[CommandParser]"  # noqa: SLF001 - argparse has no public name for it


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 1 if a solution does not build or cannot be read, 2 if it is wrong."""
    return run_command("fib-compile", lambda: _run(arguments))


def _run(arguments: Sequence[str] | None) -> int:
    options = _parser().parse_args(arguments)
    try:
        code: int = options.run(options)
    except InvalidArch as error:
        print(f"fib-compile: {error}", file=sys.stderr)
        return FAILED
    return code


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(prog="fib-compile", description=_DESCRIPTION, formatter_class=_Form)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_build(commands)
    parent = commands.add_parser("cache", help="measure or prune the build cache", description=_CACHE)
    cache = parent.add_subparsers(required=True, metavar="COMMAND")
    cache.add_parser("size", help="show the size of the cache by builder").set_defaults(run=_size)
    prune = _add(cache, "prune", "remove temporary folders, logs and recorded failures", _PRUNE, _PRUNE_EXAMPLES)
    prune.add_argument("--all", action="store_true", help="remove all entries")
    prune.add_argument(
        "--failures", action="store_true", help="remove recorded failures only, so that they are built again"
    )
    prune.set_defaults(run=_prune)
    return parser


def _add_build(commands: _Commands) -> None:
    command = _add(commands, "build", "compile the solutions of a data set into the cache", _BUILD, _BUILD_EXAMPLES)
    add = command.add_argument
    add("dataset", type=Path, metavar="DATASET", help="folder of the data set")
    add("-j", "--jobs", type=int, help="number of concurrent builds (default: all cores)")
    add("--definitions", nargs="+", metavar="NAME", help="only solutions of these definitions")
    add("--solutions", nargs="+", metavar="NAME", help="only these solutions")
    arch = f"CUDA architectures, such as '9.0a 10.0a' (default: {ARCH_VARIABLE}, or this machine's)"
    add("--arch", help=arch)
    add("--timeout", type=float, default=600, metavar="SECONDS", help="limit of each compiler command (default: 600)")
    add("--memory", type=float, metavar="GIB", help="limit of each compiler process (default: unlimited)")
    command.set_defaults(run=_build)


def _add(commands: _Commands, name: str, summary: str, description: str, examples: str) -> argparse.ArgumentParser:
    return commands.add_parser(name, help=summary, description=description, epilog=examples, formatter_class=_Form)


def _build(options: argparse.Namespace) -> int:
    if options.arch:
        os.environ[ARCH_VARIABLE] = ",".join(parse_architectures(options.arch))
    trace_set = TraceSet.from_path(options.dataset)
    pairs, bad = _selected(trace_set, options.definitions, options.solutions)
    if not (options.definitions or options.solutions):
        list(trace_set.solutions.values())  # reads also those of definitions that the set lacks
        errors = [str(problem) for problem in trace_set.problems if problem.severity is Severity.ERROR]
        bad += [error for error in errors if not any(error in text for text in bad)]
    if not trace_set.definition_names():
        bad.append(str(missing_data(str(options.dataset))))
    check_limit("memory", options.memory)
    memory = None if options.memory in (None, math.inf) else int(options.memory * 2**30)
    outcomes = BuilderRegistry.get_instance().build_many(
        pairs, jobs=options.jobs, limits=Limits(options.timeout, memory), on_done=_shows_progress(len(pairs))
    )
    return _summarise(outcomes, list(dict.fromkeys(bad)))


def _selected(
    trace_set: TraceSet, definitions: Sequence[str] | None, solutions: Sequence[str] | None
) -> tuple[list[tuple[Definition, Solution]], list[str]]:
    """The solutions to build, and the problems of records that cannot be read."""
    for name in definitions or ():
        if name not in trace_set.definition_names():
            raise UnknownName("definition", name, trace_set.definition_names())
    wanted = {name: trace_set.solution_names(name) for name in definitions or trace_set.definition_names()}
    known = tuple(name for names in wanted.values() for name in names)
    if solutions is not None:  # a bad file of another definition does not matter
        wanted = {name: names for name, names in wanted.items() if not {*names}.isdisjoint(solutions)}
    for name in solutions or ():
        if name not in known:
            raise UnknownName("solution", name, known)
    pairs: list[tuple[Definition, Solution]] = []
    bad: list[str] = []
    for definition_name, names in wanted.items():
        try:
            definition = trace_set.get_definition(definition_name)
        except (FibError, OSError) as error:
            bad.append(str(error))
            continue
        for name in names if solutions is None else [name for name in names if name in solutions]:
            try:
                solution = trace_set.get_solution(name)
            except (FibError, OSError) as error:
                bad.append(str(error))
                continue
            if solution is not None:
                pairs.append((definition, solution))
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


def _size(_options: argparse.Namespace) -> int:
    folders = _children(cache_root())
    for folder in folders:
        print(f"{_total([folder]):>10}  {folder.name}")
    print(f"{_total(folders):>10}  {cache_root()}")
    return 0


def _prune(options: argparse.Namespace) -> int:
    root = cache_root()
    paths = _children(root)
    if not options.all:
        paths = list(root.glob(f"*/{FAILURES}/*"))
        paths += [] if options.failures else [*root.glob(f"*/{LOGS}/*"), *filter(_is_left, root.glob("*/.*"))]
    removed = f"removed {counted(len(paths), 'entry', 'entries')}, {_total(paths)}"
    for path in paths:
        discard(path)
    print(removed)
    return 0


def _is_left(temporary: Path) -> bool:
    """Whether a temporary folder is so old that no running build writes it."""
    return time.time() - temporary.stat().st_mtime >= _DAY_SECONDS


def _children(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:
        return []


def _total(paths: Iterable[Path]) -> str:
    """The size of all files of some paths."""
    files = [file for path in paths for file in (path, *path.rglob("*")) if file.is_file()]
    size = float(sum(file.stat().st_size for file in files))
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
