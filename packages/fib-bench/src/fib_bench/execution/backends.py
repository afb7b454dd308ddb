"""Selection of the executor. `make_executor` is the only function that knows all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias, cast

from fib_schema import Problem, Solution

from ..config.benchmark import BenchmarkConfig
from ..errors import InvalidConfig
from .scheduler import Executor

_Make: TypeAlias = Callable[[BenchmarkConfig, Path | None, Mapping[str, Solution]], Executor]
_MAKERS: Mapping[str, tuple[str, str]] = MappingProxyType({
    "local": (".local", "local_scheduler"),
    "ray": (".ray_scheduler", "ray_scheduler"),
})  # fmt: skip


def make_executor(config: BenchmarkConfig, root: Path | None, baselines: Mapping[str, Solution]) -> Executor:
    """The executor that a configuration names.

    Raises:
        InvalidConfig: Settings contradict each other.
        UnsupportedDevice: There is no such device, or a dependency of the executor is not installed.
        JudgeFailed: A judge did not start.
    """
    _check(config)
    module, name = _MAKERS[config.executor]
    make = cast(_Make, getattr(import_module(module, __package__), name))
    return make(config, root, baselines)


def _check(config: BenchmarkConfig) -> None:
    """Reject settings that the executor would ignore.

    Raises:
        InvalidConfig: There are such settings.
    """
    is_local = config.executor == "local"
    pairs = (
        ("devices", config.devices is not None and not is_local, "a Ray cluster lists its devices itself"),
        ("address", config.address is not None and is_local, "only a Ray cluster has one: set `executor` to 'ray'"),
        (
            "in_process_trusted",
            config.in_process_trusted and not is_local,
            "a Ray cluster cannot use this process",
        ),
        (
            "devices",
            config.in_process_trusted and config.devices is not None,
            "trusted code has one device: set `device`",
        ),
        ("baseline", config.in_process_trusted and config.baseline is not None, "trusted runs do not time a baseline"),
    )
    problems = tuple(Problem("<configuration>", name, why) for name, is_given, why in pairs if is_given)
    if problems:
        raise InvalidConfig(problems)
