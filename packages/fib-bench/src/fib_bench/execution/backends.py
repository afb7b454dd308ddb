"""Which executor carries out plans; the only module that knows there are several."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias, cast

from fib_schema import Problem, Solution

from ..config.model import BenchmarkConfig
from ..errors import InvalidConfig
from .scheduler import Executor

_Make: TypeAlias = Callable[[BenchmarkConfig, Path | None, Mapping[str, Solution]], Executor]
_MAKERS: Mapping[str, tuple[str, str]] = MappingProxyType({
    "local": (".local", "local_crew"),
    "ray": (".ray_scheduler", "ray_crew"),
})  # fmt: skip


def make_executor(config: BenchmarkConfig, root: Path | None, baselines: Mapping[str, Solution]) -> Executor:
    """The executor that a configuration names.

    Raises:
        InvalidConfig: It asks for what does not go together.
        UnsupportedDevice: There is no such device, or what the executor needs is not installed.
        JudgeFailed: A judge did not start.
    """
    _check(config)
    module, name = _MAKERS[config.executor]
    make = cast(_Make, getattr(import_module(module, __package__), name))
    return make(config, root, baselines)


def _check(config: BenchmarkConfig) -> None:
    """Refuse settings of which one would be ignored.

    Raises:
        InvalidConfig: There are such.
    """
    is_local = config.executor == "local"
    pairs = (
        ("devices", config.devices is not None and not is_local, "a Ray cluster says itself which devices it has"),
        ("address", config.address is not None and is_local, "it is a Ray cluster's: set `executor` to 'ray'"),
        ("in_process_trusted", config.in_process_trusted and not is_local, "this process is no part of a Ray cluster"),
        ("devices", config.in_process_trusted and config.devices is not None, "trusted code runs on one: set `device`"),
        ("baseline", config.in_process_trusted and config.baseline is not None, "trusted runs time no baseline"),
    )
    problems = tuple(Problem("<configuration>", name, why) for name, is_given, why in pairs if is_given)
    if problems:
        raise InvalidConfig(problems)
