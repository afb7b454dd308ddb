"""Problems of settings for one data set: names that it does not have, and settings without an effect."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from fib_schema import FibError, UnknownName

from ..config import ApplyConfig, ApplyConfigRegistry, OnMiss
from ..errors import ConfigProblem
from .table import ApplyTable


def setting_problems(registry: ApplyConfigRegistry, table: ApplyTable) -> tuple[ConfigProblem, ...]:
    """The problems of all settings, each with the path of the setting in a configuration file.

    Args:
        registry: The settings.
        table: Of the data set, made with these settings.
    """
    return tuple(_problems(registry, table))


def _problems(registry: ApplyConfigRegistry, table: ApplyTable) -> Iterator[ConfigProblem]:
    default = registry.default
    yield from _problems_of("default", default, ApplyConfig(), table, table.definitions)
    for name, config in registry.per_definition.items():
        path = f"definitions.{name}"
        if name in table.definitions:
            yield from _problems_of(path, config, default, table, (name,))
        else:
            yield ConfigProblem(None, path, str(UnknownName("definition", name, tuple(table.definitions))))


def _problems_of(
    path: str, config: ApplyConfig, inherited: ApplyConfig, table: ApplyTable, definitions: tuple[str, ...]
) -> Iterator[ConfigProblem]:
    """The problems of settings of some definitions, without those that they inherit."""
    for setting in ("baseline", "exclude", "only"):
        for name in sorted(_names(getattr(config, setting)) - _names(getattr(inherited, setting))):
            if (problem := _problem_of_solution(name, table, definitions)) is not None:
                yield ConfigProblem(None, f"{path}.{setting}", problem)
    policy, axes = config.on_miss_policy, config.nearest.keys() - inherited.nearest.keys()
    if axes and policy is not OnMiss.NEAREST:
        yield ConfigProblem(None, f"{path}.nearest", "it has no effect without on_miss_policy: nearest")
    if policy is OnMiss.NEAREST is not inherited.on_miss_policy and not config.nearest:
        problem = "it has no effect without axes in nearest, such as batch_size: 2"
        yield ConfigProblem(None, f"{path}.on_miss_policy", problem)
    known = _axes(table, definitions) if axes else set()
    for axis in sorted(axes - known):
        yield ConfigProblem(None, f"{path}.nearest", str(UnknownName("variable axis", axis, tuple(sorted(known)))))


def _names(value: str | tuple[str, ...] | None) -> set[str]:
    return {value} if isinstance(value, str) else set(value or ())


def _problem_of_solution(name: str, table: ApplyTable, definitions: tuple[str, ...]) -> str | None:
    try:
        solution = table.solution(name)
    except UnknownName as error:
        return str(error)
    except FibError:  # a problem of the file, which is reported where it is read
        return None
    return None if solution.definition in definitions else f"{name!r} is a solution of {solution.definition!r}"


def _axes(table: ApplyTable, definitions: tuple[str, ...]) -> set[str]:
    """The variable axes of definitions; of those whose file is damaged, none."""
    axes: set[str] = set()
    for name in definitions:
        with contextlib.suppress(FibError):
            axes.update(table.definition(name).var_axes)
    return axes
