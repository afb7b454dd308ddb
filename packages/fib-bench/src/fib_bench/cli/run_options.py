"""Options of ``fib-bench run``, and their conversion to a configuration."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
from fib_schema import InvalidField, TraceSet

from ..config.benchmark import EXECUTORS, MAX_CONCURRENCY, BenchmarkConfig, read_fields
from ..config.model import ResolvedEvalConfig

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


def config_of(arguments: argparse.Namespace, trace_set: TraceSet) -> BenchmarkConfig:
    """The configuration: the command line overrides --config, which overrides the file of the data set.

    Raises:
        InvalidConfig: A file is not valid, or a name in it matches nothing.
        InvalidField: The value of an option is invalid.
    """
    given = {field.name: getattr(arguments, field.name, None) for field in attrs.fields(BenchmarkConfig)}
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


def names_of(words: list[str] | None) -> tuple[str, ...] | None:
    """Names given as separate words or with commas between them."""
    if words is None:
        return None
    return tuple(name for word in words for name in word.split(",") if name)


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that `config_of` reads; an option that is not given inherits."""
    parser.add_argument("dir", metavar="DIR", help="the data set")
    parser.add_argument("--resume", action="store_true", help="skip pairs that have a trace already")
    parser.add_argument("--json", action="store_true", help="print traces and what was skipped as JSON")
    parser.add_argument("-v", "--verbose", action="store_true", help="print the seconds of each phase at the end")
    parser.add_argument("--config", metavar="YAML", help="settings, which options override")
    _add_choice(parser.add_argument_group("what to run"))
    _add_conditions(parser.add_argument_group("how to run it"))
    _add_settings(
        parser.add_argument_group("settings of every definition, above those of the data set and of --config")
    )


def _add_choice(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--definitions", nargs="+", metavar="NAME", help="only these definitions")
    group.add_argument("--solutions", nargs="+", metavar="NAME", help="only these solutions")
    group.add_argument("--op-types", nargs="+", metavar="TYPE", help="only definitions of these op_types")
    group.add_argument(
        "--max-workloads", type=_positive(int), metavar="N", help="at most N workloads of each definition"
    )


def _add_conditions(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--device", help="where to run: cpu or cuda:N (default: the first GPU, or the CPU without one)")
    group.add_argument(
        "--devices", nargs="+", metavar="NAME", help="devices that share the work, such as cuda:0,cuda:1 or all"
    )
    group.add_argument(
        "--concurrency",
        type=_positive(int),
        metavar="N",
        help=f"evaluations in flight on each GPU, of which one times a pass, at most {MAX_CONCURRENCY} "
        "(default: by the number of cores)",
    )
    group.add_argument("--executor", choices=EXECUTORS, help=f"where the work runs (default: {_DEFAULTS['executor']})")
    group.add_argument("--address", help="address of the Ray cluster (default: a local one)")
    group.add_argument(
        "--timeout",
        dest="timeout_seconds",
        type=_positive(float),
        metavar="SECONDS",
        help=f"bound on one build and on each step of an evaluation (default: {_DEFAULTS['timeout_seconds']:g})",
    )
    group.add_argument("--seed", type=int, metavar="N", help=f"seed of the inputs (default: {_DEFAULTS['seed']})")
    group.add_argument(
        "--quick",
        action="store_const",
        const=True,
        help="two distributions and one short timing, for an edit-run loop; traces are flagged and unranked",
    )
    group.add_argument(
        "--synthesize-missing",
        action="store_const",
        const=True,
        help="make valid inputs where a blob is missing; traces are flagged",
    )
    group.add_argument(
        "--reference-as-solution",
        action="store_true",
        help="add the reference as a solution to each definition that has none",
    )
    group.add_argument(
        "--strict-hardware",
        action="store_const",
        const=True,
        help="only solutions whose target_hardware names the device, not all of its architecture",
    )
    group.add_argument("--baseline", metavar="NAME", help="the solution that speedups are quoted against")
    group.add_argument(
        "--no-profile-baseline",
        dest="profile_baseline",
        action="store_const",
        const=False,
        help="do not time the reference",
    )


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


def _positive(kind: type[int] | type[float]) -> Any:
    def parse(text: str) -> int | float:
        try:
            value = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
        if not 0 < value < math.inf:
            raise argparse.ArgumentTypeError(f"must be greater than 0 and finite, got {text}")
        return value

    return parse
