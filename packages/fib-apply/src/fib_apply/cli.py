"""Command line of ``fib-apply``: parser and entry point."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
from fib_schema.command import FAILED, run_command
from fib_schema.command_parser import CommandParser

from . import commands as implementations
from .config import ApplyConfig, ApplyConfigRegistry, OnMiss
from .configuration import read_config
from .environment import CONFIG_VARIABLE
from .errors import InvalidSetting

_DESCRIPTION = """\
Show and prepare the solutions that serve calls, by the traces of a data set.

All commands read the same cached table as `fib_apply.enable_apply`, so they show what an engine with the same
settings does. Exit codes: 0; 1 if a selected solution is not usable; 2 if the command is invalid, or cannot
read or write a file; 130 after an interrupt; 141 if the reader of the output has ended."""

_EXPLAIN = """\
Show which solution serves a definition's calls and why, the next candidates, and the solutions that are left
out. Without --axes, for all recorded keys; with some axes, for the recorded keys of these sizes; with all axes,
also for a key that is not recorded, by --on-miss."""

_EXPLAIN_EXAMPLES = """\
examples:
  fib-apply explain DATASET --definition gemm_n4096_k4096
  fib-apply explain DATASET --definition gemm_n4096_k4096 --axes M=64
  fib-apply explain DATASET --definition gemm_n4096_k4096 --axes M=60 --nearest M=1.5
                                       M=60, if the size may differ by a factor of 1.5
  fib-apply explain DATASET --definition gemm_n4096_k4096 --baseline engine_gemm --margin 0.05
                                       only solutions faster than the engine's own kernel
  fib-apply explain DATASET --definition gemm_n4096_k4096 --hardware 'NVIDIA H200' --json
                                       on a machine without that device
  fib-apply explain DATASET --definition gemm_n4096_k4096 --source
                                       with the generated code of a call"""

_TABLE = """\
List the selected solution of each definition and key, its latency, the runner-up and the number of
candidates; then counts. Problems of the data set go to stderr."""

_TABLE_EXAMPLES = """\
examples:
  fib-apply table DATASET
  fib-apply table DATASET --hardware 'NVIDIA H200'
  fib-apply table DATASET --json | jq '.keys[] | select(.solution == null)'
                                       keys that the fallback serves"""

_WARM = """\
Make the table, then compile, probe and load every solution selected for the hardware of this machine, so that
an engine finds them in the caches. Solutions are loaded in a child process first: one that crashes or hangs is
left out. Progress goes to stderr. Triton, TileLang, Helion, cuTile and CuTe DSL compile on their first call, not
here."""

_WARM_EXAMPLES = """\
examples:
  fib-apply warm DATASET
  fib-apply warm DATASET --definitions gemm_n4096_k4096 rmsnorm_h4096 -j 8
  fib-apply warm DATASET && python -m engine      # only if all are usable"""


_CHECK = """\
Read a configuration file as an engine with FIB_APPLY_CONFIG=CONFIG does, and show its problems, each with the line
and the remedy, or the settings that result. With --dataset, also find settings of definitions that it does not have.
Exit codes: 0 if the file is valid; 1 if it is not; 2 if it or the data set cannot be read."""

_CHECK_EXAMPLES = """\
examples:
  fib-apply check apply.yaml
  fib-apply check apply.yaml --dataset DATASET
  fib-apply check apply.yaml --json | jq .settings.default.on_error"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code: 1 if a solution is not usable, 2 if the command is invalid."""
    return run_command("fib-apply", lambda: _run(arguments))


def _run(arguments: Sequence[str] | None) -> int:
    options = _parser().parse_args(arguments)
    try:
        if options.run is not implementations.check:
            _read_settings(options)
        code: int = options.run(options)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        print("fib-apply: torch is not installed; without it, pass --hardware and omit --source", file=sys.stderr)
        return FAILED
    return code


# -- options -----------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="fib-apply", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_explain(commands)
    _add_table(commands)
    _add_warm(commands)
    _add_check(commands)
    return parser


def _add_command(
    commands: argparse._SubParsersAction[CommandParser], name: str, summary: str, texts: tuple[str, str]
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


def _add_explain(commands: argparse._SubParsersAction[CommandParser]) -> None:
    command = _add_command(
        commands, "explain", "show which solution serves a call, and why", (_EXPLAIN, _EXPLAIN_EXAMPLES)
    )
    command.add_argument("--definition", required=True, metavar="NAME", help="the definition of the calls")
    command.add_argument(
        "--axes", nargs="+", action="extend", default=[], metavar="AXIS=SIZE", help="sizes of its variable axes"
    )
    command.add_argument("--source", action="store_true", help="also print the generated route; needs torch")
    _add_hardware(command)
    settings = _add_settings(command)
    policies = ", ".join(OnMiss)
    settings.add_argument("--on-miss", dest="on_miss_policy", metavar="POLICY", help=f"one of {policies}")
    settings.add_argument(
        "--nearest",
        nargs="+",
        metavar="AXIS=FACTOR",
        help="axes that may differ from a recorded key, with the largest factor; implies --on-miss nearest",
    )
    command.set_defaults(run=implementations.explain)


def _add_table(commands: argparse._SubParsersAction[CommandParser]) -> None:
    command = _add_command(commands, "table", "list the selected solutions", (_TABLE, _TABLE_EXAMPLES))
    _add_hardware(command)
    _add_settings(command)
    command.set_defaults(run=implementations.table)


def _add_warm(commands: argparse._SubParsersAction[CommandParser]) -> None:
    command = _add_command(commands, "warm", "build the selected solutions into the caches", (_WARM, _WARM_EXAMPLES))
    command.add_argument("--definitions", nargs="+", metavar="NAME", help="only solutions of these definitions")
    command.add_argument("-j", "--jobs", type=int, help="number of parallel compilers (default: all cores)")
    _add_settings(command)
    command.set_defaults(run=implementations.warm)


def _add_check(commands: argparse._SubParsersAction[CommandParser]) -> None:
    command = commands.add_parser(
        "check",
        help="check a configuration file",
        description=_CHECK,
        epilog=_CHECK_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("config", type=Path, metavar="CONFIG", help="the configuration file")
    command.add_argument("--dataset", type=Path, metavar="DATASET", help="the folder of the data set that it is for")
    command.add_argument("--json", action="store_true", help="print JSON, and nothing else, to stdout")
    command.set_defaults(run=implementations.check)


def _add_hardware(command: argparse.ArgumentParser) -> None:
    command.add_argument("--hardware", metavar="NAME", help="hardware name as in traces (default: this machine's)")


def _add_settings(command: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    settings = command.add_argument_group(
        "settings", "as in fib_apply.ApplyConfig; pass those of the engine, which count before those of --config"
    )
    settings.add_argument(
        "--config",
        metavar="FILE",
        help="read the settings of an engine from this file (default: that of FIB_APPLY_CONFIG, if it is set)",
    )
    settings.add_argument("--exclude", nargs="+", metavar="SOLUTION", help="solutions that are not selected")
    settings.add_argument("--only", nargs="+", metavar="SOLUTION", help="select no other solutions than these")
    settings.add_argument("--max-atol", type=float, metavar="X", help="the largest absolute error that counts")
    settings.add_argument("--max-rtol", type=float, metavar="X", help="the largest relative error that counts")
    settings.add_argument("--baseline", metavar="SOLUTION", help="its time is that of the fallback")
    settings.add_argument(
        "--require-speedup",
        action=argparse.BooleanOptionalAction,
        help="select only solutions that are faster than the fallback (default)",
    )
    settings.add_argument(
        "--batch-invariant",
        action=argparse.BooleanOptionalAction,
        help="select one solution for all sizes of the batch axes",
    )
    settings.add_argument(
        "--margin",
        type=float,
        metavar="SHARE",
        help="latencies within this share are equal (default: 0.03)",
    )
    settings.add_argument(
        "--other-hardware", nargs="+", metavar="NAME", help="hardware whose traces count where this one has none"
    )
    settings.add_argument(
        "--require-signed-by",
        action="append",
        metavar="KEY",
        help="use only what the owner of this key signed: a file with public keys, or the text of one; repeatable",
    )
    return settings


def _read_settings(options: argparse.Namespace) -> None:
    """Set `settings`, those of a file with those of the options, and `given`, those of the options alone."""
    names = [field.name for field in attrs.fields(ApplyConfig)]
    given: dict[str, Any] = {name: value for name in names if (value := getattr(options, name, None)) is not None}
    if "nearest" in given:
        given["nearest"] = dict(map(_factor, given["nearest"]))
        given.setdefault("on_miss_policy", OnMiss.NEAREST)
    path = options.config or os.environ.get(CONFIG_VARIABLE)
    of_file = read_config(path).registry if path else ApplyConfigRegistry()
    configs = {name: attrs.evolve(config, **given) for name, config in of_file.per_definition.items()}
    options.given = ApplyConfig(**given)
    options.settings = ApplyConfigRegistry(attrs.evolve(of_file.default, **given), configs)


def _factor(text: str) -> tuple[str, float]:
    axis, _, factor = text.partition("=")
    try:
        return axis, float(factor)
    except ValueError:
        raise InvalidSetting("--nearest", text, "AXIS=FACTOR, such as M=2") from None
