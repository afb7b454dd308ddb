"""The ``fib-compile`` command."""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from fib_schema import Definition, FibError, Solution, TraceSet, UnknownName

from ._cuda import ARCH_VARIABLE, InvalidArch, parse_architectures
from .ahead import BuildOutcome, BuildState
from .builder import Limits
from .errors import check_limit
from .inventory import CacheEntry, EntryKind, cache_entries, cache_root, prune
from .registry import BuilderRegistry

_DAY_SECONDS = 24 * 3600.0

_DESCRIPTION = """\
Build the solutions of a data set ahead of time, and look after the cache.

What is built is found again by its content, whoever asks for it: fib-bench, fib-apply or a program. The
cache is below FIB_CACHE_PATH and may be deleted at any time. Exit codes: 0, 1 where a solution does not
build, 2 where the command is wrong."""

_BUILD = """\
Compile all C++ and CUDA solutions of a data set into the cache. Nothing is loaded, no solution code runs,
and no GPU is needed. Python, Triton and TileLang compile when they are imported or called: nothing can be
done ahead for them. What is in the cache already is not built again; what failed is remembered, and not
tried again with the same compiler (see: cache prune --failures)."""

_BUILD_EXAMPLES = """\
examples:
  fib-compile build DATASET
  fib-compile build DATASET -j 8 --definitions rmsnorm_h4096 gemm_n4096_k4096
  fib-compile build DATASET --arch '9.0a 10.0a'     for H200 and B200, on a machine without either
  FIB_CACHE_PATH=/shared/cache fib-compile build DATASET
                                       for machines that have no compiler: they set FIB_CACHE_ONLY=1"""

_CACHE = "Look at what is in the cache, and remove what is not needed any more."

_PRUNE = """\
Remove what interrupted and failed builds have left: temporary folders, logs, and the memory of failures.
Libraries stay, unless --all or --older-than says otherwise; whatever is removed is built again when needed."""

_PRUNE_EXAMPLES = """\
examples:
  fib-compile cache prune
  fib-compile cache prune --failures                after a compiler was mended
  fib-compile cache prune --older-than 30"""

_Form = argparse.RawDescriptionHelpFormatter


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 1 where something failed, 2 where the call is wrong."""
    options = _parser().parse_args(arguments)
    try:
        code: int = options.run(options)
    except (FibError, InvalidArch, OSError) as error:
        print(f"fib-compile: {error}", file=sys.stderr)
        return 2
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fib-compile", description=_DESCRIPTION, formatter_class=_Form)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_build(commands)
    parent = commands.add_parser("cache", help="what is in the cache", description=_CACHE)
    cache = parent.add_subparsers(required=True, metavar="COMMAND")
    listing = cache.add_parser("ls", help="list what is in the cache, the largest first")
    listing.set_defaults(run=_list)
    cache.add_parser("size", help="the size of the cache by builder").set_defaults(run=_size)
    _add_prune(cache)
    return parser


def _add_build(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    said = "compile the solutions of a data set into the cache"
    build = commands.add_parser("build", help=said, description=_BUILD, epilog=_BUILD_EXAMPLES, formatter_class=_Form)
    build.add_argument("dataset", type=Path, metavar="DATASET", help="the folder of the data set")
    build.add_argument("-j", "--jobs", type=int, help="how many at once (default: all cores)")
    build.add_argument("--definitions", nargs="+", metavar="NAME", help="only solutions of these definitions")
    build.add_argument("--solutions", nargs="+", metavar="NAME", help="only these solutions")
    build.add_argument(
        "--arch", help=f"CUDA architectures, such as '9.0a 10.0a' (default: {ARCH_VARIABLE}, or this machine's)"
    )
    build.add_argument(
        "--timeout", type=float, default=600, metavar="SECONDS", help="for each compiler command (default: 600)"
    )
    build.add_argument("--memory", type=float, metavar="GIB", help="for each compiler process (default: unlimited)")
    build.set_defaults(run=_build)


def _add_prune(cache: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    said = "remove what is left over: temporary folders, logs and known failures"
    command = cache.add_parser("prune", help=said, description=_PRUNE, epilog=_PRUNE_EXAMPLES, formatter_class=_Form)
    command.add_argument("--all", action="store_true", help="everything")
    command.add_argument("--failures", action="store_true", help="only known failures, so that they are tried again")
    command.add_argument("--older-than", type=float, metavar="DAYS", help="everything that has not changed for so long")
    command.set_defaults(run=_prune)


def _build(options: argparse.Namespace) -> int:
    if options.arch:
        os.environ[ARCH_VARIABLE] = ",".join(parse_architectures(options.arch))
    pairs = _selected(TraceSet.from_path(options.dataset), options.definitions, options.solutions)
    check_limit("memory", options.memory)
    memory = None if options.memory in (None, math.inf) else int(options.memory * 2**30)
    progress = _Progress(len(pairs))
    outcomes = BuilderRegistry.get_instance().build_many(
        pairs, jobs=options.jobs, limits=Limits(options.timeout, memory), on_done=progress.show
    )
    progress.finish()
    return _summarise(outcomes)


def _selected(
    trace_set: TraceSet, definitions: Sequence[str] | None, solutions: Sequence[str] | None
) -> list[tuple[Definition, Solution]]:
    for name in definitions or ():
        if name not in trace_set.definitions:
            raise UnknownName("definition", name, tuple(trace_set.definitions))
    wanted = definitions or tuple(trace_set.definitions)
    pairs = [(trace_set.definitions[name], one) for name in wanted for one in trace_set.solutions.get(name, ())]
    names = {solution.name for _, solution in pairs}
    for name in solutions or ():
        if name not in names:
            raise UnknownName("solution", name, tuple(names))
    return [pair for pair in pairs if solutions is None or pair[1].name in solutions]


class _Progress:
    """One line that is written again on a terminal; a line for each solution in a log."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._failed = 0
        self._start = time.monotonic()
        self._is_terminal = sys.stderr.isatty()

    def show(self, outcome: BuildOutcome) -> None:
        self._done += 1
        self._failed += outcome.state is BuildState.FAILED
        if not self._is_terminal:
            text = f"[{self._done}/{self._total}] {outcome.state} {outcome.solution.name} {outcome.seconds:.1f} s"
            print(text, file=sys.stderr, flush=True)
            return
        left = (time.monotonic() - self._start) / self._done * (self._total - self._done)
        filled = 30 * self._done // self._total
        bar = "#" * filled + "." * (30 - filled)
        text = f"\r[{bar}] {self._done}/{self._total}, {self._failed} failed, {left:.0f} s left\x1b[K"
        print(text, end="", file=sys.stderr, flush=True)

    def finish(self) -> None:
        if self._is_terminal:
            print(file=sys.stderr)


def _summarise(outcomes: Sequence[BuildOutcome]) -> int:
    counts = {state: sum(outcome.state is state for outcome in outcomes) for state in BuildState}
    print(", ".join(f"{count} {state}" for state, count in counts.items()))
    for outcome in outcomes:
        if outcome.error is not None:
            print(f"\n{outcome.error}")
    return 1 if counts[BuildState.FAILED] else 0


def _list(_options: argparse.Namespace) -> int:
    for entry in cache_entries():
        day = time.strftime("%Y-%m-%d", time.localtime(entry.modified))
        name = entry.solution or ""
        path = entry.path.relative_to(cache_root())
        print(f"{_size_text(entry.size_bytes):>10}  {day}  {entry.builder:<10} {entry.kind:<10} {path} {name}".rstrip())
    return 0


def _size(_options: argparse.Namespace) -> int:
    entries = cache_entries()
    for builder in sorted({entry.builder for entry in entries}):
        own = [entry for entry in entries if entry.builder == builder]
        print(f"{_total(own):>10}  {builder} ({len(own)} entries)")
    print(f"{_total(entries):>10}  {cache_root()}")
    return 0


def _prune(options: argparse.Namespace) -> int:
    kinds: Iterable[EntryKind] | None = (EntryKind.TEMPORARY, EntryKind.LOG, EntryKind.FAILURE)
    if options.failures:
        kinds = (EntryKind.FAILURE,)
    elif options.all or options.older_than is not None:
        kinds = None
    older = None if options.older_than is None else options.older_than * _DAY_SECONDS
    removed = prune(cache_entries(), older_than_seconds=older, kinds=kinds)
    print(f"removed {len(removed)} entries, {_total(removed)}")
    return 0


def _total(entries: Iterable[CacheEntry]) -> str:
    return _size_text(sum(entry.size_bytes for entry in entries))


def _size_text(size_bytes: int) -> str:
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
