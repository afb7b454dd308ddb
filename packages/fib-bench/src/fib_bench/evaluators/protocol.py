"""Evaluator interface, the default evaluator, and the choice for a definition.

An evaluator makes a check for each input set of a definition.
A check judges the outputs of one call against the reference's. Where one call says little (a random
sample), it requests more calls on the same inputs, whose outputs are judged together; so are those of
timed calls.
"""

from __future__ import annotations

import abc
import functools
import re
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
from ..inputs.synthesis import calls_in, is_sampler

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


# -- the built-in evaluators, and the choice for a definition -----------------------------------------------------
#
# The conditions of all evaluators stand here, so that only the module of the chosen one is imported.

SCALE = re.compile(r".*(scales?|_sf|_scale_factors?|scale_inv)$|sf|scales?", re.IGNORECASE)
"""Names of outputs that are scales of others."""
STATE = re.compile(r"(?!.*hidden_state).*state.*")
"""Names of states of recurrences."""
_SPARSE_OP_TYPES = re.compile(r"(dsa|nsa|moba)(_|$)|.*sparse.*(att|mla|mha|gqa|mqa)|.*(att|mla|mha|gqa|mqa).*sparse")
_CHOSEN_KEYS = re.compile(r"sparse_(indices|index)|topk_(indices|index|idx)|block_(mask|indices|index)|selected_\w+")
_RECURRENT_OP_TYPES = (
    "gdn", "gated_delta", "delta_", "deltanet", "kda", "mamba", "ssm", "ssu", "ssd", "selective_s", "state_space",
    "linear_att", "lightning_att", "gla", "retention", "retnet", "rwkv",
)  # fmt: skip
_MOE_OP_TYPE = re.compile(r"(^|_)moe(_|$)|mixture_of_experts")
_INDICES = re.compile(
    r"(?!.*(sorted|perm|invers|token_id|page|slot))(.*_)?(indices|index|idx|ids?|experts?|argmax|top_?k|places?|positions?|chosen|selected)"
)
_ABOUT_CHOICE = re.compile(r"top_?k|indexer|arg_?max")
_CHOOSES = {"topk", "argmax", "argsort", "sort"}


def index_outputs(definition: Definition) -> list[str]:
    """The outputs that hold chosen indices."""
    words = " ".join([definition.op_type, definition.name, *definition.tags])
    if not (_ABOUT_CHOICE.search(words) or _CHOOSES & calls_in(definition.reference)):
        return []
    shapes = [spec.shape for spec in definition.inputs.values() if "float" in spec.dtype]  # of all candidates
    return [
        name
        for name, spec in definition.outputs.items()
        if spec.is_integer and spec.shape and _INDICES.fullmatch(name) and spec.shape not in shapes
    ]


def _has_low_precision(definition: Definition) -> bool:
    """Whether an output is in fp8 or fp4, or in int8 beside its scale."""
    scales = [name for name in definition.outputs if SCALE.fullmatch(name)]
    others = [spec.dtype for name, spec in definition.outputs.items() if name not in scales]
    return any(d.startswith(("float8", "float4")) or (d == "int8" and scales) for d in others)


def _has_experts(definition: Definition) -> bool:
    """Whether an op_type or a name says experts, and an output is floating."""
    is_moe = _MOE_OP_TYPE.search(definition.op_type) or _MOE_OP_TYPE.search(definition.name)
    return is_moe is not None and any("float" in spec.dtype for spec in definition.outputs.values())


def _is_recurrent(definition: Definition) -> bool:
    """Whether an op is a recurrence by op_type, or takes a state and returns one."""
    if not all("float" in spec.dtype and spec.shape for spec in definition.outputs.values()):
        return False
    takes, gives = (any(map(STATE.fullmatch, names)) for names in (definition.inputs, definition.outputs))
    return definition.op_type.startswith(_RECURRENT_OP_TYPES) or (takes and gives)


def _is_sparse(definition: Definition) -> bool:
    """Whether an op is tagged as sparse, or is attention over selected keys."""
    if not all(spec.shape is not None and "float" in spec.dtype for spec in definition.outputs.values()):
        return False
    is_named = _SPARSE_OP_TYPES.match(definition.op_type) is not None
    is_tagged = any(tag.startswith("sparse:") for tag in definition.tags)
    has_choice = any(_CHOSEN_KEYS.fullmatch(name) for name in definition.inputs)
    is_attention = bool(re.search("att(entio)?n", f"{definition.op_type} {definition.name}"))
    return is_named or is_tagged or (has_choice and is_attention)


_CRITERIA: Mapping[str, Callable[[Definition], object]] = {
    "sampling": is_sampler,
    "top_k": index_outputs,
    "low_precision": _has_low_precision,
    "moe": _has_experts,
    "state_space": _is_recurrent,
    "sparse_attention": _is_sparse,
    "default": lambda _: True,
}


class BuiltIn(Evaluator):
    """An evaluator of this package."""

    def applies(self, definition: Definition) -> bool:
        """Whether it is chosen for a definition, unless one before it is (`BUILT_IN`)."""
        return bool(_CRITERIA[self.name](definition))


class Default(BuiltIn):
    """Every element of every output must be close to the reference's."""

    name = "default"
    has_one_rule = True

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
    applying = [name for name in evaluator_names()[len(BUILT_IN) :] if _evaluator(name).applies(definition)]
    if len(applying) > 1:
        problem = f"{applying[1]!r} applies to {definition.name!r} too; set `evaluator` to one of them"
        raise EvaluatorUnusable(applying[0], problem)
    built_in = (name for name in BUILT_IN if _CRITERIA[name](definition))
    return _evaluator(applying[0] if applying else next(built_in))


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
