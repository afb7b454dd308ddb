"""Evaluator interface, the default evaluator, and the choice for a definition.

An evaluator makes a check for each input set of a definition.
A check judges the outputs of one call against the reference's. Where one call says little (a random
sample), it requests more calls on the same inputs, whose outputs are judged together; so are those of
timed calls.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Container, Mapping, Sequence
from importlib.metadata import EntryPoint
from typing import Any, ClassVar

import attrs
import torch
from fib_schema import Definition, UnknownName
from fib_schema.entry_points import find_entry_points

from ..checking.comparison import Comparison, OutputCheck, examine
from ..config.model import BUILT_IN, GROUP, ResolvedEvalConfig, evaluator_names
from ..errors import EvaluatorUnusable
from ..inputs.generation import Value

Tensors = Mapping[str, torch.Tensor]


@attrs.frozen
class Verdict:
    """The result of a check."""

    comparisons: tuple[Comparison, ...] = ()
    """The numbers, by output."""
    problems: tuple[str, ...] = ()
    """The problems, a line each; empty if the outputs are right."""
    extra: Mapping[str, Any] = attrs.field(factory=dict)
    """Further fields of a trace."""


class Check(abc.ABC):
    """Decides whether the outputs of a call on one input set are right."""

    @property
    def parts(self) -> Mapping[str, OutputCheck]:
        """Checks of single outputs. Traces record their tolerances and the wrong answers they accept."""
        return {}

    @property
    def trials(self) -> int:
        """Calls on the same inputs that are judged together, as timed calls are; 0 if each call is judged alone."""
        return 0

    @property
    def most_trials(self) -> int:
        """The largest number of such calls, made if they take little time; at least `trials`."""
        return self.trials

    def to_extra(self) -> dict[str, Any]:
        """The fields of a trace, by output."""
        return {name: part.to_extra() for name, part in self.parts.items()}

    @abc.abstractmethod
    def compare(self, found: Tensors, expected: Tensors) -> Verdict:
        """Judge the outputs of one call. Timed calls are judged too, so it should rarely synchronize the device."""


@attrs.frozen(eq=False)
class EachOutput(Check):
    """Each output has a check of its own, and all must be right."""

    parts: Mapping[str, OutputCheck] = attrs.field()

    def compare(self, found: Tensors, expected: Tensors) -> Verdict:
        """Compare output by output."""
        comparisons = [self.compare_output(name, found, expected) for name in self.parts]
        problems = [c.explain() for c in comparisons if not self.parts[c.name].is_right(c)]
        return Verdict(tuple(comparisons), tuple(problems))

    def compare_output(self, name: str, found: Tensors, expected: Tensors) -> Comparison:
        """Compare one output by its part."""
        return self.parts[name].compare(found[name], expected[name])


@attrs.frozen(eq=False)
class Observation:
    """The outputs of one call, kept to be judged with those of others."""

    check: Check
    outputs: Tensors


@attrs.frozen(eq=False, kw_only=True)
class Case:
    """One input set and the reference's outputs for it."""

    definition: Definition
    inputs: Mapping[str, Value]
    """All inputs: tensors, scalars, None for an absent one."""
    expected: Tensors
    config: ResolvedEvalConfig
    again: Callable[[], Tensors] | None = None
    """Calls the reference again on the same inputs; not set for timed calls."""
    first: Check | None = None
    """The check of the workload's first input set, unless this is it."""
    is_like_first: bool = False
    """Whether the inputs have the distribution and the settings of the first set."""


class Evaluator(abc.ABC):
    """A correctness criterion for the definitions it applies to.

    Instances are stateless, constructed without arguments, and shared by all definitions.
    """

    name: ClassVar[str]
    """The name in settings and traces."""
    has_one_rule: ClassVar[bool] = False
    """Whether each part of a check judges all input sets that are drawn like the first one by the same rule, so that
    the outputs of many calls can be compared at once."""
    is_random: ClassVar[bool] = False
    """Whether outputs of a reference may differ between calls on equal inputs."""

    @abc.abstractmethod
    def applies(self, definition: Definition) -> bool:
        """Whether the evaluator applies to a definition, by its op_type, names, dtypes, tags and reference."""

    def settings(self, config: ResolvedEvalConfig) -> ResolvedEvalConfig:
        """The settings in force, with untouched defaults replaced by the evaluator's own."""
        return config

    @abc.abstractmethod
    def check(self, case: Case) -> Check:
        """Make the check for an input set."""

    def judge_together(self, observations: Sequence[Observation]) -> Verdict:
        """Judge the outputs of many calls; called only if a check of this evaluator has trials."""
        raise NotImplementedError(f"{type(self).__name__} makes checks with trials, but has no judge_together")


class Default(Evaluator):
    """Every element of every output must be close to the reference's."""

    name = "default"
    has_one_rule = True

    def applies(self, definition: Definition) -> bool:
        """Every definition."""
        del definition
        return True

    def check(self, case: Case) -> EachOutput:
        """Check each output, with tolerances tight enough to fail known wrong answers."""
        return EachOutput(default_parts(case, case.expected))


def default_parts(case: Case, names: Container[str]) -> dict[str, OutputCheck]:
    """The default checks of the named outputs; input sets drawn like the first reuse its tolerances."""
    tensors = {name: value for name, value in case.inputs.items() if isinstance(value, torch.Tensor)}
    outputs = {name: tensor for name, tensor in case.expected.items() if name in names}
    known = case.first.parts if case.first is not None and case.is_like_first else {}
    return {
        name: known[name].alike(tensor) if name in known else examine(name, tensor, tensors, case.config)
        for name, tensor in outputs.items()
    }


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
