"""The ``fib-tracer`` command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fib_schema import FibError

from . import commands as doing
from .dumps.importing import MOST_BYTES

_DESCRIPTION = """\
Workloads of a data set: read what FlashInfer has dumped, look at what there is, thin it out.

Live traffic is collected within the engine (FIB_ENABLE_TRACING=1, or fib_tracer.enable_tracing).
Exit codes: 0, 1 where something was damaged, refused or is missing, 2 where the command is wrong."""

_IMPORT = """\
Read what FlashInfer has dumped into a data set:

  - definitions that FLASHINFER_TRACE_DUMP=1 writes: they are added in the current form; one that the set
    has already is skipped, and another one of the same name is reported and changes nothing
  - calls that FLASHINFER_LOGLEVEL=10 writes below FLASHINFER_DUMP_DIR: they become workloads of the set's
    definitions, by the policies that live traffic goes through

Calls need a reader, which tells what they compute: fib-integrations has the one for FlashInfer. Calls that
no definition describes are counted by function and reason. Nothing in a dump is run."""

_IMPORT_EXAMPLES = """\
examples:
  fib-tracer import flashinfer_dumps DATASET
                                       every call once, with the values of its integer tensors
  fib-tracer import flashinfer_dumps DATASET --dump all
                                       with all values: exact, and as large as the dump
  fib-tracer import flashinfer_dumps DATASET --dump int sm_scale q
                                       with the integer tensors, and the values of two inputs
  fib-tracer import flashinfer_dumps DATASET --config tracing.yaml
                                       by the settings of an engine (FIB_TRACING_CONFIG)
  fib-tracer import flashinfer_dumps DATASET --drafts --json | jq '.calls'
                                       and a draft of each definition that is missing"""

_STATS = """\
Show what the workloads of a data set cover: how many there are for each definition, the sizes of their
variable axes, how inputs are given, and the files of tensors, with those that are missing or left over."""

_STATS_EXAMPLES = """\
examples:
  fib-tracer stats DATASET
  fib-tracer stats DATASET --definitions gemm_n4096_k4096 rmsnorm_h4096
  fib-tracer stats DATASET --json | jq -r '.without_workloads[]'"""

_DEDUP = """\
Reduce equal workloads (axes, scalars and the bytes of tensors, whatever their uuids) to the first one.
What traces refer to stays in any case. Files of tensors go when no line names them any more. Engines may
go on tracing into the set; a benchmark should not be running on it."""

_DEDUP_EXAMPLES = """\
examples:
  fib-tracer dedup DATASET --dry-run
  fib-tracer dedup DATASET
  fib-tracer dedup DATASET --orphans   and files of tensors that nothing names, such as those that an
                                       engine left that was killed"""

_SAMPLE = """\
Make a smaller data set of definitions, some of their workloads, and the tensors of these byte for byte;
then validate it. Workloads are chosen for each definition by itself."""

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
kept. Other packages add theirs by the entry-point groups fib_tracer.input_dump_policies and
fib_tracer.filter_policies."""

_POLICIES_EXAMPLES = """\
examples:
  fib-tracer policies
  fib-tracer policies --json | jq '.filter_policy | keys'"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 1 where something is wrong with the data, 2 with the call."""
    options = _parser().parse_args(arguments)
    try:
        code: int = options.run(options)
    except (FibError, OSError) as error:
        print(f"fib-tracer: {error}", file=sys.stderr)
        return 2
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fib-tracer", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_import(commands)
    _add_stats(commands)
    _add_dedup(commands)
    _add_sample(commands)
    _add_policies(commands)
    return parser


def _add_command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, summary: str, texts: tuple[str, str]
) -> argparse.ArgumentParser:
    command = commands.add_parser(
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


def _add_import(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = _add_command(commands, "import", "read what FlashInfer has dumped", (_IMPORT, _IMPORT_EXAMPLES))
    command.add_argument("source", type=Path, metavar="SOURCE", help="a folder with dumps at any depth, or one file")
    _add_dataset(command)
    policies = command.add_mutually_exclusive_group()
    policies.add_argument("--config", type=Path, metavar="YAML", help="settings, as for live traffic")
    policies.add_argument(
        "--dump", nargs="+", metavar="WHAT", help="values to store: all, none, int, or names of inputs (default: int)"
    )
    command.add_argument("--drafts", action="store_true", help="make drafts of definitions that the set lacks")
    command.add_argument(
        "--max-mib",
        type=int,
        default=MOST_BYTES >> 20,
        metavar="N",
        help=f"do not read a call with more tensors (default: {MOST_BYTES >> 20})",
    )
    command.set_defaults(run=doing.import_)


def _add_stats(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = _add_command(commands, "stats", "what the workloads cover", (_STATS, _STATS_EXAMPLES))
    _add_dataset(command)
    _add_definitions(command)
    command.set_defaults(run=doing.stats)


def _add_dedup(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = _add_command(commands, "dedup", "remove equal workloads", (_DEDUP, _DEDUP_EXAMPLES))
    _add_dataset(command)
    command.add_argument("--dry-run", action="store_true", help="change nothing, and say what would be removed")
    command.add_argument("--orphans", action="store_true", help="remove files of tensors that nothing names, too")
    command.set_defaults(run=doing.dedup)


def _add_sample(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = _add_command(commands, "sample", "make a smaller data set", (_SAMPLE, _SAMPLE_EXAMPLES))
    _add_dataset(command)
    command.add_argument("--output", type=Path, required=True, metavar="OTHER", help="a folder that is new or empty")
    how = command.add_mutually_exclusive_group(required=True)
    how.add_argument("-k", dest="first", type=int, metavar="N", help="the first N")
    how.add_argument("--per-axes", type=int, metavar="K", help="the first K of each combination of sizes")
    how.add_argument("--attention", type=int, metavar="K", help="the first K of each average sequence length")
    how.add_argument("--random", type=int, metavar="N", help="N at random")
    command.add_argument("--seed", type=int, default=0, help="of the random choice (default: 0)")
    _add_definitions(command)
    command.set_defaults(run=doing.sample)


def _add_policies(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = _add_command(commands, "policies", "the policies there are", (_POLICIES, _POLICIES_EXAMPLES))
    command.set_defaults(run=doing.policies)
