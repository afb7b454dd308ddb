"""Makers of structure, which follows from the axes of a call, and the draft that all makers fill.

A maker is a function that takes a draft and the name of an input and returns its value, or the `Content` from which
its values are drawn. Makers may read inputs that the draft already contains. Structure (offsets, lengths, page tables,
routing, positions) is made on the CPU, because makers read it to make more; the bounds of its values follow from axes
with conventional names.

Source: the input names of the public flashinfer-trace definitions, and FlashInfer's documentation
of page tables and index pointers.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Mapping, Sequence

import attrs
import torch
from fib_compile.device import torch_dtype
from fib_schema import Definition, TensorSpec
from fib_schema.syntax import parse_expression

from ..recipe import INTEGER, NORMAL, UNIFORM, Content


class SynthesisError(Exception):
    """No valid values can be synthesized for an input; the text states the reason."""


@attrs.define
class InputDraft:
    """Incomplete inputs of one workload, by name; the sizes are those of all axes, constant ones included."""

    definition: Definition
    axes: dict[str, int]
    seed: int
    device: torch.device = attrs.field(factory=lambda: torch.device("cpu"))
    distribution: str = "normal"
    values: dict[str, torch.Tensor | int | float | bool | None] = attrs.field(factory=dict)

    def generator(self, name: str, device: torch.device | str = "cpu") -> torch.Generator:
        """Return a generator for one input; its seed does not depend on the order of synthesis."""
        position = list(self.definition.inputs).index(name)
        seed = (self.seed + 0x9E3779B97F4A7C15 * (position + 1)) >> 1 & (2**62 - 1)
        return torch.Generator(device).manual_seed(seed)

    def spec(self, name: str) -> TensorSpec:
        """Return the specification of an input."""
        return self.definition.inputs[name]

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of an input; () for a scalar."""
        return tuple(self.axes[axis] for axis in self.spec(name).shape or ())

    def tensor(self, name: str) -> torch.Tensor | None:
        """Return an input that exists and is a tensor, else None."""
        value = self.values.get(name)
        return value if isinstance(value, torch.Tensor) else None


Maker = Callable[[InputDraft, str], Content | torch.Tensor | float]


def first_axis(axes: Mapping[str, int], *names: str) -> int | None:
    """Return the size of the first of the named axes that exists."""
    return next((axes[name] for name in names if name in axes), None)


def tensor_dtype(spec: TensorSpec) -> torch.dtype:
    """The torch dtype of a tensor specification; `SynthesisError` if the installed torch does not have it."""
    try:
        return torch_dtype(spec.dtype)
    except AttributeError as error:  # float4_e2m1 came with torch 2.8
        raise SynthesisError(f"torch {torch.__version__} has no dtype for {spec.dtype}; use a newer one") from error


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
_MAX_TOP_K = 64
"""Largest top-k that is synthesized."""


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


# -- offsets and lengths -----------------------------------------------------------------------


def offsets(draft: InputDraft, name: str) -> torch.Tensor:
    """Make offsets from 0 to the total; queries are no longer than their keys where possible."""
    parts = draft.shape(name)[0] - 1
    total = draft.axes[_total_axis(draft, name)]
    if parts < 0 or (parts == 0 and total):
        raise SynthesisError(f"{parts + 1} offsets cannot end at {total}")
    limits = _key_lengths(draft) if is_query_offsets(name) else None
    lengths = split(total, parts, draft.generator(name), limits and limits[:parts])
    return torch.tensor([0, *lengths], dtype=torch.int64).cumsum(0)


def split(total: int, parts: int, generator: torch.Generator, limits: Sequence[int] | None = None) -> list[int]:
    """Split a total into random parts of at least 1 where possible, each within its limit.

    If the sum of the limits is below the total, all parts exceed their limits by the same amount.
    """
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
    if axis in draft.definition.var_axes and not any(axis in (draft.spec(name).shape or ()) for name in draft.values):
        draft.axes[axis] = max(draft.axes[axis], needed)


def _key_lengths(draft: InputDraft) -> list[int] | None:
    """Return the largest possible number of keys of each request, from the page or key offsets."""
    name = next((n for n in draft.definition.inputs if _KEY_OFFSETS.fullmatch(n)), None)
    found = None if name is None else draft.tensor(name)
    return None if found is None else [int(length) * page_size(draft.axes) for length in found.diff()]


def last_page_lengths(draft: InputDraft, name: str) -> torch.Tensor:
    """Make numbers of tokens in the last pages, large enough that no query is longer than its keys."""
    size = page_size(draft.axes)
    lengths = _integers(1, size, draft, name)
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
    return _integers(1, limit, draft, name)


# -- pages, routing and positions --------------------------------------------------------------


def page_numbers(draft: InputDraft, name: str) -> torch.Tensor:
    """Make page numbers, all different if the pool has enough pages."""
    pool = _limit(draft, name, "the number of pages", *POOL_AXES)
    count, generator = math.prod(draft.shape(name)), draft.generator(name)
    if count and not pool:
        raise SynthesisError(f"{count} page numbers are needed, the pool has 0 pages")
    if count <= pool:
        return torch.randperm(pool, generator=generator)[:count]
    return torch.randint(0, pool, (count,), generator=generator)


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
    if not is_packed_with_weights(draft.spec(name).description):
        return ids
    weights = torch.softmax(torch.randn((tokens, chosen), generator=generator), dim=-1)
    bits = weights.to(torch.bfloat16).view(torch.int16).to(torch.int64) & 0xFFFF
    return (ids << 16) | bits


def is_packed_with_weights(description: str | None) -> bool:
    """Return whether a description of expert ids says that the low 16 bits are a routing weight."""
    return "pack" in (description or "").lower()


def positions(draft: InputDraft, name: str) -> torch.Tensor:
    """Make uniform positions."""
    return _integers(0, _limit(draft, name, "the number of positions", *POSITION_AXES) - 1, draft, name)


def _integers(low: int, high: int, draft: InputDraft, name: str) -> torch.Tensor:
    shape = draft.shape(name)
    if high < low and 0 not in shape:
        raise SynthesisError(f"no value is valid: the bounds are {low} and {high}")
    return torch.randint(low, max(high, low) + 1, shape, generator=draft.generator(name))


# -- data --------------------------------------------------------------------------------------


def top_k_values(draft: InputDraft, _: str) -> Content:
    """Make uniform values of top-k."""
    return Content(INTEGER, first=1, last=min(draft.axes.get("vocab_size") or _MAX_TOP_K, _MAX_TOP_K))


def token_ids(draft: InputDraft, name: str) -> Content:
    """Make uniform token ids."""
    return Content(INTEGER, last=_limit(draft, name, "the vocabulary size", *VOCABULARY_AXES) - 1)


def weight(draft: InputDraft, name: str) -> Content:
    """Make normal values; those of matrices are divided by the root of the fan-in, so that sums stay near 1."""
    shape = draft.shape(name)
    is_fp8 = draft.spec(name).dtype.startswith("float8")  # fp8 cannot represent values that small
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
