"""Synthesis rules: a table from kinds and names of inputs to makers and roles.

The first rule that matches an input applies. Floating-point tensors that no specific rule matches
are standard normal. Integer tensors that no specific rule matches are refused.
"""

from __future__ import annotations

import re

import attrs
from fib_schema import Definition, DType, TensorSpec

from . import float_values, index_values
from .draft import Maker, SynthesisError
from .roles import Role


@attrs.frozen
class Rule:
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


def find_rule(definition: Definition, name: str) -> Rule:
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
RULES: tuple[Rule, ...] = (
    Rule("integer", r".*indptr.*|cu_seq_?lens.*|.*_offsets|.*start_loc.*", index_values.offsets, Role.OFFSETS),
    Rule("integer", r".*last_page_len.*", index_values.last_page_lengths, Role.LENGTHS),
    Rule("integer", r"sparse_indices|topk_indices", index_values.selected_slots, Role.SELECTIONS),
    Rule("integer", _REQUEST_NUMBERS, float_values.unknown_integers, Role.FIXED),
    Rule("integer", r".*slot_mapping.*", index_values.page_numbers, Role.SLOTS),
    Rule("integer", r".*(indices|block_tables?|page_table|slot_ids).*", index_values.page_numbers, Role.PAGES),
    Rule("integer", r"topk_ids|expert_ids|topk_idx", index_values.expert_ids, Role.EXPERTS),
    Rule("integer", r".*(seq_?lens?|lengths?|_lens?)", index_values.sequence_lengths, Role.LENGTHS),
    Rule("integer", r".*positions?|pos_ids|.*position_ids", index_values.positions, Role.POSITIONS),
    Rule("integer", r"top_?k.*", index_values.top_k_values, Role.COUNTS),
    Rule("integer", r".*(token|input)_ids", index_values.token_ids, Role.TOKENS),
    Rule("integer", r"(.*_)?seeds?", index_values.seeds, Role.SEEDS),
    Rule("int8", r".*", float_values.int8_data, Role.BYTES),
    Rule("integer", r".*", float_values.unknown_integers, Role.FIXED),
    Rule("bool", r".*", float_values.mask, Role.FIXED),
    Rule("scalar", r".*(eps|epsilon)", float_values.constant(1e-6), Role.FIXED),
    Rule("scalar", r"sm_scale|softmax_scale|scale|attn_scale", float_values.softmax_scale, Role.FIXED),
    Rule("scalar", r"routed_scaling_factor", float_values.constant(2.5), Role.FIXED),
    Rule("scalar", r".*", float_values.constant(1.0), Role.FIXED),
    Rule("integer scalar", r"local_expert_offset", float_values.constant(0), Role.FIXED),
    Rule("packed", r"(?!.*(probs?|scales?|cos_sin.*)$).*", float_values.fp4_pairs, Role.PLAIN),
    Rule("float", r".*probs?", float_values.probabilities, Role.ROWS),
    Rule("float", r"top_?p.*|min_?p.*", float_values.uniform(0.1, 0.95), Role.FACTORS),
    Rule("float", r"temperatures?", float_values.uniform(0.5, 1.5), Role.FACTORS),
    Rule("float", r".*cos_sin.*", float_values.rotary_cache, Role.FIXED),
    Rule("float", r"[qk]", float_values.normalized, Role.ROWS, ("gdn", "gated_delta")),
    Rule("float", r"A", float_values.decay, Role.FACTORS, ("mamba",)),
    Rule("float", r"A_log", float_values.log_decay, Role.FACTORS),
    Rule("float", r"output\d_scales.*", float_values.expert_scale, Role.FACTORS),
    Rule("float", r".*scales?", float_values.block_scale, Role.FACTORS),
    Rule("float", r".*weights?", float_values.weight, Role.WEIGHTS),
    Rule("float", r"(rout(er|ing)|gating)_.*|.*correction_bias", float_values.normal, Role.SCORES),
    Rule("float", r".*logits", float_values.normal, Role.SCORES, ("moe",)),
    Rule("float", r".*", float_values.normal, Role.PLAIN),
)
"""The table, most specific rules first."""
