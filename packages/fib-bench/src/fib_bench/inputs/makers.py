"""Makers of input values, and the draft that they fill.

A maker is a function that takes a draft, the name of an input and a random generator, and returns the value of that
input. Makers may read inputs that the draft already contains. Large tensors are drawn on the device of the generator,
because drawing a large weight on a CPU takes seconds. Index inputs (offsets, lengths, page tables, routing, positions)
are made on the CPU, because makers read them to make others; the bounds of their values follow from axes with
conventional names. Distributions change plain floating-point inputs:

- ``wide``: rows of very different magnitude, evenly spread between bounds that both occur. Kernels without a
  scale per row, with a narrow accumulator or with exponentials that overflow fail.
- ``tiny``: values of about a thousandth, so that an epsilon matters.
- ``zeros_and_ones``: a quarter of the rows is zero, a quarter is one.
- ``shifted``: the mean of each column is 3 or -3. Recurrences whose gates are near zero forget soon; with
  these gates they do not, and kernels that begin in the middle fail.

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
from fib_schema import Definition, TensorSpec, UnknownName
from fib_schema.syntax import parse_expression

from ..config.model import DISTRIBUTIONS


class SynthesisError(Exception):
    """No valid values can be synthesized for an input; the text states the reason."""


@attrs.define
class InputDraft:
    """Incomplete inputs of one workload.

    Args:
        definition: The definition that the inputs belong to.
        axes: Sizes of all axes, constant ones included.
        seed: Seed of the workload's inputs.
        device: Device of the finished tensors.
        distribution: One of `config.DISTRIBUTIONS`.
        values: Inputs that exist so far, by name.
    """

    definition: Definition
    axes: dict[str, int]
    seed: int
    device: torch.device = attrs.field(factory=lambda: torch.device("cpu"))
    distribution: str = "normal"
    values: dict[str, torch.Tensor | int | float | bool | None] = attrs.field(factory=dict)

    def generator(self, name: str, device: torch.device) -> torch.Generator:
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

    def axis(self, *names: str) -> int | None:
        """Return the size of the first of these axes that exists."""
        return first_axis(self.axes, *names)


Maker = Callable[[InputDraft, str, torch.Generator], torch.Tensor | float]


def first_axis(axes: Mapping[str, int], *names: str) -> int | None:
    """Return the size of the first of the named axes that exists."""
    return next((axes[name] for name in names if name in axes), None)


def tensor_dtype(spec: TensorSpec) -> torch.dtype:
    """Return the torch dtype of a tensor specification.

    Raises:
        SynthesisError: The installed torch does not have this dtype.
    """
    try:
        return torch_dtype(spec.dtype)
    except AttributeError as error:  # float4_e2m1 came with torch 2.8
        raise SynthesisError(f"torch {torch.__version__} has no dtype for {spec.dtype}; use a newer one") from error


WIDE_EXPONENTS = (-4.0, 5.0)
"""Bounds of log2 of the factors of rows."""
WIDE_EXPONENTS_HALF = (-6.0, 2.0)
"""The bounds if float16 takes part: a sum over 28,672 products of two such rows stays below 65,504."""
_TINY = 1e-3
_TINY_ONE_BYTE = 2.0**-5  # a thousandth is below the smallest number of float8_e4m3fn
_SHIFT = 3.0  # a sigmoid of it is 0.95: a recurrence still sees a third of what was 24 steps before
CHUNK_ELEMENTS = 1 << 25
"""Elements per step of operations with temporary tensors; bounds the temporary memory."""


def check_distribution(name: str) -> None:
    """Check that a distribution of this name exists.

    Raises:
        UnknownName: The name is not in `config.DISTRIBUTIONS`.
    """
    if name not in DISTRIBUTIONS:
        raise UnknownName("distribution", name, DISTRIBUTIONS)


def distribute(values: torch.Tensor, distribution: str, generator: torch.Generator, *, is_half: bool = False) -> None:
    """Convert standard normal values to a distribution, in place and without synchronizing the device.

    Shapes:
        values: any; floating-point, contiguous.

    Args:
        values: The tensor to change.
        distribution: One of `config.DISTRIBUTIONS`.
        generator: Draws factors and offsets; on the device of the values.
        is_half: Whether float16 takes part in the computation; limits the magnitude of ``wide``.
    """
    if distribution == "normal" or not values.numel():
        return
    rows = values.view(-1, values.shape[-1]) if values.dim() > 1 else values.view(-1, 1)
    if distribution == "shifted":
        _shift_columns(rows, generator)
        return
    factors, offsets = _per_row(distribution, rows, generator, is_half)
    step = max(1, CHUNK_ELEMENTS // rows.shape[1])
    parts = (torch.split(tensor, step) for tensor in (rows, factors, offsets))
    for part, factor, offset in zip(*parts, strict=True):
        part.copy_(clamp_to_range(part.float() * factor + offset, values.dtype))


def _shift_columns(rows: torch.Tensor, generator: torch.Generator) -> None:
    """Add the mean of each column."""
    signs = torch.rand((1, rows.shape[1]), generator=generator, device=rows.device).lt(0.5)
    means = torch.where(signs, -_SHIFT, _SHIFT)
    for part in torch.split(rows, max(1, CHUNK_ELEMENTS // rows.shape[1])):
        part.copy_(clamp_to_range(part.float() + means, rows.dtype))


def clamp_to_range(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Clamp values in place to the finite range of a one-byte floating dtype; otherwise change nothing.

    A conversion to such a dtype turns values beyond its range into NaN.
    """
    if not dtype.is_floating_point or dtype.itemsize > 1:
        return values
    limit = torch.finfo(dtype).max
    return values.clamp_(-limit, limit)


def _per_row(
    distribution: str, rows: torch.Tensor, generator: torch.Generator, is_half: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the factor and the offset of each row: two tensors of shape [rows, 1]."""
    draw = torch.rand((len(rows), 1), generator=generator, device=rows.device)
    if distribution == "wide":
        low, high = WIDE_EXPONENTS_HALF if is_half else WIDE_EXPONENTS
        share = draw.argsort(dim=0) / (len(rows) - 1) if len(rows) > 1 else draw  # both bounds always occur
        return torch.exp2(share * (high - low) + low), torch.zeros_like(draw)
    if distribution == "tiny":
        factor = _TINY_ONE_BYTE if rows.dtype.itemsize == 1 else _TINY
        return torch.full_like(draw, factor), torch.zeros_like(draw)
    kinds = draw.argsort(dim=0) % 4  # a random order: even few rows contain both kinds; a single row becomes 1
    return (kinds > 1).float(), (kinds == 0).float()


def normal(draft: InputDraft, name: str, generator: torch.Generator) -> torch.Tensor:
    """Make standard normal values."""
    return _normal_values(draft, name, generator)


def weight(draft: InputDraft, name: str, generator: torch.Generator) -> torch.Tensor:
    """Make normal values; those of matrices are divided by the root of the fan-in, so that sums stay near 1."""
    return _normal_values(draft, name, generator, weight_deviation(draft, name))


def weight_deviation(draft: InputDraft, name: str) -> float:
    """Return the standard deviation of weights."""
    shape = draft.shape(name)
    is_fp8 = draft.spec(name).dtype.startswith("float8")  # fp8 cannot represent values that small
    return 1.0 if len(shape) < 2 or is_fp8 else 1 / math.sqrt(max(shape[-1], 1))


def fp4_pairs(draft: InputDraft, name: str, generator: torch.Generator) -> torch.Tensor:
    """Make uniform bit patterns of e2m1, all finite (-6 to 6). The last axis counts bytes of two values."""
    values = torch.empty(draft.shape(name), dtype=torch.uint8, device=generator.device)
    return values.random_(0, 256, generator=generator).view(tensor_dtype(draft.spec(name)))


@attrs.frozen
class Uniform:
    """A maker of uniform values in [low, high)."""

    low: float
    high: float

    def __call__(self, draft: InputDraft, name: str, generator: torch.Generator) -> torch.Tensor:
        """Make the values."""
        return _rand(draft.shape(name), generator) * (self.high - self.low) + self.low


_SCALES = Uniform(0.5, 1.5)


def block_scale(draft: InputDraft, name: str, generator: torch.Generator) -> torch.Tensor:
    """Make positive dequantization scales; those of weights keep sums near 1."""
    return _SCALES(draft, name, generator) * block_factor(draft, name)


def block_factor(draft: InputDraft, name: str) -> float:
    """Return the mean of dequantization scales."""
    base = name.removesuffix("_scale")
    is_weight = "weight" in base and base in draft.definition.inputs
    return 1 / math.sqrt(max(draft.shape(base)[-1], 1)) if is_weight else 1.0


def expert_scale(draft: InputDraft, name: str, generator: torch.Generator) -> torch.Tensor:
    """Make one dequantization scale per expert, for sums over the hidden or intermediate axis."""
    return _SCALES(draft, name, generator) * expert_factor(draft, name)


def expert_factor(draft: InputDraft, name: str) -> float:
    """Return the mean of the dequantization scales of experts."""
    width = draft.axis("intermediate_size") if "output2" in name else draft.axis("hidden_size")
    return 1 / math.sqrt(width or 1)


def normalized(draft: InputDraft, name: str, generator: torch.Generator) -> torch.Tensor:
    """Make rows of length 1; a delta rule diverges with longer keys."""
    return torch.nn.functional.normalize(_randn(draft.shape(name), generator), dim=-1)


def decay(draft: InputDraft, name: str, generator: torch.Generator) -> torch.Tensor:
    """Make decay rates between -16 and -1."""
    return -_rand(draft.shape(name), generator) * 15 - 1


def log_decay(draft: InputDraft, name: str, generator: torch.Generator) -> torch.Tensor:
    """Make logarithms of decay rates between 1 and 16."""
    return (_rand(draft.shape(name), generator) * 15 + 1).log()


def factor_bounds(draft: InputDraft, name: str, make: Maker) -> tuple[float, float]:
    """Return the bounds of the values of a maker of factors.

    Raises:
        SynthesisError: The maker makes other values.
    """
    if isinstance(make, Uniform):
        return make.low, make.high
    if make is decay:
        return -16.0, -1.0
    if make is log_decay:
        return 0.0, math.log(16)
    if make in (block_scale, expert_scale):
        mean = block_factor(draft, name) if make is block_scale else expert_factor(draft, name)
        return _SCALES.low * mean, _SCALES.high * mean
    raise SynthesisError(f"no bounds are known for the values of input {name!r}")


def probabilities(draft: InputDraft, name: str, generator: torch.Generator) -> torch.Tensor:
    """Make rows of probabilities: a softmax of normal logits of deviation 3."""
    return torch.softmax(3 * _randn(draft.shape(name), generator), dim=-1)


def rotary_cache(draft: InputDraft, name: str, generator: torch.Generator) -> torch.Tensor:
    """Make a rotary cache: cosines in the first half of each row, sines in the second. Nothing is random."""
    length, width = draft.shape(name)
    device = generator.device
    frequencies = 10_000.0 ** -(torch.arange(0, width, 2, dtype=torch.float64, device=device) / width)
    angles = torch.outer(torch.arange(length, dtype=torch.float64, device=device), frequencies)
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


def mask(draft: InputDraft, name: str, generator: torch.Generator) -> torch.Tensor:
    """Make a fair random mask; the first element of each row is true, so that no row is fully masked."""
    values = _rand(draft.shape(name), generator) < 0.5
    if values.numel():
        values[..., 0] = True
    return values


def int8_data(draft: InputDraft, name: str, generator: torch.Generator) -> torch.Tensor:
    """Make uniform int8 values."""
    return torch.randint(-128, 128, draft.shape(name), generator=generator, device=generator.device)


def unknown_integers(draft: InputDraft, name: str, generator: torch.Generator) -> torch.Tensor:
    """Refuse integers of unknown meaning: random integers are invalid page tables or offsets.

    Raises:
        SynthesisError: Always.
    """
    del draft, generator
    raise SynthesisError(f"no rule makes valid values for integer input {name!r}")


def softmax_scale(draft: InputDraft, name: str, generator: torch.Generator) -> float:
    """Return 1 / sqrt(head dimension); for MLA the head dimension before absorption."""
    del name, generator
    if draft.axis("head_dim_ckv"):
        return 1 / math.sqrt(128 + (draft.axis("head_dim_kpe") or 64))
    return 1 / math.sqrt(draft.axis("head_dim", "head_dim_qk", "head_size") or 128)


def constant(value: float) -> Maker:
    """Return a maker of one scalar value."""

    def make(_draft: InputDraft, _name: str, _generator: torch.Generator) -> float:
        return value

    make.__doc__ = f"Return {value:g}."
    return make


def _normal_values(draft: InputDraft, name: str, generator: torch.Generator, deviation: float = 1.0) -> torch.Tensor:
    """Make normal values in the dtype of the input; one-byte dtypes are converted from float32 in chunks."""
    values = torch.empty(draft.shape(name), dtype=tensor_dtype(draft.spec(name)), device=generator.device)
    if values.dtype.itemsize > 1:
        return values.normal_(0.0, deviation, generator=generator)
    for part in torch.split(values.view(-1), CHUNK_ELEMENTS):
        part.copy_(_randn(part.shape, generator).mul_(deviation))
    return values


def _randn(shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    return torch.randn(shape, generator=generator, device=generator.device)


def _rand(shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    return torch.rand(shape, generator=generator, device=generator.device)


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
