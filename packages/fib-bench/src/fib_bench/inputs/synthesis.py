"""Synthesis of single inputs by a table from kinds and names of inputs to makers and roles.

The first rule that matches an input applies. Floating-point tensors that no specific rule matches are standard normal;
such integer tensors are refused. The role of an input decides how a distribution applies, how fresh values are mixed
(`variation`) and how integers are redrawn (`redrawing`). Index inputs are made on the CPU, all others on the device.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable

import attrs
import torch
from fib_schema import Definition, DType, TensorSpec

from . import makers
from .makers import InputDraft, Maker, SynthesisError, clamp_to_range, distribute, is_query_offsets, tensor_dtype


class Role(enum.Enum):
    """Meaning of the values of an input."""

    PLAIN = "plain"
    """Numbers of moderate size: activations, caches, states."""
    WEIGHTS = "weights"
    """Plain numbers scaled so that sums stay near 1."""
    SCORES = "scores"
    """Numbers that select experts: ties are ambiguous, and the rows determine the load of each expert."""
    FACTORS = "factors"
    """Numbers that are valid one by one: scales, decays, thresholds, temperatures."""
    ROWS = "rows"
    """Rows that are valid as a whole, in any order of their elements: probabilities, keys of length 1."""
    FIXED = "fixed"
    """Values that must not change: masks, scalars, rotary caches, integers of unknown meaning."""

    OFFSETS = "offsets"
    """Cumulative lengths of requests (indptr, cu_seqlens): non-decreasing, ending at a total."""
    LENGTHS = "lengths"
    """One length per request: sequence lengths, tokens in the last page."""
    PAGES = "pages"
    """Page, block or slot numbers of a pool; negative numbers are padding."""
    SLOTS = "slots"
    """Token slots of a paged cache: page number * page size + position in the page."""
    SELECTIONS = "selections"
    """Token slots of a paged cache selected per row (sparse attention); negative numbers are padding."""
    EXPERTS = "experts"
    """Expert numbers per token, different within a token."""
    POSITIONS = "positions"
    """Positions of tokens in their sequences."""
    COUNTS = "counts"
    """Numbers of candidates (top-k)."""
    TOKENS = "tokens"
    """Token numbers of a vocabulary."""
    SEEDS = "seeds"
    """Seeds of random number generators: any non-negative integer."""
    BYTES = "bytes"
    """int8 data, valid for any byte."""

    @property
    def is_index(self) -> bool:
        """Whether the values are structural integers, which other inputs are derived from."""
        return self in _INDEX_ROLES

    @property
    def is_data(self) -> bool:
        """Whether the values are integers that are valid one by one, whatever the structure of the call is."""
        return self in _DATA_ROLES


_INDEX_ROLES = frozenset(
    {
        Role.OFFSETS, Role.LENGTHS, Role.PAGES, Role.SLOTS, Role.SELECTIONS, Role.EXPERTS, Role.POSITIONS,
        Role.COUNTS, Role.TOKENS, Role.SEEDS,
    }
)  # fmt: skip
_DATA_ROLES = frozenset({Role.COUNTS, Role.TOKENS, Role.SEEDS, Role.BYTES})


@attrs.frozen
class SynthesisRule:
    """One row of the table.

    Args:
        kind: ``integer``, ``int8``, ``bool``, ``float``, ``packed`` (two fp4 values per byte), ``scalar`` or
            ``integer scalar``.
        pattern: Regular expression for the whole name of the input.
        make: Makes the values.
        role: Meaning of the values.
        op_types: Prefixes of the op_types that the rule applies to; empty for all.
    """

    kind: str
    pattern: str
    make: Maker
    role: Role
    op_types: tuple[str, ...] = ()

    @property
    def is_distributable(self) -> bool:
        """Whether a distribution may change the values."""
        return self.role is Role.PLAIN and self.kind == "float"


def find_rule(definition: Definition, name: str) -> SynthesisRule:
    """Return the rule for one input of a definition.

    Raises:
        SynthesisError: No rule matches.
    """
    kinds = _kinds(definition.inputs[name])
    for rule in RULES:
        if rule.op_types and not definition.op_type.startswith(rule.op_types):
            continue
        if rule.kind in kinds and re.fullmatch(rule.pattern, name):
            return rule
    text = (
        f"no rule makes valid values for {kinds[0]} input {name!r} of op_type "
        f"{definition.op_type!r}; give it as a blob or a scalar in the workload"
    )
    raise SynthesisError(text)


def role_of(definition: Definition, name: str) -> Role:
    """Return the role of one input of a definition; `Role.FIXED` if no rule matches."""
    try:
        return find_rule(definition, name).role
    except SynthesisError:
        return Role.FIXED


def _kinds(spec: TensorSpec) -> tuple[str, ...]:
    if spec.shape is None:
        return ("integer scalar",) if spec.is_integer else ("scalar",)
    if spec.dtype == DType.FLOAT4_E2M1:
        return ("packed",)
    if spec.dtype == DType.BOOL:
        return ("bool",)
    if spec.dtype == DType.INT8:
        return "integer", "int8"
    return ("integer",) if spec.is_integer else ("float",)


_REQUEST_NUMBERS = r"(batch|request|req|seq|sequence|token|qo?)_indices"
"""Names of request or token numbers, which are not page numbers and are derived from other inputs."""
RULES: tuple[SynthesisRule, ...] = (
    SynthesisRule("integer", r".*indptr.*|cu_seq_?lens.*|.*_offsets|.*start_loc.*", makers.offsets, Role.OFFSETS),
    SynthesisRule("integer", r".*last_page_len.*", makers.last_page_lengths, Role.LENGTHS),
    SynthesisRule("integer", r"sparse_indices|topk_indices", makers.selected_slots, Role.SELECTIONS),
    SynthesisRule("integer", _REQUEST_NUMBERS, makers.unknown_integers, Role.FIXED),
    SynthesisRule("integer", r".*slot_mapping.*", makers.page_numbers, Role.SLOTS),
    SynthesisRule("integer", r".*(indices|block_tables?|page_table|slot_ids).*", makers.page_numbers, Role.PAGES),
    SynthesisRule("integer", r"topk_ids|expert_ids|topk_idx", makers.expert_ids, Role.EXPERTS),
    SynthesisRule("integer", r".*(seq_?lens?|lengths?|_lens?)", makers.sequence_lengths, Role.LENGTHS),
    SynthesisRule("integer", r".*positions?|pos_ids|.*position_ids", makers.positions, Role.POSITIONS),
    SynthesisRule("integer", r"top_?k.*", makers.top_k_values, Role.COUNTS),
    SynthesisRule("integer", r".*(token|input)_ids", makers.token_ids, Role.TOKENS),
    SynthesisRule("integer", r"(.*_)?seeds?", makers.seeds, Role.SEEDS),
    SynthesisRule("int8", r".*", makers.int8_data, Role.BYTES),
    SynthesisRule("integer", r".*", makers.unknown_integers, Role.FIXED),
    SynthesisRule("bool", r".*", makers.mask, Role.FIXED),
    SynthesisRule("scalar", r".*(eps|epsilon)", makers.constant(1e-6), Role.FIXED),
    SynthesisRule("scalar", r"sm_scale|softmax_scale|scale|attn_scale", makers.softmax_scale, Role.FIXED),
    SynthesisRule("scalar", r"routed_scaling_factor", makers.constant(2.5), Role.FIXED),
    SynthesisRule("scalar", r".*", makers.constant(1.0), Role.FIXED),
    SynthesisRule("integer scalar", r"local_expert_offset", makers.constant(0), Role.FIXED),
    SynthesisRule("packed", r"(?!.*(probs?|scales?|cos_sin.*)$).*", makers.fp4_pairs, Role.PLAIN),
    SynthesisRule("float", r".*probs?", makers.probabilities, Role.ROWS),
    SynthesisRule("float", r"top_?p.*|min_?p.*", makers.Uniform(0.1, 0.95), Role.FACTORS),
    SynthesisRule("float", r"temperatures?", makers.Uniform(0.5, 1.5), Role.FACTORS),
    SynthesisRule("float", r".*cos_sin.*", makers.rotary_cache, Role.FIXED),
    SynthesisRule("float", r"[qk]", makers.normalized, Role.ROWS, ("gdn", "gated_delta")),
    SynthesisRule("float", r"A", makers.decay, Role.FACTORS, ("mamba",)),
    SynthesisRule("float", r"A_log", makers.log_decay, Role.FACTORS),
    SynthesisRule("float", r"output\d_scales.*", makers.expert_scale, Role.FACTORS),
    SynthesisRule("float", r".*scales?", makers.block_scale, Role.FACTORS),
    SynthesisRule("float", r".*weights?", makers.weight, Role.WEIGHTS),
    SynthesisRule("float", r"(rout(er|ing)|gating)_.*|.*correction_bias", makers.normal, Role.SCORES),
    SynthesisRule("float", r".*logits", makers.normal, Role.SCORES, ("moe",)),
    SynthesisRule("float", r".*", makers.normal, Role.PLAIN),
)
"""The table, most specific rules first."""


def synthesis_order(definition: Definition, names: Iterable[str]) -> list[str]:
    """Sort inputs so that each follows those that its maker reads.

    Key offsets precede query offsets, offsets precede other integers, and integers precede all
    other inputs.
    """

    def rank(name: str) -> int:
        if not definition.inputs[name].is_integer:
            return 3
        if role_of(definition, name) is not Role.OFFSETS:
            return 2
        return int(is_query_offsets(name))

    return sorted(names, key=rank)


def synthesize_input(draft: InputDraft, name: str) -> None:
    """Make one input and add it to the draft.

    Raises:
        SynthesisError: No rule makes valid values.
    """
    spec = draft.spec(name)
    rule = find_rule(draft.definition, name)
    shape = f"{spec.dtype} of shape {list(draft.shape(name))}"
    generator = draft.generator(name, torch.device("cpu") if rule.role.is_index else draft.device)
    try:
        value = rule.make(draft, name, generator)
        if isinstance(value, torch.Tensor):
            value = _cast(value, spec).reshape(draft.shape(name))
            if rule.is_distributable:
                distribute(value, draft.distribution, generator, is_half=has_half(draft.definition))
    except torch.OutOfMemoryError as error:
        raise SynthesisError(f"out of memory for {shape}: {error}") from error
    except (LookupError, RuntimeError, ValueError) as error:
        text = f"the rule for inputs of this name cannot make {shape}: {error}; give it as a blob"
        raise SynthesisError(text) from error
    draft.values[name] = value


def has_half(definition: Definition) -> bool:
    """Return whether float16 takes part in the computation."""
    return any(spec.dtype == DType.FLOAT16 for spec in (*definition.inputs.values(), *definition.outputs.values()))


def _cast(value: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    dtype = tensor_dtype(spec)
    return value if value.dtype == dtype else clamp_to_range(value, dtype).to(dtype)
