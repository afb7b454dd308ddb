"""Registry of evaluators. Built-in ones and those of installed entry points, selected by definition.

Installed evaluators take precedence over built-in ones. Modules are imported on first use.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import EntryPoint

from fib_schema import Definition, UnknownName
from fib_schema.entry_points import find_entry_points

from ..config.model import BUILT_IN, GROUP, ResolvedEvalConfig, evaluator_names
from ..errors import EvaluatorUnusable
from .protocol import Evaluator


def evaluator_for(definition: Definition, config: ResolvedEvalConfig) -> Evaluator:
    """The evaluator of a definition: the one that the settings name, or the first that applies.

    Raises:
        EvaluatorUnusable: There is none of that name, an installed one cannot be used, or two of
            them apply.
    """
    outside = _outside()
    if config.evaluator is not None:
        return _load(config.evaluator, outside)
    applying = [name for name in outside if _load(name, outside).applies(definition)]
    if len(applying) > 1:
        problem = f"{applying[1]!r} applies to {definition.name!r} too; set `evaluator` to one of them"
        raise EvaluatorUnusable(applying[0], problem)
    names = [*applying, *(name for name in BUILT_IN if _built_in(name).applies(definition))]
    return _load(names[0], outside)


def _load(name: str, outside: Mapping[str, EntryPoint]) -> Evaluator:
    if name in outside:
        return _installed(outside[name])
    if name in BUILT_IN:
        return _built_in(name)
    raise EvaluatorUnusable(name, str(UnknownName("evaluator", name, evaluator_names())))


@functools.cache
def _built_in(name: str) -> Evaluator:
    module, _, cls = BUILT_IN[name].partition(":")
    evaluator: Evaluator = getattr(import_module(f".{module}", __package__), cls)()
    return evaluator


def _outside() -> dict[str, EntryPoint]:
    """The entry points by name."""
    found: dict[str, EntryPoint] = {}
    for entry in find_entry_points(GROUP):
        if entry.name in BUILT_IN:
            raise EvaluatorUnusable(entry.name, f"{entry.value} has the name of a built-in one; give it another")
        other = found.setdefault(entry.name, entry)
        if other.value != entry.value:
            raise EvaluatorUnusable(entry.name, f"{other.value} and {entry.value} both have this name")
    return found


@functools.cache
def _installed(entry: EntryPoint) -> Evaluator:
    try:
        cls = entry.load()
        evaluator = cls() if isinstance(cls, type) else cls
    except Exception as error:
        raise EvaluatorUnusable(entry.name, f"cannot load {entry.value}: {type(error).__name__}: {error}") from error
    if not isinstance(evaluator, Evaluator):
        raise EvaluatorUnusable(entry.name, f"{entry.value} is not a subclass of fib_bench.evaluators.Evaluator")
    if (found := getattr(evaluator, "name", None)) != entry.name:
        raise EvaluatorUnusable(entry.name, f"{entry.value} calls itself {found!r}; the two must be the same")
    return evaluator
