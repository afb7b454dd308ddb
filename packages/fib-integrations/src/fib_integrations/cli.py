"""The ``fib-integrations`` command."""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import Any

import attrs
from fib_schema import TraceSet
from fib_schema.command import CommandParser, add_data_set, data_set_of, print_problems, run_command
from fib_schema.data_files import missing_data
from fib_schema.display import counted

from . import vllm
from .adapter import Adapter
from .adapters import find_definitions, select_adapters
from .baselines import make_baselines
from .installation import TargetStatus, install_flashinfer_integrations, patch_spec, status
from .patching import PatchState

_DESCRIPTION = """\
Adapters between kernel libraries and fib-apply or fib-tracer: the supported calls, the status of
the patches here, and solutions that call the library itself. Exit codes: 0; 1 if a target is
incompatible with its adapter; 2 for a wrong command, or a file that cannot be read or written;
130 after an interrupt; 141 if the reader of the output has ended."""

_STATUS = """\
Install the adapters in the process of this command, import the library, and print the status of
each target: installed, missing in this version, or incompatible with its adapter.

example:
  fib-integrations status --also torch_linear --json"""

_BASELINES = """\
Write, for every supported definition of a data set, a solution that calls FlashInfer itself (its
plan in setup()): the baseline for quoted speedups. Paged decode has two, without and with tensor
cores. An existing solution of the same name is kept.

example:
  fib-integrations baselines DATASET --definitions rmsnorm_h4096 gqa_paged_decode_h32_kv8_d128_ps1"""

_DEFINITIONS = """\
Write definitions of engines' calls; the log of fib-tracer names those that a data set lacks.

example:
  fib-integrations definitions DATASET gemm_bf16_n6144_k4096 fa_paged_decode_h32_kv8_d128_ps16"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    return run_command("fib-integrations", lambda: _run(arguments))


def _run(arguments: Sequence[str] | None) -> int:
    options = _parser().parse_args(arguments)
    code: int = options.run(options)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="fib-integrations", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(run: Callable[[argparse.Namespace], int], name: str, summary: str, text: str) -> argparse.ArgumentParser:
        formatter = argparse.RawDescriptionHelpFormatter
        command = commands.add_parser(name, help=summary, description=text, formatter_class=formatter)
        command.add_argument("--json", action="store_true", help="print only JSON to stdout")
        command.set_defaults(run=run)
        return command

    command = add(_status, "status", "print the status of the patches", _STATUS)
    command.add_argument("--also", nargs="+", default=[], metavar="NAME", help="adapters besides the default ones")
    command = add(_baselines, "baselines", "write solutions that call FlashInfer", _BASELINES)
    add_data_set(command, is_first=True)
    command.add_argument("--definitions", nargs="+", default=[], metavar="NAME", help="only these definitions")
    command.add_argument("--dry-run", action="store_true", help="write nothing")
    command = add(_definitions, "definitions", "write definitions of engines' calls", _DEFINITIONS)
    add_data_set(command, is_first=True)
    command.add_argument("names", nargs="+", metavar="NAME", help="the definitions")
    return parser


def _status(options: argparse.Namespace) -> int:
    """Print the status of each target; the exit code is 1 if one is incompatible."""
    logger = logging.getLogger(__package__)
    level = logger.level
    logger.setLevel(logging.ERROR)  # the table contains what warnings would say
    try:
        install_flashinfer_integrations(also=options.also)
        vllm.install_hooks()
        import_errors = _import_targets([*select_adapters(None, options.also), vllm.ADAPTER])
    finally:
        logger.setLevel(level)
    targets = status()
    if options.json:
        values: list[dict[str, Any]] = [attrs.asdict(target) for target in targets]
        print(json.dumps({"targets": values, "import_errors": import_errors}, indent=2))
    else:
        _print_status(targets, import_errors)
    return int(any(target.state is PatchState.INCOMPATIBLE for target in targets))


def _import_targets(adapters: Iterable[Adapter]) -> dict[str, str]:
    """Import the modules of targets, but not of engines that are not installed; returns the errors by module."""
    errors = {}
    present = [adapter for adapter in adapters if adapter.engine is None or adapter.engine.is_installed]
    specs = [patch_spec(adapter, target) for adapter in present for target in adapter.targets]
    for module in dict.fromkeys(spec.module for spec in specs):
        try:
            import_module(module)
        except ImportError as error:
            errors[module] = str(error)
    return errors


def _print_status(targets: Sequence[TargetStatus], import_errors: dict[str, str]) -> None:
    width = max(len(target.path) for target in targets)
    for target in targets:
        print(f"{target.path:<{width}}  {target.state}  {target.detail}".rstrip())
        for name in target.aliases:
            print(f"  also {name}")
    for module, error in import_errors.items():
        print(f"{module} cannot be imported: {error}")


def _baselines(options: argparse.Namespace) -> int:
    """Write the baselines, and list definitions without one."""
    root = data_set_of(options)
    trace_set = TraceSet.from_path(root)
    made = make_baselines(trace_set, select_adapters(None), names=options.definitions)
    if not options.definitions:
        list(trace_set.solutions.values())  # reads them: a bad file may be a baseline that seems to exist
    is_empty = not trace_set.definition_names()
    print_problems([*trace_set.problems, missing_data(str(root))] if is_empty else trace_set.problems)
    if not options.dry_run:
        trace_set.add_solutions(made.solutions)
    names = [solution.name for solution in made.solutions]
    if options.json:
        print(json.dumps({"solutions": names, "existing": made.existing, "unsupported": made.unsupported}, indent=2))
        return int(is_empty)
    verb = "would write" if options.dry_run else "wrote"
    for name in names:
        print(f"{verb} {name}")
    for name in made.existing:
        print(f"exists already: {name}")
    for name in made.unsupported:
        print(f"no adapter has a baseline for it: {name}")
    print(f"{verb} {len(names)}; unsupported: {counted(len(made.unsupported), 'definition')}")
    return int(is_empty)


def _definitions(options: argparse.Namespace) -> int:
    """Write definitions; those that the data set has are kept."""
    trace_set = TraceSet.from_path(data_set_of(options))
    made = find_definitions(sorted({*options.names} - {*trace_set.definition_names()}))
    trace_set.add_definitions(made)
    names = [definition.name for definition in made]
    print(json.dumps({"definitions": names}, indent=2) if options.json else "\n".join(f"wrote {n}" for n in names))
    return 0
