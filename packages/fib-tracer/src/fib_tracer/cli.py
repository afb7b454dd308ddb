"""Command line of ``fib-tracer``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from fib_schema.command import run_command
from fib_schema.command_parser import CommandParser

from . import commands
from .dumps.importing import MAX_CALL_BYTES

_DESCRIPTION = """\
Workloads of a data set: import FlashInfer's dumps, show statistics, remove duplicates, sample.

Live traffic is recorded inside the engine (FIB_ENABLE_TRACING=1, or fib_tracer.enable_tracing).
Exit codes: 0; 1 if data is damaged, refused or missing; 2 if the command cannot run, or cannot read or
write a file; 130 after an interrupt; 141 if the reader of the output has ended."""

_IMPORT = """\
Import FlashInfer's dumps into a data set:

  - definitions that FLASHINFER_TRACE_DUMP=1 writes: they are converted and added; the set's own
    definitions are kept, and a different one of the same name is reported
  - calls that FLASHINFER_LOGLEVEL=10 writes below FLASHINFER_DUMP_DIR: they become workloads of the set's
    definitions, filtered by the same policies as live traffic

Calls need a reader, which maps them to definitions: fib-integrations has the one for FlashInfer. Calls that
no definition describes are counted by function and reason. Nothing in a dump is executed."""

_IMPORT_EXAMPLES = """\
examples:
  fib-tracer import flashinfer_dumps DATASET
                                       every call once, with the values of its integer tensors
  fib-tracer import flashinfer_dumps DATASET --dump all
                                       with all values: exact, as large as the dump
  fib-tracer import flashinfer_dumps DATASET --dump int sm_scale q
                                       with the integer tensors, and the values of two inputs
  fib-tracer import flashinfer_dumps DATASET --config tracing.yaml
                                       by the settings of an engine (FIB_TRACING_CONFIG)
  fib-tracer import flashinfer_dumps DATASET --drafts --json | jq '.calls'
                                       and a draft of each definition that is missing"""

_STATS = """\
Show statistics of a data set's workloads: their number by definition, the sizes of their variable axes,
how inputs are given, and the files of tensors, with missing and orphaned ones."""

_STATS_EXAMPLES = """\
examples:
  fib-tracer stats DATASET
  fib-tracer stats DATASET --definitions gemm_n4096_k4096 rmsnorm_h4096
  fib-tracer stats DATASET --json | jq -r '.without_workloads[]'"""

_DEDUP = """\
Remove duplicates: all but the first of workloads with equal axes, scalars and bytes of tensors, whatever
their uuids. Workloads that traces refer to are kept. Files of tensors that no line names any more are
removed. Engines may trace into the set meanwhile; do not run a benchmark on it."""

_DEDUP_EXAMPLES = """\
examples:
  fib-tracer dedup DATASET --dry-run
  fib-tracer dedup DATASET
  fib-tracer dedup DATASET --orphans   also files of tensors that nothing names, such as
                                       those of an engine that was killed"""

_SAMPLE = """\
Make a smaller data set: definitions, some of their workloads, and the files of their tensors, byte for
byte; then validate it. Workloads are chosen separately for each definition."""

_SAMPLE_EXAMPLES = """\
examples:
  fib-tracer sample DATASET --output small -k 5
  fib-tracer sample DATASET --output small --per-axes 1
                                       one of each combination of sizes
  fib-tracer sample DATASET --output small --attention 2
                                       two of each average sequence length
  fib-tracer sample DATASET --output small --random 20 --seed 7 --definitions gemm_n4096_k4096"""

_POLICIES = """\
List the policies that settings can name: which inputs are stored with their values, and which calls are
kept. Other packages add policies as entry points of the groups fib_tracer.input_dump_policies and
fib_tracer.filter_policies."""

_POLICIES_EXAMPLES = """\
examples:
  fib-tracer policies
  fib-tracer policies --json | jq '.filter_policy | keys'"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 1 if data is damaged or missing, 2 if the command cannot run."""
    return run_command("fib-tracer", lambda: _run(arguments))


def _run(arguments: Sequence[str] | None) -> int:
    options = _parser().parse_args(arguments)
    code: int = options.run(options)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="fib-tracer", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_import(subparsers)
    _add_stats(subparsers)
    _add_dedup(subparsers)
    _add_sample(subparsers)
    _add_policies(subparsers)
    return parser


def _add_command(
    subparsers: argparse._SubParsersAction[CommandParser], name: str, summary: str, texts: tuple[str, str]
) -> argparse.ArgumentParser:
    command = subparsers.add_parser(
        name,
        help=summary,
        description=texts[0],
        epilog=texts[1],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("--json", action="store_true", help="print JSON, and nothing else, to stdout")
    return command


def _add_dataset(command: argparse.ArgumentParser) -> None:
    command.add_argument("dataset", type=Path, metavar="DATASET", help="the folder of the data set")


def _add_definitions(command: argparse.ArgumentParser) -> None:
    command.add_argument("--definitions", nargs="+", metavar="NAME", help="only these")


def _add_import(subparsers: argparse._SubParsersAction[CommandParser]) -> None:
    command = _add_command(subparsers, "import", "import FlashInfer's dumps", (_IMPORT, _IMPORT_EXAMPLES))
    command.add_argument("source", type=Path, metavar="SOURCE", help="a folder with dumps at any depth, or one file")
    _add_dataset(command)
    policies = command.add_mutually_exclusive_group()
    policies.add_argument("--config", type=Path, metavar="YAML", help="settings, as for live traffic")
    policies.add_argument(
        "--dump", nargs="+", metavar="WHAT", help="values to store: all, none, int, or names of inputs (default: int)"
    )
    command.add_argument("--drafts", action="store_true", help="write drafts of definitions that the set lacks")
    command.add_argument(
        "--max-mib",
        type=int,
        default=MAX_CALL_BYTES >> 20,
        metavar="N",
        help=f"skip calls with more MiB of tensors (default: {MAX_CALL_BYTES >> 20})",
    )
    command.set_defaults(run=commands.import_)


def _add_stats(subparsers: argparse._SubParsersAction[CommandParser]) -> None:
    command = _add_command(subparsers, "stats", "show statistics of workloads", (_STATS, _STATS_EXAMPLES))
    _add_dataset(command)
    _add_definitions(command)
    command.set_defaults(run=commands.stats)


def _add_dedup(subparsers: argparse._SubParsersAction[CommandParser]) -> None:
    command = _add_command(subparsers, "dedup", "remove duplicate workloads", (_DEDUP, _DEDUP_EXAMPLES))
    _add_dataset(command)
    command.add_argument("--dry-run", action="store_true", help="only show what would be removed")
    command.add_argument("--orphans", action="store_true", help="also remove files of tensors that nothing names")
    command.set_defaults(run=commands.dedup)


def _add_sample(subparsers: argparse._SubParsersAction[CommandParser]) -> None:
    command = _add_command(subparsers, "sample", "make a smaller data set", (_SAMPLE, _SAMPLE_EXAMPLES))
    _add_dataset(command)
    command.add_argument("--output", type=Path, required=True, metavar="OTHER", help="a folder that is new or empty")
    how = command.add_mutually_exclusive_group(required=True)
    how.add_argument("-k", dest="first", type=_positive, metavar="N", help="the first N")
    how.add_argument("--per-axes", type=_positive, metavar="K", help="the first K of each combination of sizes")
    how.add_argument("--attention", type=_positive, metavar="K", help="the first K of each average sequence length")
    how.add_argument("--random", type=_positive, metavar="N", help="N at random")
    command.add_argument("--seed", type=int, default=0, help="of the random choice (default: 0)")
    _add_definitions(command)
    command.set_defaults(run=commands.sample)


def _add_policies(subparsers: argparse._SubParsersAction[CommandParser]) -> None:
    command = _add_command(subparsers, "policies", "list the policies", (_POLICIES, _POLICIES_EXAMPLES))
    command.set_defaults(run=commands.policies)


def _positive(text: str) -> int:
    """A whole number from 1 on."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 on, got {text!r}")
    return int(text)
