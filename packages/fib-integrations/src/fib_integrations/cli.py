"""The ``fib-integrations`` command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fib_schema import FibError

from . import commands as doing
from .baselines import AUTHOR

_DESCRIPTION = """\
Adapters between kernel libraries and apply or tracing: what they cover, what of it is patched
here, and solutions that call the library itself. Exit codes: 0, 1 where something could not be
done, 2 where the command is wrong."""

_LIST_EXAMPLES = """\
examples:
  fib-integrations list
  fib-integrations list --json | jq -r '.[] | select(.is_default) | .name'"""

_STATUS = """\
Install the adapters in a process of this command, import the library, and say what became of
each target: installed, absent in this version, or not what the adapter was written for."""

_STATUS_EXAMPLES = """\
examples:
  fib-integrations status
  fib-integrations status --also torch_linear --json"""

_BASELINES = """\
Write, for every definition of a data set that an adapter covers, a solution that calls FlashInfer
itself (with setup() doing plan): the baseline that speedups should be quoted against. A solution
of the same name that is there already stays as it is."""

_BASELINES_EXAMPLES = """\
examples:
  fib-integrations baselines DATASET --dry-run
  fib-integrations baselines DATASET --definitions rmsnorm_h4096 gqa_paged_decode_h32_kv8_d128_ps1
  fib-integrations baselines DATASET --json | jq -r '.uncovered[]'
  fib-bench run DATASET                and then measure them"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    options = _parser().parse_args(arguments)
    try:
        code: int = options.run(options)
    except (FibError, OSError) as error:
        print(f"fib-integrations: {error}", file=sys.stderr)
        return 2
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fib-integrations", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_command(commands, "list", "which adapters there are", "List the adapters.", _LIST_EXAMPLES).set_defaults(
        run=doing.list_adapters
    )
    status = _add_command(commands, "status", "what is patched here", _STATUS, _STATUS_EXAMPLES)
    status.add_argument("--also", nargs="+", default=[], metavar="NAME", help="adapters beside the default ones")
    status.set_defaults(run=doing.status)
    _add_baselines(commands)
    return parser


def _add_command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, summary: str, text: str, examples: str
) -> argparse.ArgumentParser:
    command = commands.add_parser(
        name,
        help=summary,
        description=text,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("--json", action="store_true", help="print JSON, and nothing else, to stdout")
    return command


def _add_baselines(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = _add_command(
        commands, "baselines", "write solutions that call FlashInfer", _BASELINES, _BASELINES_EXAMPLES
    )
    command.add_argument("dataset", type=Path, metavar="DATASET", help="the folder of the data set")
    command.add_argument("--author", default=AUTHOR, help="who they are by (default: %(default)s)")
    command.add_argument("--definitions", nargs="+", default=[], metavar="NAME", help="only for these definitions")
    command.add_argument("--dry-run", action="store_true", help="write nothing")
    command.set_defaults(run=doing.baselines)


if __name__ == "__main__":
    sys.exit(main())
