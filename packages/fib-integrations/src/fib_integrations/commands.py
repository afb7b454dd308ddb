"""What the commands of ``fib-integrations`` do."""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any

import attrs
from fib_schema import TraceSet

from .adapter import Adapter
from .adapters import all_adapters, chosen
from .baselines import Baselines, baselines_of
from .installation import TargetStatus, install_flashinfer_integrations, spec_of
from .installation import status as installed
from .log import logger
from .patching import State


def list_adapters(options: argparse.Namespace) -> int:
    """Print the adapters."""
    adapters = all_adapters().values()
    if options.json:
        print(json.dumps([_as_json(adapter) for adapter in adapters], indent=2))
        return 0
    for adapter in adapters:
        mark = "" if adapter.is_default else " (not by default)"
        print(f"{adapter.name}{mark}: {', '.join(adapter.op_types)}")
        print(f"  covers  {adapter.covers}\n  leaves  {adapter.leaves}")
        for target in adapter.targets:
            print(f"  target  {target.path}")
    return 0


def _as_json(adapter: Adapter) -> dict[str, Any]:
    return {
        "name": adapter.name,
        "op_types": list(adapter.op_types),
        "is_default": adapter.is_default,
        "covers": adapter.covers,
        "leaves": adapter.leaves,
        "targets": [target.path for target in adapter.targets],
    }


def status(options: argparse.Namespace) -> int:
    """Print what becomes of each target here; 1 if one is not what its adapter was written for."""
    level = logger.level
    logger.setLevel(logging.ERROR)  # the table says what warnings would
    try:
        install_flashinfer_integrations(also=options.also)
        problems = _import_targets(chosen(None, options.also))
    finally:
        logger.setLevel(level)
    found = installed()
    if options.json:
        values = [attrs.asdict(target) for target in found]
        print(json.dumps({"targets": values, "not_importable": problems}, indent=2))
    else:
        _print_status(found, problems)
    return int(any(target.state is State.UNSUITABLE for target in found))


def _import_targets(adapters: Iterable[Adapter]) -> dict[str, str]:
    """Import the modules of targets; returns those that cannot be, and why."""
    problems = {}
    specs = [spec_of(adapter, target) for adapter in adapters for target in adapter.targets]
    for module in dict.fromkeys(spec.module for spec in specs):
        try:
            import_module(module)
        except ImportError as error:
            problems[module] = str(error)
    return problems


def _print_status(found: Sequence[TargetStatus], problems: dict[str, str]) -> None:
    width = max(len(target.path) for target in found)
    for target in found:
        print(f"{target.path:<{width}}  {target.state}  {target.detail}".rstrip())
        for name in target.aliases:
            print(f"  also {name}")
        for holder in target.holders:
            print(f"  not seen: calls through {holder}")
    for module, problem in problems.items():
        print(f"{module} cannot be imported: {problem}")


def baselines(options: argparse.Namespace) -> int:
    """Write baselines, and say which definitions have none."""
    trace_set = TraceSet.from_path(options.dataset)
    found = baselines_of(trace_set, chosen(None), author=options.author, names=options.definitions)
    if not options.dry_run:
        trace_set.add_solutions(found.solutions)
    if options.json:
        print(json.dumps(_baselines_as_json(found), indent=2))
        return 0
    verb = "would write" if options.dry_run else "wrote"
    for solution in found.solutions:
        print(f"{verb} {solution.name}")
    for name in found.existing:
        print(f"there already: {name}")
    print(f"{verb} {len(found.solutions)}; {len(found.uncovered)} definitions are not covered")
    return 0


def _baselines_as_json(found: Baselines) -> dict[str, Any]:
    return {
        "solutions": [solution.name for solution in found.solutions],
        "existing": list(found.existing),
        "uncovered": list(found.uncovered),
    }
