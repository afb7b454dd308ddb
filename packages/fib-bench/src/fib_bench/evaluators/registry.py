"""Registry of evaluators. Built-in ones and those of installed entry points, selected by definition.

Installed evaluators take precedence over built-in ones. Modules are imported on first use.
"""

from __future__ import annotations

import functools
from importlib.metadata import EntryPoint

from fib_schema import Definition, UnknownName
from fib_schema.entry_points import find_entry_points

from ..config.model import BUILT_IN, GROUP, ResolvedEvalConfig, evaluator_names
from ..errors import EvaluatorUnusable
from .protocol import Evaluator


def evaluator_for(definition: Definition, config: ResolvedEvalConfig) -> Evaluator:
    """The evaluator that the settings name, or the first that applies; `EvaluatorUnusable` if there is none, or two."""
    if config.evaluator is not None:
        return _evaluator(config.evaluator)
    applying = [name for name in evaluator_names() if name not in BUILT_IN and _evaluator(name).applies(definition)]
    if len(applying) > 1:
        problem = f"{applying[1]!r} applies to {definition.name!r} too; set `evaluator` to one of them"
        raise EvaluatorUnusable(applying[0], problem)
    return next(each for each in map(_evaluator, (*applying, *BUILT_IN)) if each.applies(definition))


def _evaluator(name: str) -> Evaluator:
    values = [f"{__package__}.{BUILT_IN[name]}"] if name in BUILT_IN else []
    values += [entry.value for entry in find_entry_points(GROUP) if entry.name == name]
    if not values:
        raise EvaluatorUnusable(name, str(UnknownName("evaluator", name, evaluator_names())))
    if len(values) > 1:
        raise EvaluatorUnusable(name, f"{values[0]} and {values[1]} both have this name; give one another")
    return _load(EntryPoint(name, values[0], GROUP))


@functools.cache
def _load(entry: EntryPoint) -> Evaluator:
    try:
        evaluator = entry.load()()
    except Exception as error:
        raise EvaluatorUnusable(entry.name, f"cannot load {entry.value}: {type(error).__name__}: {error}") from error
    if not isinstance(evaluator, Evaluator):
        raise EvaluatorUnusable(entry.name, f"{entry.value} is not a subclass of fib_bench.evaluators.Evaluator")
    if evaluator.name != entry.name:
        raise EvaluatorUnusable(entry.name, f"{entry.value} calls itself {evaluator.name!r}; the two must be the same")
    return evaluator
