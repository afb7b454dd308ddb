"""Which executor carries out plans; the only module that knows there are several."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias, cast

from fib_schema import Solution

from .config import BenchmarkConfig
from .crew import Executor

_Make: TypeAlias = Callable[[BenchmarkConfig, Path | None, Mapping[str, Solution]], Executor]
_MAKERS: Mapping[str, tuple[str, str]] = MappingProxyType({
    "local": (".local", "local_crew"),
    "ray": (".ray_crew", "ray_crew"),
})  # fmt: skip


def make_executor(config: BenchmarkConfig, root: Path | None, baselines: Mapping[str, Solution]) -> Executor:
    """The executor that a configuration names.

    Raises:
        UnsupportedDevice: There is no such device, or what the executor needs is not installed.
        JudgeFailed: A judge did not start.
    """
    module, name = _MAKERS[config.executor]
    make = cast(_Make, getattr(import_module(module, __package__), name))
    return make(config, root, baselines)
