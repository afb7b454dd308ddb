"""The ``fib-apply`` command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import attrs
from fib_schema import FibError

from . import commands as doing
from .config import ApplyConfig, OnMiss
from .errors import InvalidSetting

_DESCRIPTION = """\
Which solution serves which call, by the traces of a data set.

All commands read the same table that `fib_apply.enable_apply` reads, and keep it below FIB_CACHE_PATH:
what they say is what an engine with the same settings does. Exit codes: 0, 1 where a chosen solution
cannot be used, 2 where the command is wrong."""

_EXPLAIN = """\
Say which solution serves a definition's calls, why, what would be next, and what was left out for what
reason. Without --axes, for all keys for which something is recorded; with some of the axes, for the
keys of these sizes; with all of them, also for a key that is not recorded, by --on-miss."""

_EXPLAIN_EXAMPLES = """\
examples:
  fib-apply explain DATASET --definition gemm_n4096_k4096
  fib-apply explain DATASET --definition gemm_n4096_k4096 --axes M=64
  fib-apply explain DATASET --definition gemm_n4096_k4096 --axes M=60 --nearest M=1.5
                                       what M=60 gets if the size may differ by a factor of 1.5
  fib-apply explain DATASET --definition gemm_n4096_k4096 --baseline engine_gemm --margin 0.05
                                       what is left of it beside the engine's own kernel
  fib-apply explain DATASET --definition gemm_n4096_k4096 --hardware 'NVIDIA H200' --json
                                       from a machine without that device
  fib-apply explain DATASET --definition gemm_n4096_k4096 --source
                                       and the code that a call goes through"""

_TABLE = """\
List the solution that is chosen for each definition and key, with its latency, the runner-up, and the
number of candidates; below it, counts. What is wrong with the data set goes to stderr."""

_TABLE_EXAMPLES = """\
examples:
  fib-apply table DATASET
  fib-apply table DATASET --hardware 'NVIDIA H200'
  fib-apply table DATASET --json | jq '.keys[] | select(.solution == null)'
                                       where the fallback serves"""

_WARM = """\
Make the table, then compile, probe and load every solution that is chosen for the hardware of this
machine, so that an engine finds all of it in the caches. Solutions are probed in a process of their
own: one that crashes or hangs is left out there and here. Progress goes to stderr. Kernels in Triton
and TileLang compile when they are first called, which is not done here."""

_WARM_EXAMPLES = """\
examples:
  fib-apply warm DATASET
  fib-apply warm DATASET --definitions gemm_n4096_k4096 rmsnorm_h4096 -j 8
  fib-apply warm DATASET && python -m engine      where every chosen solution must be usable"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 1 where a solution cannot be used, 2 where the call is wrong."""
    options = _parser().parse_args(arguments)
    try:
        options.config = _config(options)
        code: int = options.run(options)
    except (FibError, OSError) as error:
        return _refused(str(error))
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return _refused("this needs torch, which is not installed; without it pass --hardware, and no --source")
    return code


def _refused(problem: str) -> int:
    print(f"fib-apply: {problem}", file=sys.stderr)
    return 2


# -- options -----------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fib-apply", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_explain(commands)
    _add_table(commands)
    _add_warm(commands)
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
    command.add_argument("dataset", type=Path, metavar="DATASET", help="the folder of the data set")
    command.add_argument("--json", action="store_true", help="print JSON, and nothing else, to stdout")
    return command


def _add_explain(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = _add_command(commands, "explain", "which solution serves a call, and why", (_EXPLAIN, _EXPLAIN_EXAMPLES))
    command.add_argument("--definition", required=True, metavar="NAME", help="whose calls")
    command.add_argument(
        "--axes", nargs="+", action="extend", default=[], metavar="AXIS=SIZE", help="sizes of its variable axes"
    )
    command.add_argument("--source", action="store_true", help="print the generated route, too; needs torch")
    _add_hardware(command)
    settings = _add_settings(command)
    policies = ", ".join(OnMiss)
    settings.add_argument("--on-miss", dest="on_miss_policy", metavar="POLICY", help=f"one of {policies}")
    settings.add_argument(
        "--nearest",
        nargs="+",
        metavar="AXIS=FACTOR",
        help="axes that may differ from what was recorded, and by how much; implies --on-miss nearest",
    )
    command.set_defaults(run=doing.explain)


def _add_table(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = _add_command(commands, "table", "what is chosen for each definition and key", (_TABLE, _TABLE_EXAMPLES))
    _add_hardware(command)
    _add_settings(command)
    command.set_defaults(run=doing.table)


def _add_warm(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = _add_command(commands, "warm", "fill the caches with what is chosen here", (_WARM, _WARM_EXAMPLES))
    command.add_argument("--definitions", nargs="+", metavar="NAME", help="only what is chosen for these definitions")
    command.add_argument("-j", "--jobs", type=int, help="how many to compile at once (default: all cores)")
    _add_settings(command)
    command.set_defaults(run=doing.warm)


def _add_hardware(command: argparse.ArgumentParser) -> None:
    command.add_argument("--hardware", metavar="NAME", help="as traces state it (default: that of this machine)")


def _add_settings(command: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    settings = command.add_argument_group("settings", "as in fib_apply.ApplyConfig: pass what the engine passes")
    settings.add_argument("--max-atol", type=float, metavar="X", help="the largest absolute error that counts")
    settings.add_argument("--max-rtol", type=float, metavar="X", help="the largest relative error that counts")
    settings.add_argument("--baseline", metavar="SOLUTION", help="what is not faster than it is not chosen")
    settings.add_argument(
        "--margin", type=float, metavar="SHARE", help="latencies that differ by less are the same (default: 0.03)"
    )
    settings.add_argument(
        "--other-hardware", nargs="+", metavar="NAME", help="whose traces count where this hardware has none"
    )
    return settings


def _config(options: argparse.Namespace) -> ApplyConfig:
    given = {field.name: getattr(options, field.name, None) for field in attrs.fields(ApplyConfig)}
    if given["nearest"] is not None:
        given["nearest"] = dict(map(_factor, given["nearest"]))
        given["on_miss_policy"] = given["on_miss_policy"] or OnMiss.NEAREST
    return ApplyConfig(**{name: value for name, value in given.items() if value is not None})


def _factor(text: str) -> tuple[str, float]:
    axis, _, factor = text.partition("=")
    try:
        return axis, float(factor)
    except ValueError:
        raise InvalidSetting("--nearest", text, "AXIS=FACTOR, such as M=2") from None
