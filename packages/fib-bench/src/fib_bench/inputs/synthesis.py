"""Synthesis of inputs by a table from kinds and names of inputs to makers and roles.

The description of an input goes first, where it states the bounds of values; then the first rule that matches an
input. Floating-point tensors that no specific rule matches are standard normal; such integer tensors are refused. A
rule makes structure, or states which contents are valid: from these both the first values of an input are drawn
(`draw`) and, by the `generator`, those of each timed call. The role decides how an input is distributed and redrawn.

Structure (offsets, lengths, page tables, routing, positions) follows from axes with conventional names. It is made on
the CPU, because makers read it to make more.

Distributions change plain floating-point inputs:

- ``wide``: rows of very different magnitude, evenly spread between bounds that both occur. Kernels without a scale per
  row, with a narrow accumulator or with exponentials that overflow fail.
- ``tiny``: values of about a thousandth, so that an epsilon matters.
- ``zeros_and_ones``: a quarter of the rows is zero, a quarter is one.
- ``shifted``: the mean of each column is 3 or -3. Recurrences whose gates are near zero forget soon; with these gates
  they do not, and kernels that begin in the middle fail.

Source: the names of inputs in public flashinfer-trace definitions, and FlashInfer's documentation of page tables.
"""

from __future__ import annotations

import ast
import enum
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache

import attrs
import torch
from fib_compile.device import torch_dtype
from fib_schema import Definition, DType, TensorSpec
from fib_schema.syntax import parse_expression, parse_source

from .. import recipe
from ..recipe import INTEGER, NORMAL, UNIFORM, Content


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
    DRAWN = "drawn"
    """Rows or elements that are valid if drawn alike: probabilities, keys of length 1, masks, tokens, seeds."""
    FIXED = "fixed"
    """Values that must not change: scalars, rotary caches, integers of unknown meaning."""

    OFFSETS = "offsets"
    """Cumulative lengths of requests (indptr, cu_seqlens): non-decreasing, ending at a total."""
    LENGTHS = "lengths"
    """One length per request: sequence lengths, tokens in the last page."""
    PAGES = "pages"
    """Page, block or slot numbers of a pool; negative numbers are padding."""
    SELECTIONS = "selections"
    """Token slots (page number * page size + position in the page) selected per row; negative numbers are padding."""
    EXPERTS = "experts"
    """Expert numbers per token, different within a token."""
    POSITIONS = "positions"
    """Positions of tokens in their sequences."""
    COUNTS = "counts"
    """Numbers of candidates (top-k)."""
    BYTES = "bytes"
    """Data of int8 or uint8, valid for any byte."""


STRUCTURE_ROLES = frozenset({Role.OFFSETS, Role.LENGTHS, Role.PAGES, Role.SELECTIONS, Role.EXPERTS, Role.POSITIONS})
"""Roles of integers that other inputs are derived from."""


class SynthesisError(Exception):
    """No valid values can be synthesized for an input; the text states the reason."""


@attrs.define
class InputDraft:
    """Inputs of one workload, by name, while they are made and when they are complete."""

    definition: Definition
    axes: dict[str, int]
    """Sizes, also of constant axes; larger than those of the workload where these exclude all offsets of its op."""
    seed: int
    device: torch.device = attrs.field(factory=lambda: torch.device("cpu"))
    distribution: str = "normal"
    values: dict[str, torch.Tensor | int | float | bool | None] = attrs.field(factory=dict)
    synthesized: Sequence[str] = ()
    """Inputs whose blobs are missing, and which are made instead."""

    def generator(self, name: str, device: torch.device | str = "cpu") -> torch.Generator:
        """Return a generator for one input; its seed does not depend on the order of synthesis."""
        position = list(self.definition.inputs).index(name)
        seed = (self.seed + 0x9E3779B97F4A7C15 * (position + 1)) >> 1 & (2**62 - 1)
        return torch.Generator(device).manual_seed(seed)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of an input; () for a scalar."""
        return tuple(self.axes[axis] for axis in self.definition.inputs[name].shape or ())

    def tensor(self, name: str) -> torch.Tensor | None:
        """Return an input that exists and is a tensor, else None."""
        value = self.values.get(name)
        return value if isinstance(value, torch.Tensor) else None


Maker = Callable[[InputDraft, str], Content | torch.Tensor | float]


@attrs.frozen
class SynthesisRule:
    """One row of the table."""

    kind: str  # one of those that `_kinds` returns
    pattern: str  # of the whole name of the input
    make: Maker | Content | float | None
    """Makes the values or states the contents, or is one of them; None if random values are not valid."""
    role: Role
    op_types: tuple[str, ...] = ()  # prefixes of those that the rule applies to; empty for all

    def values(self, draft: InputDraft, name: str) -> Content | torch.Tensor | float:
        """The values of an input, or the contents from which they are drawn; `SynthesisError` if none are valid."""
        if self.make is None:  # random integers are invalid page tables or offsets
            raise SynthesisError(f"no rule makes valid values for integer input {name!r}{_REMEDY}")
        return self.make(draft, name) if callable(self.make) else self.make


# -- makers of structure ------------------------------------------------------------------------

POOL_AXES = (
    "num_pages", "num_blocks", "total_num_pages", "max_num_pages", "pool_size", "state_cache_size",
    "num_slots", "cache_size",
)  # fmt: skip
_LENGTH_AXES = ("max_seq_len", "max_kv_len", "seq_len")
_PAGES_AXES = ("max_num_pages", "max_pages_per_seq", "max_blocks_per_seq", "num_pages")
EXPERT_AXES = ("num_experts", "num_local_experts")
POSITION_AXES = ("max_seq_len", "max_position", "max_positions", "seq_len")
VOCABULARY_AXES = ("vocab_size", "num_embeddings")
_KEY_OFFSETS = re.compile(r"kv_indptr|cu_seqlens_k\w*")
_QUERY_PREFIXES = ("qo", "q_", "cu_seqlens_q")
_MAX_TOP_K = 64  # that is synthesized


def first_axis(axes: Mapping[str, int], *names: str) -> int | None:
    """Return the size of the first of the named axes that exists."""
    return next((axes[name] for name in names if name in axes), None)


def page_size(axes: Mapping[str, int]) -> int:
    """Return the number of tokens per page; 1 if no axis states it."""
    return first_axis(axes, "page_size", "block_size") or 1


def _limit(draft: InputDraft, name: str, what: str, *axes: str) -> int:
    """Return the size of the first of these axes that exists; `SynthesisError` if none does."""
    found = first_axis(draft.axes, *axes)
    if found is None:
        raise SynthesisError(f"no axis ({', '.join(axes)}) states {what} for {name!r}")
    return found


def is_last_page(name: str) -> bool:
    """Return whether an input of lengths counts the tokens in the last pages."""
    return "last_page_len" in name


def is_query_offsets(name: str) -> bool:
    """Return whether an input of offsets has those of queries, which depend on the key offsets."""
    return name.startswith(_QUERY_PREFIXES)


def offsets(draft: InputDraft, name: str) -> torch.Tensor:
    """Make offsets from 0 to the total; queries are no longer than their keys where possible."""
    parts = draft.shape(name)[0] - 1
    total = draft.axes[_total_axis(draft, name)]
    if parts < 0 or (parts == 0 and total):
        raise SynthesisError(f"{parts + 1} offsets cannot end at {total}")
    keys = next((draft.tensor(other) for other in draft.definition.inputs if _KEY_OFFSETS.fullmatch(other)), None)
    limits = None
    if is_query_offsets(name) and keys is not None:
        limits = (keys.diff() * page_size(draft.axes)).tolist()[:parts]
    lengths = split(total, parts, draft.generator(name), limits)
    return torch.tensor([0, *lengths], dtype=torch.int64).cumsum(0)


def split(total: int, parts: int, generator: torch.Generator, limits: Sequence[int] | None = None) -> list[int]:
    """Split a total into random parts of at least 1 where possible, within their limits or equally far beyond them."""
    room = [total] * parts if limits is None else list(limits)
    lengths, left = [0] * parts, total
    for index in range(parts):
        lengths[index] = min(left, room[index], 1)
        left -= lengths[index]
    order = torch.randperm(parts, generator=generator).tolist()
    for weights in (torch.rand(parts, generator=generator).tolist(), [1.0] * parts):
        for index in order:
            share = min(int(left * weights[index]), room[index] - lengths[index])
            lengths[index] += share
            left -= share
    return [length + left // parts + (index < left % parts) for index, length in enumerate(lengths)]


def total_axis(definition: Definition, name: str) -> str | None:
    """Return the axis that a constraint equates with the last offset of an input, or None if none does."""
    total = rf"(?:int\()?{re.escape(name)}\[-1\](?:\.item\(\))?\)?"
    for constraint in definition.constraints:
        found = re.fullmatch(rf"(\w+) == {total}|{total} == (\w+)", ast.unparse(parse_expression(constraint)))
        if found is not None and (axis := found[1] or found[2]) in definition.axes:
            return axis
    return None


def _total_axis(draft: InputDraft, name: str) -> str:
    found = total_axis(draft.definition, name)
    if found is None:
        problem = f"no constraint states the last offset of {name!r}"
        raise SynthesisError(f"{problem}; add 'AXIS == {name}[-1].item()' to the definition")
    return found


def enlarge_totals(draft: InputDraft, names: Sequence[str]) -> None:
    """Enlarge the totals of recorded sizes that are too small for any valid offsets, whose names are given.

    Each request gets a token, each causal query a key, and a pool with requests a page: where sizes exclude that, the
    reference computes little but NaN. Public data sets have many such sizes.
    """
    for name in sorted(names, key=lambda name: not is_query_offsets(name)):
        axis, requests = _total_axis(draft, name), draft.shape(name)[0] - 1
        queries = next((other for other in names if is_query_offsets(other)), None)
        needed = draft.axes[axis] and requests
        if queries not in {None, name} and "causal" in draft.definition.name:
            needed = max(needed, -(-draft.axes[_total_axis(draft, str(queries))] // page_size(draft.axes)))
        _enlarge(draft, axis, needed)
        for pool in POOL_AXES:
            _enlarge(draft, pool, 1 if draft.axes[axis] else 0)


def _enlarge(draft: InputDraft, axis: str, needed: int) -> None:
    """Enlarge an axis, unless it is constant or the size of a recorded input."""
    recorded = (draft.definition.inputs[name].shape or () for name in draft.values)
    if axis in draft.definition.var_axes and not any(axis in shape for shape in recorded):
        draft.axes[axis] = max(draft.axes[axis], needed)


def last_page_lengths(draft: InputDraft, name: str) -> torch.Tensor:
    """Make numbers of tokens in the last pages, large enough that no query is longer than its keys."""
    size = page_size(draft.axes)
    lengths = _integers(draft, name, 1, size)
    pages, queries = draft.tensor("kv_indptr"), draft.tensor("qo_indptr")
    if pages is None or queries is None:
        return lengths
    needed = queries.diff() - (pages.diff() - 1) * size
    count = min(len(needed), len(lengths))
    lengths[:count] = torch.maximum(lengths[:count], needed[:count].clamp(1, size))
    return lengths


def sequence_lengths(draft: InputDraft, name: str) -> torch.Tensor:
    """Make sequence lengths between 1 and the longest sequence that the axes allow."""
    limit = first_axis(draft.axes, *_LENGTH_AXES)
    if limit is None:
        names = (*_LENGTH_AXES, *_PAGES_AXES)
        limit = _limit(draft, name, "the longest sequence", *names) * page_size(draft.axes)
    return _integers(draft, name, 1, limit)


def may_be_zero(definition: Definition) -> frozenset[str]:
    """Return the lengths that may be zero by a constraint, ``seq_lens.min().item() >= 0``: requests may be empty."""
    named = [name for name in definition.inputs if f"{name}.min().item() >= 0" in definition.constraints]
    return frozenset(name for name in named if role_of(definition, name) is Role.LENGTHS)


def page_numbers(draft: InputDraft, name: str) -> torch.Tensor:
    """Make page numbers, all different if the pool has enough pages."""
    pool, count = _limit(draft, name, "the number of pages", *POOL_AXES), math.prod(draft.shape(name))
    if count and not pool:
        raise SynthesisError(f"{count} page numbers are needed, the pool has 0 pages")
    if count <= pool:
        return torch.randperm(pool, generator=draft.generator(name))[:count]
    return _integers(draft, name, 0, pool - 1)


def selected_slots(draft: InputDraft, name: str) -> torch.Tensor:
    """Make different token slots per row; -1 pads rows if the cache has too few slots."""
    rows, width = draft.shape(name)
    pool = (first_axis(draft.axes, "num_pages") or 0) * page_size(draft.axes)
    values, generator = torch.full((rows, width), -1, dtype=torch.int64), draft.generator(name)
    for row in range(rows):
        chosen = torch.randperm(pool, generator=generator)[:width]
        values[row, : len(chosen)] = chosen
    return values


def expert_ids(draft: InputDraft, name: str) -> torch.Tensor:
    """Make different experts per token, packed with their bfloat16 weights if the definition says so."""
    experts, generator = _limit(draft, name, "the number of experts", *EXPERT_AXES), draft.generator(name)
    tokens, chosen = draft.shape(name)
    ids = torch.rand((tokens, experts), generator=generator).topk(chosen, dim=-1).indices
    if not is_packed_with_weights(draft.definition.inputs[name].description):
        return ids
    weights = torch.softmax(torch.randn((tokens, chosen), generator=generator), dim=-1)
    bits = weights.to(torch.bfloat16).view(torch.int16).to(torch.int64) & 0xFFFF
    return (ids << 16) | bits


def is_packed_with_weights(description: str | None) -> bool:
    """Return whether a description of expert ids says that the low 16 bits are a routing weight."""
    return "pack" in (description or "").lower()


def positions(draft: InputDraft, name: str) -> torch.Tensor:
    """Make uniform positions."""
    return _integers(draft, name, 0, _limit(draft, name, "the number of positions", *POSITION_AXES) - 1)


def _integers(draft: InputDraft, name: str, low: int, high: int) -> torch.Tensor:
    return draw(Content(INTEGER, first=low, last=high), draft.shape(name), torch.int64, draft.generator(name))


def top_k_values(draft: InputDraft, _: str) -> Content:
    """Make uniform values of top-k."""
    return Content(INTEGER, first=1, last=min(draft.axes.get("vocab_size") or _MAX_TOP_K, _MAX_TOP_K))


def token_ids(draft: InputDraft, name: str) -> Content:
    """Make uniform token ids."""
    return Content(INTEGER, last=_limit(draft, name, "the vocabulary size", *VOCABULARY_AXES) - 1)


def weight(draft: InputDraft, name: str) -> Content:
    """Make normal values; those of matrices are divided by the root of the fan-in, so that sums stay near 1."""
    shape = draft.shape(name)
    is_fp8 = draft.definition.inputs[name].dtype.startswith("float8")  # fp8 cannot represent values that small
    return Content(NORMAL, scale=1.0 if len(shape) < 2 or is_fp8 else _root(shape[-1]))


def block_scale(draft: InputDraft, name: str) -> Content:
    """Make positive dequantization scales; those of weights keep sums near 1."""
    base = name.removesuffix("_scale")
    is_weight = "weight" in base and base in draft.definition.inputs
    return _scales(_root(draft.shape(base)[-1]) if is_weight else 1.0)


def expert_scale(draft: InputDraft, name: str) -> Content:
    """Make one dequantization scale per expert, for sums over the hidden or intermediate axis."""
    return _scales(_root(first_axis(draft.axes, "intermediate_size" if "output2" in name else "hidden_size") or 1))


def _scales(mean: float) -> Content:
    return Content(UNIFORM, low=0.5 * mean, high=1.5 * mean)


def _root(size: int) -> float:
    return 1 / math.sqrt(max(size, 1))


def rotary_cache(draft: InputDraft, name: str) -> torch.Tensor:
    """Make a rotary cache: cosines in the first half of each row, sines in the second. Nothing is random."""
    length, width = draft.shape(name)
    frequencies = 10_000.0 ** -(torch.arange(0, width, 2, dtype=torch.float64, device=draft.device) / width)
    angles = torch.outer(torch.arange(length, dtype=torch.float64, device=draft.device), frequencies)
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


def softmax_scale(draft: InputDraft, _name: str) -> float:
    """Return 1 / sqrt(head dimension); for MLA the head dimension before absorption."""
    if first_axis(draft.axes, "head_dim_ckv"):
        return _root(128 + (first_axis(draft.axes, "head_dim_kpe") or 64))
    return _root(first_axis(draft.axes, "head_dim", "head_dim_qk", "head_size") or 128)


_REMEDY = "; state their range as its description ('uniform values from 0 to 99'), a generator, or a blob"
_UNIFORM = re.compile(r"uniform values from (-?[\d.e+-]+) to (-?[\d.e+-]+)")
_REQUEST_NUMBERS = r"(batch|request|req|seq|sequence|token|qo?)_indices"
"""Names of request or token numbers, which are not page numbers and are derived from other inputs."""
RULES: tuple[SynthesisRule, ...] = (
    SynthesisRule("integer", r".*indptr.*|cu_seq_?lens.*|.*_offsets|.*start_loc.*", offsets, Role.OFFSETS),
    SynthesisRule("integer", r".*last_page_len.*", last_page_lengths, Role.LENGTHS),
    SynthesisRule("integer", r"sparse_indices|topk_indices", selected_slots, Role.SELECTIONS),
    SynthesisRule("integer", _REQUEST_NUMBERS, None, Role.FIXED),
    SynthesisRule("integer", r".*(indices|block_tables?|page_table|slot_ids).*", page_numbers, Role.PAGES),
    SynthesisRule("integer", r"topk_ids|expert_ids|topk_idx", expert_ids, Role.EXPERTS),
    SynthesisRule("integer", r".*(seq_?lens?|lengths?|_lens?)", sequence_lengths, Role.LENGTHS),
    SynthesisRule("integer", r".*positions?|pos_ids|.*position_ids", positions, Role.POSITIONS),
    SynthesisRule("integer", r"top_?k.*", top_k_values, Role.COUNTS),
    SynthesisRule("integer", r".*(token|input)_ids", token_ids, Role.DRAWN),
    SynthesisRule("integer", r"(.*_)?seeds?", Content(INTEGER, last=2**31 - 1), Role.DRAWN),
    SynthesisRule("int8", r".*", Content(INTEGER, first=-128, last=127), Role.BYTES),
    SynthesisRule("uint8", r".*", Content(INTEGER, first=0, last=255), Role.BYTES),
    SynthesisRule("integer", r".*", None, Role.FIXED),
    SynthesisRule("bool", r".*", Content(recipe.MASK, high=0.5, first=1), Role.DRAWN),
    SynthesisRule("scalar", r".*(eps|epsilon)", 1e-06, Role.FIXED),
    SynthesisRule("scalar", r"sm_scale|softmax_scale|scale|attn_scale", softmax_scale, Role.FIXED),
    SynthesisRule("scalar", r"routed_scaling_factor", 2.5, Role.FIXED),
    SynthesisRule("scalar", r".*", 1.0, Role.FIXED),
    SynthesisRule("integer scalar", r"local_expert_offset", 0, Role.FIXED),
    SynthesisRule("packed", r"(?!.*(probs?|scales?|cos_sin.*)$).*", Content(recipe.BYTES), Role.PLAIN),
    SynthesisRule("float", r".*probs?", Content(recipe.SHARES), Role.DRAWN),
    SynthesisRule("float", r"top_?p.*|min_?p.*", Content(UNIFORM, low=0.1, high=0.95), Role.FACTORS),
    SynthesisRule("float", r"temperatures?", Content(UNIFORM, low=0.5, high=1.5), Role.FACTORS),
    SynthesisRule("float", r".*cos_sin.*", rotary_cache, Role.FIXED),
    SynthesisRule("float", r"[qk]", Content(recipe.DIRECTION), Role.DRAWN, ("gdn", "gated_delta")),
    SynthesisRule("float", r"A", Content(UNIFORM, low=-16.0, high=-1.0), Role.FACTORS, ("mamba",)),
    SynthesisRule("float", r"A_log", Content(UNIFORM, low=0.0, high=math.log(16)), Role.FACTORS),
    SynthesisRule("float", r"output\d_scales.*", expert_scale, Role.FACTORS),
    SynthesisRule("float", r".*scales?", block_scale, Role.FACTORS),
    SynthesisRule("float", r".*weights?", weight, Role.WEIGHTS),
    SynthesisRule("float", r"(rout(er|ing)|gating)_.*|.*correction_bias", Content(NORMAL), Role.SCORES),
    SynthesisRule("float", r".*logits", Content(NORMAL), Role.SCORES, ("moe",)),
    SynthesisRule("float", r".*logits", Content(NORMAL, scale=3.0), Role.PLAIN, ("sampling",)),  # as of models
    SynthesisRule("float", r".*", Content(NORMAL), Role.PLAIN),
)
"""The table, most specific rules first."""


def find_rule(definition: Definition, name: str) -> SynthesisRule:
    """Return the rule for one input of a definition; `SynthesisError` if no rule matches."""
    spec = definition.inputs[name]
    kinds = _kinds(spec)
    if bounds := _UNIFORM.fullmatch(spec.description or ""):
        low, high = map(float, bounds.groups())
        if "float" in kinds:
            return SynthesisRule("float", name, Content(UNIFORM, low=low, high=high), Role.FACTORS)
        if "integer" in kinds:
            return SynthesisRule("integer", name, Content(INTEGER, first=int(low), last=int(high)), Role.DRAWN)
    for rule in RULES:
        is_of_type = definition.op_type.startswith(rule.op_types or "")
        if is_of_type and rule.kind in kinds and re.fullmatch(rule.pattern, name):
            return rule
    raise SynthesisError(f"no rule makes valid values for {kinds[0]} input {name!r}{_REMEDY}")


def uniform_description(low: float, high: float) -> str:
    """The description of an input whose values are uniform."""
    return f"uniform values from {low:g} to {high:g}"


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
    if spec.dtype in {DType.INT8, DType.UINT8}:
        return "integer", str(spec.dtype)
    return ("float",) if "float" in spec.dtype else ("integer",)


def synthesis_order(definition: Definition, names: Iterable[str]) -> list[str]:
    """Sort inputs so that each follows those that its maker reads: key offsets, query offsets, integers, all others."""

    def rank(name: str) -> int:
        if not definition.inputs[name].is_integer:
            return 3
        return int(is_query_offsets(name)) if role_of(definition, name) is Role.OFFSETS else 2

    return sorted(names, key=rank)


def synthesize_input(draft: InputDraft, name: str) -> None:
    """Make one input and add it to the draft; `SynthesisError` if no rule makes valid values."""
    spec, shape = draft.definition.inputs[name], draft.shape(name)
    text = f"{spec.dtype} of shape {list(shape)}"
    try:
        value = find_rule(draft.definition, name).values(draft, name)
        if isinstance(value, Content):
            generator = draft.generator(name, draft.device)
            value = draw(value, shape, torch_dtype(spec.dtype), generator)
            if is_distributable(draft.definition, name):
                distribute(value, draft.distribution, generator, wide_exponents(draft.definition))
        elif isinstance(value, torch.Tensor):
            value = _cast(value, torch_dtype(spec.dtype)).reshape(shape)
    except torch.OutOfMemoryError as error:
        raise SynthesisError(f"out of memory for {text}: {error}") from error
    except (LookupError, RuntimeError, ValueError) as error:
        raise SynthesisError(f"the rule for its name cannot make {text}: {error}; give it as a blob") from error
    draft.values[name] = value


# -- values ------------------------------------------------------------------------------------

WIDE_EXPONENTS = (-4.0, 5.0)  # bounds of log2 of the factors of rows
WIDE_EXPONENTS_HALF = (-6.0, 2.0)
"""The bounds if float16 takes part: a sum over 28,672 products of two such rows stays below 65,504."""
_TINY = 1e-3
_TINY_ONE_BYTE = 2.0**-5  # a thousandth is below the smallest number of float8_e4m3fn
_SHIFT = 3.0  # a sigmoid of it is 0.95: a recurrence still sees a third of what was 24 steps before
_CHUNK_ELEMENTS = 1 << 25  # of steps with temporary tensors


def draw(content: Content, shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Draw values on the device of a generator, because drawing a large weight on a CPU takes seconds."""
    device = generator.device
    match content.kind:
        case recipe.NORMAL:
            values = torch.empty(shape, dtype=dtype, device=device)
            if dtype.itemsize > 1:
                return values.normal_(0.0, content.scale, generator=generator)
            for part in torch.split(values.view(-1), _CHUNK_ELEMENTS):  # these are converted from float32
                part.copy_(torch.randn(part.shape, generator=generator, device=device).mul_(content.scale))
            return values
        case recipe.INTEGER:
            low, high = content.first, content.last
            if high < low and 0 not in shape:
                raise SynthesisError(f"no value is valid: the bounds are {low} and {high}")
            values = torch.randint(low, max(high, low) + 1, shape, generator=generator, device=device)
        case recipe.BYTES:
            return torch.empty(shape, dtype=torch.uint8, device=device).random_(0, 256, generator=generator).view(dtype)
        case recipe.SHARES:
            values = torch.softmax(3 * torch.randn(shape, generator=generator, device=device), dim=-1)
        case recipe.DIRECTION:
            values = torch.nn.functional.normalize(torch.randn(shape, generator=generator, device=device), dim=-1)
        case _:
            values = torch.rand(shape, generator=generator, device=device)
            if content.kind == UNIFORM:
                values = values * (content.high - content.low) + content.low
            else:
                values = values < content.high
                if values.numel():
                    values[..., 0] = True
    return _cast(values, dtype)


def distribute(
    values: torch.Tensor, distribution: str, generator: torch.Generator, exponents: tuple[float, float] = WIDE_EXPONENTS
) -> None:
    """Convert standard normal values to a distribution, in place and without synchronizing the device."""
    if distribution == "normal" or not values.numel():
        return
    rows = values.view(-1, values.shape[-1]) if values.dim() > 1 else values.view(-1, 1)
    factors, offsets = _factors(distribution, rows, generator, exponents)
    step = max(1, _CHUNK_ELEMENTS // rows.shape[1])
    parts = (torch.split(tensor, step) for tensor in (rows, factors, offsets.expand(len(rows), -1)))
    for part, factor, offset in zip(*parts, strict=True):
        part.copy_(_cast(part.float() * factor + offset, values.dtype))


def _factors(
    distribution: str, rows: torch.Tensor, generator: torch.Generator, exponents: tuple[float, float]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the factor of each row, ``[rows, 1]``, and the offset of each row or column."""
    if distribution == "shifted":
        signs = torch.rand((1, rows.shape[1]), generator=generator, device=rows.device).lt(0.5)
        return torch.ones((len(rows), 1), device=rows.device), torch.where(signs, -_SHIFT, _SHIFT)
    drawn = torch.rand((len(rows), 1), generator=generator, device=rows.device)
    if distribution == "wide":
        low, high = exponents
        share = drawn.argsort(dim=0) / (len(rows) - 1) if len(rows) > 1 else drawn  # both bounds always occur
        return torch.exp2(share * (high - low) + low), torch.zeros_like(drawn)
    if distribution == "tiny":
        return torch.full_like(drawn, _TINY_ONE_BYTE if rows.dtype.itemsize == 1 else _TINY), torch.zeros_like(drawn)
    kinds = drawn.argsort(dim=0) % 4  # a random order: even few rows contain both kinds; a single row becomes 1
    return (kinds > 1).float(), (kinds == 0).float()


def wide_exponents(definition: Definition) -> tuple[float, float]:
    """Return the bounds of log2 of the factors of rows, which are lower if float16 takes part in the computation."""
    specs = (*definition.inputs.values(), *definition.outputs.values())
    return WIDE_EXPONENTS_HALF if any(spec.dtype == DType.FLOAT16 for spec in specs) else WIDE_EXPONENTS


def _cast(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Convert to a dtype; numbers beyond the range of a one-byte floating dtype would become NaN."""
    if dtype.is_floating_point and dtype.itemsize == 1:
        values = values.clamp_(-torch.finfo(dtype).max, torch.finfo(dtype).max)
    return values.to(dtype)


_SELECTS = frozenset({"topk", "argmax", "argmin", "argsort", "sort"})
"""Calls by which a reference selects elements by their values; what equal ones give is ambiguous."""
_DRAWS = frozenset({
    "multinomial", "rand", "rand_like", "randint", "randn", "bernoulli", "bernoulli_", "exponential_", "uniform_",
    "normal_", "random_", "geometric_", "Categorical", "sample", "gumbel_softmax",
})  # fmt: skip
_SHAPE_ATTRIBUTES = frozenset({"shape", "ndim", "dtype", "size", "dim", "numel"})


def is_distributable(definition: Definition, name: str) -> bool:
    """Return whether a distribution may change an input: its values are plain, and equal ones are not ambiguous.

    Rows of ones contain ties: a kernel may resolve that of a selection either way, a sampler may draw either token.
    """
    spec = definition.inputs[name]
    if spec.shape is None or spec.dtype == DType.FLOAT4_E2M1 or role_of(definition, name) is not Role.PLAIN:
        return False
    has_integers = any(output.is_integer for output in definition.outputs.values())
    return is_sampler(definition) or not (has_integers or is_selected(definition, name))


def is_sampler(definition: Definition) -> bool:
    """Return whether a reference draws random numbers and returns only integers."""
    return bool(_DRAWS & calls_in(definition.reference)) and all(out.is_integer for out in definition.outputs.values())


@cache
def calls_in(code: str) -> frozenset[str]:
    """Return the names of the functions and methods that a reference calls."""
    try:
        nodes = [*ast.walk(parse_source(code))]
    except SyntaxError:
        return frozenset()  # building the reference reports it
    return frozenset(ast.unparse(node.func).rpartition(".")[2] for node in nodes if isinstance(node, ast.Call))


def is_selected(definition: Definition, name: str) -> bool:
    """Return whether the values of an input may reach a selection by values."""
    return name in _selecting(definition.reference, frozenset(definition.inputs))


@cache
def _selecting(reference: str, inputs: frozenset[str]) -> frozenset[str]:
    """Return the inputs whose values may reach a selection: a name depends on all that is ever assigned to it."""
    sources: dict[str, set[str]] = {}
    reached: set[str] = set()
    parameters: set[str] = set()
    for node in ast.walk(ast.parse(reference)):
        changed, values = _assigned(node)
        for name in changed:
            sources.setdefault(name, set()).update(values)
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in _SELECTS:
            reached |= names_read_by_value(node)
        if isinstance(node, ast.FunctionDef | ast.Lambda) and getattr(node, "name", "") != "run":
            parameters |= {argument.arg for argument in node.args.args}
    pending = [*reached]
    while pending:
        found = sources.get(pending.pop(), set()) - reached
        reached |= found
        pending += found
    return inputs if reached & parameters else inputs & reached  # of helpers it is not known what they get


def _assigned(node: ast.AST) -> tuple[set[str], set[str]]:
    """Return the names that a node changes, and those whose values they are changed to."""
    match node:
        case ast.Assign(targets=changed, value=value):
            return set().union(*map(names_read_by_value, changed)), names_read_by_value(value)
        case ast.AugAssign(target=target, value=value) | ast.AnnAssign(target=target, value=ast.expr() as value):
            return names_read_by_value(target), names_read_by_value(value)
        case ast.NamedExpr(target, value) | ast.For(target, iter=value) | ast.comprehension(target, iter=value):
            return names_read_by_value(target), names_read_by_value(value)
        case ast.Expr(value=value):  # a call may change whatever it is given
            return names_read_by_value(value), names_read_by_value(value)
    return set(), set()


def names_read_by_value(node: ast.AST) -> set[str]:
    """Return the names whose values, rather than shapes, an expression reads."""
    match node:
        case ast.Attribute(value=ast.Name(), attr=attr) if attr in _SHAPE_ATTRIBUTES:
            return set()
        case ast.Call(func=ast.Name(id="len"), args=[ast.Name()]):
            return set()
        case ast.Compare(left=ast.Name(), ops=[ast.Is() | ast.IsNot()]):
            return set()
        case ast.Name(id=name):
            return {name}
    return set().union(*map(names_read_by_value, ast.iter_child_nodes(node)))
