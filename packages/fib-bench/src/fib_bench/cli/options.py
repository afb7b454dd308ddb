"""Declaration of commands, and the options that several of them have."""

from __future__ import annotations

import argparse
import inspect
import os
from collections.abc import Callable, Container, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import attrs
from fib_schema import InvalidField, TraceSet
from rich.console import Console

from ..config.model import EXECUTORS, MAX_CONCURRENCY, BenchmarkConfig, ResolvedEvalConfig, read_fields

_OPTIONS = {"timeout_seconds": "timeout", "profile_baseline": "no-profile-baseline"}
"""Options that are not named like their fields."""
_DEFAULTS = {
    field.name: field.default
    for cls in (BenchmarkConfig, ResolvedEvalConfig)  # the second has the defaults of common fields
    for field in attrs.fields(cls)
}

Command = Callable[[argparse.Namespace, Console], int]
"""Runs a command; returns its exit code. The console is on stderr."""


Commands: TypeAlias = "argparse._SubParsersAction[Any]"  # noqa: SLF001 it has no public name
"""Sub-commands are added to it."""


def add_command(commands: Commands, name: str, summary: str, run: Command) -> argparse.ArgumentParser:
    """Declare a command; the docstring of its function is its help page."""
    parser: argparse.ArgumentParser = commands.add_parser(name, help=summary)
    set_command(parser, run)
    return parser


def set_command(parser: argparse.ArgumentParser, run: Command) -> None:
    """Have a parser run a function, whose docstring is its help page."""
    set_help(parser, run.__doc__ or "")
    parser.set_defaults(command=run)


def set_help(parser: argparse.ArgumentParser, text: str) -> None:
    """Set the help page of a parser: a description, and examples that follow its options."""
    description, mark, examples = inspect.cleandoc(text).partition("\nExamples:\n")
    parser.description, parser.epilog = description, f"{mark.lower().lstrip()}{examples}"
    parser.formatter_class = argparse.RawDescriptionHelpFormatter


def add_json(parser: argparse.ArgumentParser) -> None:
    """Declare ``--json``."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_definitions(parser: argparse._ActionsContainer) -> None:
    """Declare ``--definitions``; `names_of` reads it."""
    parser.add_argument("--definitions", nargs="+", metavar="NAME", help="only these definitions")


def names_of(words: list[str] | None) -> tuple[str, ...] | None:
    """Names given as separate words or with commas between them."""
    if words is None:
        return None
    return tuple(name for word in words for name in word.split(",") if name)


_DEVICE_HELP = "where to run: cpu or cuda:N (default: the first GPU, or the CPU without one)"


def add_device(parser: argparse._ActionsContainer) -> None:
    """Declare ``--device``."""
    parser.add_argument("--device", help=_DEVICE_HELP)


def default_device() -> str:
    """The device of a command that names none: the first GPU that NVML and torch can use, else the CPU."""
    import pynvml
    from fib_compile.device import torch_cuda_version

    chosen = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0].strip()
    try:
        pynvml.nvmlInit()  # without a shutdown: it takes longer than the rest, and commands ask more than once
        count = pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError:
        return "cpu"
    is_visible = chosen.startswith(("GPU-", "MIG-")) or (chosen.isdecimal() and int(chosen) < count)
    return "cuda:0" if is_visible and torch_cuda_version() is not None else "cpu"


_NAMES: Mapping[str, Any] = {"nargs": "+", "metavar": "NAME"}
_COUNT: Mapping[str, Any] = {"type": int, "metavar": "N"}
_NUMBER: Mapping[str, Any] = {"type": float, "metavar": "X"}
_FLAG: Mapping[str, Any] = {"action": "store_const", "const": True}
_RUN_OPTIONS: Mapping[str, Mapping[str, tuple[Mapping[str, Any], str]]] = {
    "what to run": {
        "definitions": (_NAMES, "only these definitions"),
        "solutions": (_NAMES, "only these solutions"),
        "op_types": (_NAMES, "only definitions of these op_types"),
        "max_workloads": (_COUNT, "at most N workloads of each definition"),
    },
    "how to run it": {
        "device": ({}, _DEVICE_HELP),
        "devices": (_NAMES, "devices that share the work, such as cuda:0,cuda:1 or all"),
        "concurrency": (
            _COUNT,
            f"evaluations in flight on each GPU, at most {MAX_CONCURRENCY} (default: by the number of cores)",
        ),
        "executor": ({"choices": EXECUTORS}, "where the work runs"),
        "address": ({}, "address of the Ray cluster (default: a local one)"),
        "timeout_seconds": (
            {"type": float, "metavar": "SECONDS"},
            "bound on one build and on each step of an evaluation",
        ),
        "seed": (_COUNT, "seed of the inputs"),
        "baseline": ({"metavar": "NAME"}, "the solution that speedups are quoted against"),
        "quick": (_FLAG, "two distributions and one short timing; traces are flagged and unranked"),
        "synthesize_missing": (_FLAG, "make inputs where a blob is missing; traces are flagged"),
        "profile_baseline": ({"action": "store_const", "const": False}, "do not time the reference"),
    },
    "settings of every definition, above those of the data set and of --config": {
        "warmup_runs": (_COUNT, "calls before timing"),
        "iterations": (_COUNT, "calls to time at least, if time allows"),
        "num_trials": (_COUNT, "input sets with different values"),
        "measure_seconds": (_NUMBER, "cap on timing one function on one workload"),
        "cpu_processes": (_COUNT, "processes that time a function on the CPU, one after the other"),
        "confidence": (_NUMBER, "sample until the median is known to this share of itself"),
        "rtol": (_NUMBER, "relative error; an element is wrong if its errors exceed both --rtol and --atol"),
        "atol": (_NUMBER, "absolute error; an element is wrong if its errors exceed both --rtol and --atol"),
        "required_matched_ratio": (_NUMBER, "share of elements that must be right (default: all)"),
    },
}
"""Options by group and field, with how `argparse` reads them and their help; the fields check the values."""


def add_run_options(parser: argparse.ArgumentParser, left_out: Container[str] = ()) -> None:
    """Add the options that `config_of` reads, but for some fields; an option that is not given inherits."""
    parser.add_argument("--config", metavar="YAML", help="settings, which options override")
    for title, options in _RUN_OPTIONS.items():
        group = parser.add_argument_group(title)
        for field, (how, text) in options.items():
            if field in left_out:
                continue
            default = _DEFAULTS[field]
            has_default = "const" not in how and default is not None and "default:" not in text
            shown = f" (default: {default:g})" if isinstance(default, float) else f" (default: {default})"
            group.add_argument(_option(field), dest=field, **how, help=text + shown if has_default else text)


def _option(field: str) -> str:
    return f"--{_OPTIONS.get(field, field.replace('_', '-'))}"


def config_of(arguments: argparse.Namespace, trace_set: TraceSet) -> BenchmarkConfig:
    """The configuration: the command line overrides --config, which overrides the file of the data set."""
    given = {field: getattr(arguments, field, None) for options in _RUN_OPTIONS.values() for field in options}
    fields = {field: value for field, value in given.items() if value is not None}
    fields |= {field: names_of(value) for field, value in fields.items() if isinstance(value, list)}
    if arguments.config is not None:
        fields = {**read_fields(Path(arguments.config)), **fields}
    if not {"device", "devices"} & fields.keys():
        fields["device"] = default_device()
    try:
        config = BenchmarkConfig(**fields)
    except InvalidField as error:
        field = error.where.rpartition(".")[2]
        if given.get(field) is None:
            raise
        raise InvalidField(_option(field), error.problem) from error
    return config.for_data_set(trace_set)
