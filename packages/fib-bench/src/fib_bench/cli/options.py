"""Declaration of commands, and the options that several of them have."""

from __future__ import annotations

import argparse
import inspect
import math
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import attrs
from fib_schema import DataSetNotFound, FibError, InvalidField, TraceSet, get_fib_dataset_path
from rich.console import Console

from ..config.benchmark import EXECUTORS, MAX_CONCURRENCY, BenchmarkConfig, read_fields
from ..config.model import ResolvedEvalConfig
from ..errors import NoDataSetNamed

_DEVICES = Path("/dev")
_GPU_FILES = ("nvidia*", "dxg", "nvhost*", "nvmap", "kfd")
"""Files in /dev of the drivers of GPUs, on Linux, in WSL and on boards; a machine without any has no GPU."""
_OPTIONS = {"timeout_seconds": "timeout", "profile_baseline": "no-profile-baseline"}
"""Options that are not named like their fields."""
_DEFAULTS = {
    field.name: field.default
    for cls in (BenchmarkConfig, ResolvedEvalConfig)  # the second has the defaults of common fields
    for field in attrs.fields(cls)
}

Command = Callable[[argparse.Namespace, Console], int]
"""Runs a command; returns its exit code. The console is on stderr."""


class Commands(Protocol):
    """The object of `argparse` that sub-commands are added to; its own type is private."""

    def add_parser(self, name: str, *, help: str) -> argparse.ArgumentParser:
        """Add one."""


@attrs.frozen
class InvalidRequest(FibError, ValueError):
    """Arguments that cannot be combined."""

    problem: str

    def __str__(self) -> str:
        return self.problem


def add_command(commands: Commands, name: str, summary: str, run: Command) -> argparse.ArgumentParser:
    """Declare a command; the docstring of its function is its help page."""
    parser = commands.add_parser(name, help=summary)
    set_help(parser, run.__doc__ or "")
    parser.set_defaults(command=run)
    return parser


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


def number_option(kind: type[int] | type[float], *, above: float = -math.inf, least: float = -math.inf) -> Any:
    """A parser of numbers in a range for `argparse`."""
    limit = f"greater than {above:g}" if above > -math.inf else f"at least {least:g}"

    def parse(text: str) -> int | float:
        try:
            value = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
        if not (above < value < math.inf and least <= value):
            raise argparse.ArgumentTypeError(f"must be {limit} and finite, got {text}")
        return value

    return parse


# -- the data set ------------------------------------------------------------------------------


def add_data_set(parser: argparse.ArgumentParser) -> None:
    """Declare ``--dataset`` of a command that takes a file or a name first."""
    text = "the data set (default: this folder if it is one, else FIB_DATASET_PATH)"
    parser.add_argument("--dataset", metavar="DIR", type=Path, help=text)


def data_set_of(arguments: argparse.Namespace) -> Path:
    """The data set that a command is about.

    Raises:
        DataSetNotFound: There is none at the path that was passed.
        NoDataSetNamed: No path was passed, and there is none at the default.
    """
    given: Path | None = arguments.dataset
    if given is not None:
        if not given.is_dir():
            raise DataSetNotFound(str(given))
        return given
    default = Path() if Path("definitions").is_dir() else get_fib_dataset_path()
    if not default.is_dir():
        raise NoDataSetNamed(str(default))
    return default


# -- the device --------------------------------------------------------------------------------


def add_device(parser: argparse._ActionsContainer) -> None:
    """Declare ``--device``."""
    parser.add_argument("--device", help="where to run: cpu or cuda:N (default: the first GPU, or the CPU without one)")


def default_device() -> str:
    """The device of a command that names none: the first GPU, or the CPU where there is none."""
    if sys.platform == "linux" and not any(any(_DEVICES.glob(pattern)) for pattern in _GPU_FILES):
        return "cpu"
    from fib_compile.device import list_cuda_devices, torch_cuda_version

    if torch_cuda_version() is not None and _is_gpu_visible():
        return "cuda:0"
    return next(iter(list_cuda_devices()), "cpu")  # imports torch, which takes seconds


def _is_gpu_visible() -> bool:
    """Whether NVML knows the first device that CUDA shows to this process; False where only CUDA can tell."""
    import pynvml

    chosen = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0].strip()
    try:
        pynvml.nvmlInit()  # without a shutdown: it takes longer than the rest, and commands ask more than once
        return chosen.isdecimal() and int(chosen) < pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError:
        return False


# -- runs --------------------------------------------------------------------------------------


def config_of(arguments: argparse.Namespace, trace_set: TraceSet) -> BenchmarkConfig:
    """The configuration: the command line overrides --config, which overrides the file of the data set.

    Raises:
        InvalidConfig: A file is not valid, or a name in it matches nothing.
        InvalidField: The value of an option is invalid.
    """
    given = {name: getattr(arguments, name, None) for name in _DEFAULTS}
    fields = {name: value for name, value in given.items() if value is not None}
    fields |= {
        name: names_of(fields[name]) for name in ("definitions", "solutions", "op_types", "devices") if name in fields
    }
    if arguments.config is not None:
        fields = {**read_fields(Path(arguments.config), trace_set), **fields}
    if not {"device", "devices"} & fields.keys():
        fields["device"] = default_device()
    try:
        config = BenchmarkConfig(**fields)
    except InvalidField as error:
        raise _with_option(error, given) from error
    return config.for_data_set(trace_set)


def _with_option(error: InvalidField, given: Mapping[str, object]) -> InvalidField:
    """The error of a field with the name of the option that gave its value, if one did."""
    name = error.where.rpartition(".")[2]
    if given.get(name) is None:
        return error
    option = _OPTIONS.get(name, name.replace("_", "-"))
    return InvalidField(f"--{option}", error.problem)


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that `config_of` reads; an option that is not given inherits."""
    parser.add_argument("--config", metavar="YAML", help="settings, which options override")
    choice = parser.add_argument_group("what to run")
    add_definitions(choice)
    choice.add_argument("--solutions", nargs="+", metavar="NAME", help="only these solutions")
    choice.add_argument("--op-types", nargs="+", metavar="TYPE", help="only definitions of these op_types")
    text = "at most N workloads of each definition"
    choice.add_argument("--max-workloads", type=number_option(int, above=0), metavar="N", help=text)
    _add_conditions(parser.add_argument_group("how to run it"))
    _add_settings(
        parser.add_argument_group("settings of every definition, above those of the data set and of --config")
    )


def _add_conditions(group: argparse._ArgumentGroup) -> None:
    add_device(group)
    text = "devices that share the work, such as cuda:0,cuda:1 or all"
    group.add_argument("--devices", nargs="+", metavar="NAME", help=text)
    text = f"evaluations in flight on each GPU, at most {MAX_CONCURRENCY} (default: by the number of cores)"
    group.add_argument("--concurrency", type=number_option(int, above=0), metavar="N", help=text)
    group.add_argument("--executor", choices=EXECUTORS, help=f"where the work runs (default: {_DEFAULTS['executor']})")
    group.add_argument("--address", help="address of the Ray cluster (default: a local one)")
    text = f"bound on one build and on each step of an evaluation (default: {_DEFAULTS['timeout_seconds']:g})"
    kind = number_option(float, above=0)
    group.add_argument("--timeout", dest="timeout_seconds", type=kind, metavar="SECONDS", help=text)
    group.add_argument("--seed", type=int, metavar="N", help=f"seed of the inputs (default: {_DEFAULTS['seed']})")
    group.add_argument("--baseline", metavar="NAME", help="the solution that speedups are quoted against")
    text = "add the reference as a solution to each definition that has none"
    group.add_argument("--reference-as-solution", action="store_true", help=text)
    for option, field, value, text in (
        ("quick", "quick", True, "two distributions and one short timing; traces are flagged and unranked"),
        ("synthesize-missing", "synthesize_missing", True, "make inputs where a blob is missing; traces are flagged"),
        (
            "strict-hardware",
            "strict_hardware",
            True,
            "only solutions whose target_hardware names the device, not all of its architecture",
        ),
        ("no-profile-baseline", "profile_baseline", False, "do not time the reference"),
    ):
        group.add_argument(f"--{option}", dest=field, action="store_const", const=value, help=text)


def _add_settings(group: argparse._ArgumentGroup) -> None:
    for option, kind, metavar, text in (
        ("--warmup-runs", int, "N", "calls before timing"),
        ("--iterations", int, "N", "calls to time at least, if time allows"),
        ("--num-trials", int, "N", "input sets with different values"),
        ("--measure-seconds", float, "S", "cap on timing one function on one workload"),
        ("--confidence", float, "SHARE", "sample until the median is known to this share of itself"),
        ("--rtol", float, "X", "relative error; an element is wrong if its errors exceed both --rtol and --atol"),
        ("--atol", float, "X", "absolute error; an element is wrong if its errors exceed both --rtol and --atol"),
        ("--required-matched-ratio", float, "SHARE", "share of elements that must be right"),
    ):
        default = _DEFAULTS[option.removeprefix("--").replace("-", "_")]
        shown = "all" if default is None else f"{default:g}"
        group.add_argument(option, type=kind, metavar=metavar, help=f"{text} (default: {shown})")
