"""Makers of index inputs: offsets, lengths, page tables, routing, positions.

Index inputs are made on the CPU, because makers read them to make others. The bounds of the
values follow from axes with conventional names.

Source: the input names of the public flashinfer-trace definitions, and FlashInfer's documentation
of page tables and index pointers.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping, Sequence

import torch
from fib_schema import Definition
from fib_schema.syntax import parse_expression

from .draft import InputDraft, SynthesisError, first_axis

_POOL_AXES = (
    "num_pages", "num_blocks", "total_num_pages", "max_num_pages", "pool_size", "state_cache_size",
    "num_slots", "cache_size",
)  # fmt: skip
_LENGTH_AXES = ("max_seq_len", "max_kv_len", "seq_len")
_PAGES_AXES = ("max_num_pages", "max_pages_per_seq", "max_blocks_per_seq", "num_pages")
_EXPERT_AXES = ("num_experts", "num_local_experts")
_POSITION_AXES = ("max_seq_len", "max_position", "max_positions", "seq_len")
_VOCABULARY_AXES = ("vocab_size", "num_embeddings")
_KEY_OFFSETS = re.compile(r"kv_indptr|cu_seqlens_k\w*")
_QUERY_PREFIXES = ("qo", "q_", "cu_seqlens_q")
_MAX_TOP_K = 64
"""Largest top-k that is synthesized."""
SEED_LIMIT = 2**31
"""Seeds are drawn below this number, which fits int32."""


def pool_size(axes: Mapping[str, int]) -> int | None:
    """Return the number of pages (blocks, slots) of the pool, or None if no axis states it."""
    return first_axis(axes, *_POOL_AXES)


def page_size(axes: Mapping[str, int]) -> int:
    """Return the number of tokens per page; 1 if no axis states it."""
    return first_axis(axes, "page_size", "block_size") or 1


def expert_count(axes: Mapping[str, int]) -> int | None:
    """Return the number of experts, or None if no axis states it."""
    return first_axis(axes, *_EXPERT_AXES)


def position_limit(axes: Mapping[str, int]) -> int | None:
    """Return the number of positions, or None if no axis states it."""
    return first_axis(axes, *_POSITION_AXES)


def vocabulary_size(axes: Mapping[str, int]) -> int | None:
    """Return the size of the vocabulary, or None if no axis states it."""
    return first_axis(axes, *_VOCABULARY_AXES)


def largest_top_k(axes: Mapping[str, int]) -> int:
    """Return the largest top-k that is synthesized."""
    return min(first_axis(axes, "vocab_size") or _MAX_TOP_K, _MAX_TOP_K)


def is_last_page(name: str) -> bool:
    """Return whether an input of lengths counts the tokens in the last pages."""
    return "last_page_len" in name


def is_query_offsets(name: str) -> bool:
    """Return whether an input of offsets has those of queries, which depend on the key offsets."""
    return name.startswith(_QUERY_PREFIXES)


# -- offsets and lengths -----------------------------------------------------------------------


def offsets(draft: InputDraft, name: str, generator: torch.Generator) -> torch.Tensor:
    """Make offsets from 0 to the total; queries are no longer than their keys where possible."""
    parts = draft.shape(name)[0] - 1
    total = _last_offset(draft, name)
    if parts < 0 or (parts == 0 and total):
        raise SynthesisError(f"{parts + 1} offsets cannot end at {total}")
    limits = None
    if is_query_offsets(name) and (limits := _key_lengths(draft)) is not None:
        limits = limits[:parts]
    lengths = split(total, parts, generator, limits)
    return torch.tensor([0, *lengths], dtype=torch.int64).cumsum(0)


def split(total: int, parts: int, generator: torch.Generator, limits: Sequence[int] | None = None) -> list[int]:
    """Split a total into random parts of at least 1 where possible, each within its limit.

    If the sum of the limits is below the total, all parts exceed their limits by the same amount.
    """
    if not parts:
        return []
    room = [total] * parts if limits is None else list(limits)
    lengths = [0] * parts
    left = total
    for index in range(parts):
        if left and room[index] > 0:
            lengths[index] = 1
            left -= 1
    weights = torch.rand(parts, generator=generator).tolist()
    for index in torch.randperm(parts, generator=generator).tolist():
        share = min(int(left * weights[index]), room[index] - lengths[index])
        lengths[index] += max(share, 0)
        left -= max(share, 0)
    for index in range(parts):
        share = min(left, max(room[index] - lengths[index], 0))
        lengths[index] += share
        left -= share
    for index in range(parts):
        lengths[index] += left // parts + (index < left % parts)
    return lengths


def total_axis(definition: Definition, name: str) -> str | None:
    """Return the axis that a constraint equates with the last offset of an input, or None if none does."""
    for constraint in definition.constraints:
        match parse_expression(constraint):
            case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]):
                for axis, other in ((left, right), (right, left)):
                    if isinstance(axis, ast.Name) and axis.id in definition.axes and _reads_last(other, name):
                        return axis.id
    return None


def _last_offset(draft: InputDraft, name: str) -> int:
    """Return the value of the last offset, from a constraint or else from conventional axis names."""
    total = total_axis(draft.definition, name)
    if total in draft.axes:
        return draft.axes[total]
    prefix = re.split(r"_?(?:indptr|cu_seqlens|cu_seq_lens|offsets|start_loc)_?", name)
    stem = next((part for part in prefix if part), "")
    by_stem = (f"total_{stem}", f"num_{stem}_indices", f"nnz_{stem}") if stem else ()
    query = ("total_q", "nnz", "nnz_qo", "num_tokens") if stem in {"q", "qo"} else ()
    keys = ("num_kv_indices", "total_kv", "nnz_kv") if stem in {"k", "kv"} else ()
    found = draft.axis(*by_stem, *query, *keys, "total_seq_len", "total_tokens", "total_seqlen")
    if found is None:
        raise SynthesisError(f"no constraint and no axis states the last offset of {name!r}")
    return found


def _reads_last(node: ast.expr, name: str) -> bool:
    """Return whether an expression contains ``name[-1]``, for example ``name[-1].item()``."""
    return any(
        isinstance(part, ast.Subscript)
        and isinstance(part.value, ast.Name)
        and part.value.id == name
        and ast.unparse(part.slice) == "-1"
        for part in ast.walk(node)
    )


def _key_lengths(draft: InputDraft) -> list[int] | None:
    """Return the largest possible number of keys of each request, from the page or key offsets."""
    name = next((n for n in draft.definition.inputs if _KEY_OFFSETS.fullmatch(n)), None)
    found = None if name is None else draft.tensor(name)
    if found is None:
        return None
    return [int(length) * (draft.axis("page_size") or 1) for length in found.diff().tolist()]


def last_page_lengths(draft: InputDraft, name: str, generator: torch.Generator) -> torch.Tensor:
    """Make numbers of tokens in the last pages, large enough that no query is longer than its keys."""
    size = draft.axis("page_size") or 1
    lengths = _integers(1, size, draft, name, generator)
    pages, queries = draft.tensor("kv_indptr"), draft.tensor("qo_indptr")
    if pages is None or queries is None:
        return lengths
    needed = queries.diff() - (pages.diff() - 1) * size
    count = min(len(needed), len(lengths))
    lengths[:count] = torch.maximum(lengths[:count], needed[:count].clamp(1, size))
    return lengths


def sequence_lengths(draft: InputDraft, name: str, generator: torch.Generator) -> torch.Tensor:
    """Make sequence lengths between 1 and the longest sequence that the axes allow."""
    pages = draft.axis(*_PAGES_AXES)
    tokens = None if pages is None else pages * page_size(draft.axes)
    limit = draft.axis(*_LENGTH_AXES) or tokens
    if limit is None:
        names = ", ".join((*_LENGTH_AXES, *_PAGES_AXES))
        raise SynthesisError(f"no axis ({names}) states the longest sequence for {name!r}")
    return _integers(1, limit, draft, name, generator)


# -- pages -------------------------------------------------------------------------------------


def page_numbers(draft: InputDraft, name: str, generator: torch.Generator) -> torch.Tensor:
    """Make page numbers, all different if the pool has enough pages."""
    pool = pool_size(draft.axes)
    if pool is None:
        raise SynthesisError(f"no axis ({', '.join(_POOL_AXES)}) states the number of pages")
    count = math.prod(draft.shape(name))
    if count and not pool:
        raise SynthesisError(f"{count} page numbers are needed, the pool has 0 pages")
    if count <= pool:
        return torch.randperm(pool, generator=generator)[:count]
    return torch.randint(0, max(pool, 1), (count,), generator=generator)


def selected_slots(draft: InputDraft, name: str, generator: torch.Generator) -> torch.Tensor:
    """Make different token slots per row; -1 pads rows if the cache has too few slots."""
    rows, width = draft.shape(name)
    pool = (draft.axis("num_pages") or 0) * (draft.axis("page_size") or 1)
    values = torch.full((rows, width), -1, dtype=torch.int64)
    for row in range(rows):
        chosen = torch.randperm(pool, generator=generator)[:width]
        values[row, : len(chosen)] = chosen
    return values


# -- routing and free integers -----------------------------------------------------------------


def expert_ids(draft: InputDraft, name: str, generator: torch.Generator) -> torch.Tensor:
    """Make different experts per token, packed with their bfloat16 weights if the definition says so."""
    experts = expert_count(draft.axes)
    if experts is None:
        raise SynthesisError(f"no axis ({', '.join(_EXPERT_AXES)}) states the number of experts for {name!r}")
    tokens, chosen = draft.shape(name)
    scores = torch.rand((tokens, experts), generator=generator)
    ids = scores.topk(chosen, dim=-1).indices
    if not is_packed_with_weights(draft.spec(name).description):
        return ids
    weights = torch.softmax(torch.randn((tokens, chosen), generator=generator), dim=-1)
    bits = weights.to(torch.bfloat16).view(torch.int16).to(torch.int64) & 0xFFFF
    return (ids << 16) | bits


def is_packed_with_weights(description: str | None) -> bool:
    """Return whether a description of expert ids says that the low 16 bits are a routing weight."""
    return "pack" in (description or "").lower()


def positions(draft: InputDraft, name: str, generator: torch.Generator) -> torch.Tensor:
    """Make uniform positions."""
    limit = position_limit(draft.axes)
    if limit is None:
        raise SynthesisError(f"no axis ({', '.join(_POSITION_AXES)}) states the number of positions for {name!r}")
    return _integers(0, limit - 1, draft, name, generator)


def top_k_values(draft: InputDraft, name: str, generator: torch.Generator) -> torch.Tensor:
    """Make uniform values of top-k."""
    return _integers(1, largest_top_k(draft.axes), draft, name, generator)


def token_ids(draft: InputDraft, name: str, generator: torch.Generator) -> torch.Tensor:
    """Make uniform token ids."""
    vocabulary = vocabulary_size(draft.axes)
    if vocabulary is None:
        raise SynthesisError(f"no axis ({', '.join(_VOCABULARY_AXES)}) states the vocabulary size for {name!r}")
    return _integers(0, vocabulary - 1, draft, name, generator)


def seeds(draft: InputDraft, name: str, generator: torch.Generator) -> torch.Tensor:
    """Make uniform seeds."""
    return _integers(0, SEED_LIMIT - 1, draft, name, generator)


def _integers(low: int, high: int, draft: InputDraft, name: str, generator: torch.Generator) -> torch.Tensor:
    """Make uniform integers from `low` to `high`, both included."""
    shape = draft.shape(name)
    if high < low and 0 not in shape:
        raise SynthesisError(f"no value is valid: the bounds are {low} and {high}")
    return torch.randint(low, max(high, low) + 1, shape, generator=generator)
