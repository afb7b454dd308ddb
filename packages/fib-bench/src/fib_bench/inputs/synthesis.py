"""Rules that make inputs valid for their op: data first, one small maker each.

A rule is found by an input's name and kind. Floating tensors that no rule knows are standard
normal. Integer tensors that no rule knows are an error: random integers are garbage as page
tables, and a kernel that reads through them proves nothing.

Indices are made on the CPU, where rules read them to make others. Everything else may be large and
is made on the device.

Source: the naming of the public flashinfer-trace definitions and FlashInfer's documentation of
its page tables and index pointers.
"""

from __future__ import annotations

import ast
import enum
import math
import re
from collections.abc import Callable, Sequence

import attrs
import torch
from fib_compile.device import torch_dtype
from fib_schema import Definition, DType, TensorSpec
from fib_schema.syntax import parse_expression

from .distributions import CHUNK, distribute, within_range


class CannotSynthesise(Exception):
    """No valid values can be made; the text says why."""


@attrs.define
class Sketch:
    """Inputs in the making."""

    definition: Definition
    axes: dict[str, int]
    seed: int
    device: torch.device = attrs.field(factory=lambda: torch.device("cpu"))
    distribution: str = "normal"
    values: dict[str, torch.Tensor | int | float | bool | None] = attrs.field(factory=dict)

    def generator(self, name: str, device: torch.device) -> torch.Generator:
        """A generator for one input, independent of the order in which inputs are made."""
        position = list(self.definition.inputs).index(name)
        seed = (self.seed + 0x9E3779B97F4A7C15 * (position + 1)) >> 1 & (2**62 - 1)
        return torch.Generator(device).manual_seed(seed)

    def spec(self, name: str) -> TensorSpec:
        """The specification of an input."""
        return self.definition.inputs[name]

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of an input; () for a scalar."""
        return tuple(self.axes[axis] for axis in self.spec(name).shape or ())

    def tensor(self, name: str) -> torch.Tensor | None:
        """The value of an input if it is a tensor that is there already."""
        value = self.values.get(name)
        return value if isinstance(value, torch.Tensor) else None

    def axis(self, *names: str) -> int | None:
        """The size of the first of these axes that exists."""
        return next((self.axes[name] for name in names if name in self.axes), None)


Maker = Callable[[Sketch, str, torch.Generator], torch.Tensor | float]
TensorMaker = Callable[[Sketch, str, torch.Generator], torch.Tensor]


class Nature(enum.Enum):
    """What the values of an input are, hence what may be done to them."""

    PLAIN = "plain"
    """Any numbers of moderate size: activations, caches, states."""
    WEIGHTS = "weights"
    """Plain numbers that are scaled so that sums stay near 1."""
    SCORES = "scores"
    """Numbers by which experts are chosen: equal ones are ambiguous, and their rows decide the load."""
    FACTORS = "factors"
    """Numbers each of which is valid by itself: scales, decays, thresholds, temperatures."""
    ROWS = "rows"
    """Rows that are valid as a whole, in any order of their elements: probabilities, keys of length 1."""
    INDICES = "indices"
    """Integers that say where something is, or how much there is of it."""
    FIXED = "fixed"
    """What is not to be changed: masks, scalars, the rotary cache."""


@attrs.frozen
class Rule:
    """Makes the inputs whose name matches and whose kind is right."""

    kind: str
    """``integer``, ``bool``, ``float``, ``packed`` (fp4, two to a byte) or ``scalar``."""
    pattern: str
    make: Maker
    nature: Nature
    op_types: tuple[str, ...] = ()
    """Prefixes of the op_types it is for; none means all."""

    @property
    def is_plain(self) -> bool:
        """Whether a distribution may change what it makes."""
        return self.nature is Nature.PLAIN and self.kind == "float"


def synthesise(sketch: Sketch, name: str) -> None:
    """Make one input (and perhaps others that go with it) and put it into the sketch.

    Raises:
        CannotSynthesise: No rule makes valid values.
    """
    spec = sketch.spec(name)
    rule = rule_of(sketch.definition, name)
    shape = f"{spec.dtype} of shape {list(sketch.shape(name))}"
    generator = sketch.generator(name, torch.device("cpu") if rule.nature is Nature.INDICES else sketch.device)
    try:
        value = rule.make(sketch, name, generator)
        if isinstance(value, torch.Tensor):
            value = _cast(value, spec).reshape(sketch.shape(name))
            if rule.is_plain:
                distribute(value, sketch.distribution, generator, is_half=_has_half(sketch.definition))
    except torch.OutOfMemoryError as error:
        raise CannotSynthesise(f"there is no room for {shape}: {error}") from error
    except (LookupError, RuntimeError, ValueError) as error:
        text = f"the rule for inputs of this name cannot make {shape}: {error}; give it as a blob"
        raise CannotSynthesise(text) from error
    sketch.values[name] = value


def rule_of(definition: Definition, name: str) -> Rule:
    """The rule for one input of a definition.

    Raises:
        CannotSynthesise: There is none.
    """
    kind = _kind(definition.inputs[name])
    for rule in RULES:
        if rule.op_types and not definition.op_type.startswith(rule.op_types):
            continue
        if rule.kind == kind and re.fullmatch(rule.pattern, name):
            return rule
    text = (
        f"there is no rule that makes valid values for {kind} input {name!r} of op_type "
        f"{definition.op_type!r}; give it as a blob or a scalar in the workload"
    )
    raise CannotSynthesise(text)


def tensor_dtype(spec: TensorSpec) -> torch.dtype:
    """The dtype of a tensor in torch's terms.

    Raises:
        CannotSynthesise: This version of torch does not have it.
    """
    try:
        return torch_dtype(spec.dtype)
    except AttributeError as error:  # float4_e2m1 came with torch 2.8
        raise CannotSynthesise(f"torch {torch.__version__} has no dtype for {spec.dtype}; use a newer one") from error


def _kind(spec: TensorSpec) -> str:
    if spec.shape is None:
        return "integer scalar" if spec.is_integer else "scalar"
    if spec.dtype == DType.FLOAT4_E2M1:
        return "packed"
    if spec.dtype == DType.BOOL:
        return "bool"
    return "integer" if spec.is_integer else "float"


def _has_half(definition: Definition) -> bool:
    return any(spec.dtype == DType.FLOAT16 for spec in (*definition.inputs.values(), *definition.outputs.values()))


def _cast(value: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    dtype = tensor_dtype(spec)
    return value if value.dtype == dtype else within_range(value, dtype).to(dtype)


# -- plain values ------------------------------------------------------------------------------


def _normals(sketch: Sketch, name: str, generator: torch.Generator, deviation: float = 1.0) -> torch.Tensor:
    """Normal numbers in the dtype of the input; a narrow one is filled in parts, for it goes through float32."""
    values = torch.empty(sketch.shape(name), dtype=tensor_dtype(sketch.spec(name)), device=generator.device)
    if values.dtype.itemsize > 1:
        return values.normal_(0.0, deviation, generator=generator)
    for part in torch.split(values.view(-1), CHUNK):
        part.copy_(_randn(part.shape, generator).mul_(deviation))
    return values


def _randn(shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    return torch.randn(shape, generator=generator, device=generator.device)


def _rand(shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    return torch.rand(shape, generator=generator, device=generator.device)


def _normal(sketch: Sketch, name: str, generator: torch.Generator) -> torch.Tensor:
    return _normals(sketch, name, generator)


def _weight(sketch: Sketch, name: str, generator: torch.Generator) -> torch.Tensor:
    """Matrices are scaled by their fan-in, so that sums stay near 1; vectors lie around 1."""
    shape = sketch.shape(name)
    narrow = sketch.spec(name).dtype.startswith("float8")  # fp8 has no room for small numbers
    fan_in = 1 if len(shape) < 2 or narrow else max(shape[-1], 1)
    return _normals(sketch, name, generator, 1 / math.sqrt(fan_in))


def _fp4_pairs(sketch: Sketch, name: str, generator: torch.Generator) -> torch.Tensor:
    """Random numbers of e2m1: every pattern is a finite one, from -6 to 6. The last axis counts bytes of two."""
    values = torch.empty(sketch.shape(name), dtype=torch.uint8, device=generator.device)
    return values.random_(0, 256, generator=generator).view(tensor_dtype(sketch.spec(name)))


def _uniform(low: float, high: float) -> TensorMaker:
    def make(sketch: Sketch, name: str, generator: torch.Generator) -> torch.Tensor:
        return _rand(sketch.shape(name), generator) * (high - low) + low

    return make


def _block_scale(sketch: Sketch, name: str, generator: torch.Generator) -> torch.Tensor:
    """Dequantisation scales: positive, and for weights such that sums stay near 1."""
    values = _uniform(0.5, 1.5)(sketch, name, generator)
    base = name.removesuffix("_scale")
    if "weight" in base and base in sketch.definition.inputs:
        return values / math.sqrt(max(sketch.shape(base)[-1], 1))
    return values


def _expert_scale(sketch: Sketch, name: str, generator: torch.Generator) -> torch.Tensor:
    """One dequantisation scale per expert, for sums over a hidden or intermediate axis."""
    width = sketch.axis("intermediate_size") if "output2" in name else sketch.axis("hidden_size")
    return _uniform(0.5, 1.5)(sketch, name, generator) / math.sqrt(width or 1)


def _normalised(sketch: Sketch, name: str, generator: torch.Generator) -> torch.Tensor:
    """Rows of length 1: a delta rule diverges with longer keys."""
    return torch.nn.functional.normalize(_randn(sketch.shape(name), generator), dim=-1)


def _decay(sketch: Sketch, name: str, generator: torch.Generator) -> torch.Tensor:
    return -_rand(sketch.shape(name), generator) * 15 - 1


def _log_decay(sketch: Sketch, name: str, generator: torch.Generator) -> torch.Tensor:
    return (_rand(sketch.shape(name), generator) * 15 + 1).log()


def _probabilities(sketch: Sketch, name: str, generator: torch.Generator) -> torch.Tensor:
    return torch.softmax(3 * _randn(sketch.shape(name), generator), dim=-1)


def _cos_sin(sketch: Sketch, name: str, generator: torch.Generator) -> torch.Tensor:
    """The rotary cache: cosines in the first half of a row, sines in the second."""
    length, width = sketch.shape(name)
    device = generator.device  # of which nothing else is used: the cache is not random
    frequencies = 10_000.0 ** -(torch.arange(0, width, 2, dtype=torch.float64, device=device) / width)
    angles = torch.outer(torch.arange(length, dtype=torch.float64, device=device), frequencies)
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


def _bernoulli(sketch: Sketch, name: str, generator: torch.Generator) -> torch.Tensor:
    """Random truths; the first of each row is true, so that no mask forbids everything."""
    values = _rand(sketch.shape(name), generator) < 0.5
    if values.numel():
        values[..., 0] = True
    return values


def _bytes(sketch: Sketch, name: str, generator: torch.Generator) -> torch.Tensor:
    if sketch.spec(name).dtype != "int8":
        raise CannotSynthesise(f"there is no rule that makes valid values for integer input {name!r}")
    return torch.randint(-128, 128, sketch.shape(name), generator=generator, device=generator.device)


# -- scalars -----------------------------------------------------------------------------------


def _softmax_scale(sketch: Sketch, name: str, generator: torch.Generator) -> float:
    """One over the root of the head dimension; MLA counts the one before absorption."""
    del name, generator
    if sketch.axis("head_dim_ckv"):
        return 1 / math.sqrt(128 + (sketch.axis("head_dim_kpe") or 64))
    return 1 / math.sqrt(sketch.axis("head_dim", "head_dim_qk", "head_size") or 128)


def _constant(value: float) -> Maker:
    return lambda _sketch, _name, _generator: value


# -- indices -----------------------------------------------------------------------------------


def _integers(low: int, high: int, sketch: Sketch, name: str, generator: torch.Generator) -> torch.Tensor:
    """Uniform integers from `low` to `high`, both included."""
    shape = sketch.shape(name)
    if high < low and 0 not in shape:
        raise CannotSynthesise(f"there is no valid value: it would lie between {low} and {high}")
    return torch.randint(low, max(high, low) + 1, shape, generator=generator)


def _index_pointer(sketch: Sketch, name: str, generator: torch.Generator) -> torch.Tensor:
    """Offsets from 0 to the total; queries get no longer than their keys where that is possible."""
    parts = sketch.shape(name)[0] - 1
    total = _total_of(sketch, name)
    if parts < 0 or (parts == 0 and total):
        raise CannotSynthesise(f"{parts + 1} offsets cannot end at {total}")
    limits = None
    if name.startswith(("qo", "q_", "cu_seqlens_q")) and (limits := _key_lengths(sketch)) is not None:
        limits = limits[:parts]
    return _offsets(split(total, parts, generator, limits))


def _offsets(lengths: Sequence[int]) -> torch.Tensor:
    return torch.tensor([0, *lengths], dtype=torch.int64).cumsum(0)


def split(total: int, parts: int, generator: torch.Generator, limits: Sequence[int] | None = None) -> list[int]:
    """Split a total into random parts of at least 1 (if there is enough), each within its limit.

    Limits that cannot hold the total are exceeded evenly: the workload asks for it.
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


def _total_of(sketch: Sketch, name: str) -> int:
    """What the last offset must be: as a constraint says, else by the names of axes."""
    for constraint in sketch.definition.constraints:
        match parse_expression(constraint):
            case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]):
                for axis, other in ((left, right), (right, left)):
                    if isinstance(axis, ast.Name) and axis.id in sketch.axes and _is_last_of(other, name):
                        return sketch.axes[axis.id]
    prefix = re.split(r"_?(?:indptr|cu_seqlens|cu_seq_lens|offsets|start_loc)_?", name)
    stem = next((part for part in prefix if part), "")
    by_stem = (f"total_{stem}", f"num_{stem}_indices", f"nnz_{stem}") if stem else ()
    query = ("total_q", "nnz", "nnz_qo", "num_tokens") if stem in {"q", "qo"} else ()
    keys = ("num_kv_indices", "total_kv", "nnz_kv") if stem in {"k", "kv"} else ()
    found = sketch.axis(*by_stem, *query, *keys, "total_seq_len", "total_tokens", "total_seqlen")
    if found is None:
        raise CannotSynthesise(f"no constraint and no axis says what the last offset in {name!r} is")
    return found


def _is_last_of(node: ast.expr, name: str) -> bool:
    """Whether an expression is ``name[-1]``, perhaps with ``.item()`` behind."""
    return any(
        isinstance(part, ast.Subscript)
        and isinstance(part.value, ast.Name)
        and part.value.id == name
        and ast.unparse(part.slice) == "-1"
        for part in ast.walk(node)
    )


def _key_lengths(sketch: Sketch) -> list[int] | None:
    """How many keys each sequence can have at most, by its page or key offsets."""
    name = next((n for n in sketch.definition.inputs if re.fullmatch(r"kv_indptr|cu_seqlens_k\w*", n)), None)
    if name is None:
        return None
    if sketch.tensor(name) is None:
        synthesise(sketch, name)
    offsets = sketch.tensor(name)
    if offsets is None:
        return None
    return [int(n) * (sketch.axis("page_size") or 1) for n in offsets.diff().tolist()]


def _last_page_length(sketch: Sketch, name: str, generator: torch.Generator) -> torch.Tensor:
    """Tokens in the last page: so many that no query is longer than its keys."""
    page_size = sketch.axis("page_size") or 1
    lengths = _integers(1, page_size, sketch, name, generator)
    pages, queries = sketch.tensor("kv_indptr"), sketch.tensor("qo_indptr")
    if pages is None or queries is None:
        return lengths
    needed = queries.diff() - (pages.diff() - 1) * page_size
    count = min(len(needed), len(lengths))
    lengths[:count] = torch.maximum(lengths[:count], needed[:count].clamp(1, page_size))
    return lengths


_POOL_AXES = (
    "num_pages", "num_blocks", "total_num_pages", "max_num_pages", "pool_size", "state_cache_size",
    "num_slots", "cache_size",
)  # fmt: skip


def _page_indices(sketch: Sketch, name: str, generator: torch.Generator) -> torch.Tensor:
    """Page numbers, all different while there are enough pages."""
    pool = sketch.axis(*_POOL_AXES)
    if pool is None:
        raise CannotSynthesise(f"no axis ({', '.join(_POOL_AXES)}) says how many pages there are")
    return _distinct(pool, sketch, name, generator)


def _distinct(pool: int, sketch: Sketch, name: str, generator: torch.Generator) -> torch.Tensor:
    count = math.prod(sketch.shape(name))
    if count and not pool:
        raise CannotSynthesise(f"{count} indices are wanted, but there is nothing to point at (0 pages)")
    if count <= pool:
        return torch.randperm(pool, generator=generator)[:count]
    return torch.randint(0, max(pool, 1), (count,), generator=generator)


def _sparse_indices(sketch: Sketch, name: str, generator: torch.Generator) -> torch.Tensor:
    """Different token slots per row; -1 pads rows for which there are too few."""
    rows, width = sketch.shape(name)
    pool = (sketch.axis("num_pages") or 0) * (sketch.axis("page_size") or 1)
    values = torch.full((rows, width), -1, dtype=torch.int64)
    for row in range(rows):
        chosen = torch.randperm(pool, generator=generator)[:width]
        values[row, : len(chosen)] = chosen
    return values


def _sequence_lengths(sketch: Sketch, name: str, generator: torch.Generator) -> torch.Tensor:
    pages = sketch.axis("max_num_pages", "max_pages_per_seq", "max_blocks_per_seq", "num_pages")
    tokens = None if pages is None else pages * (sketch.axis("page_size", "block_size") or 1)
    limit = sketch.axis("max_seq_len", "max_kv_len", "seq_len") or tokens
    if limit is None:
        raise CannotSynthesise(f"no axis says how long the sequences in {name!r} may be")
    return _integers(1, limit, sketch, name, generator)


def _positions(sketch: Sketch, name: str, generator: torch.Generator) -> torch.Tensor:
    limit = sketch.axis("max_seq_len", "max_position", "max_positions", "seq_len")
    if limit is None:
        raise CannotSynthesise(f"no axis (max_seq_len, ...) says how far the positions in {name!r} go")
    return _integers(0, limit - 1, sketch, name, generator)


def _top_k(sketch: Sketch, name: str, generator: torch.Generator) -> torch.Tensor:
    return _integers(1, min(sketch.axis("vocab_size") or 64, 64), sketch, name, generator)


def _expert_ids(sketch: Sketch, name: str, generator: torch.Generator) -> torch.Tensor:
    """Different experts per token; packed with their weights where the definition says so."""
    experts = sketch.axis("num_experts", "num_local_experts")
    if experts is None:
        raise CannotSynthesise(f"no axis says how many experts the ids in {name!r} choose from")
    tokens, chosen = sketch.shape(name)
    scores = torch.rand((tokens, experts), generator=generator)
    ids = scores.topk(chosen, dim=-1).indices
    if "pack" not in (sketch.spec(name).description or "").lower():
        return ids
    weights = torch.softmax(torch.randn((tokens, chosen), generator=generator), dim=-1)
    bits = weights.to(torch.bfloat16).view(torch.int16).to(torch.int64) & 0xFFFF
    return (ids << 16) | bits


def _token_ids(sketch: Sketch, name: str, generator: torch.Generator) -> torch.Tensor:
    vocabulary = sketch.axis("vocab_size", "num_embeddings")
    if vocabulary is None:
        raise CannotSynthesise(f"no axis says how large the vocabulary of {name!r} is")
    return _integers(0, vocabulary - 1, sketch, name, generator)


RULES: tuple[Rule, ...] = (
    Rule("integer", r".*indptr.*|cu_seq_?lens.*|.*_offsets|.*start_loc.*", _index_pointer, Nature.INDICES),
    Rule("integer", r".*last_page_len.*", _last_page_length, Nature.INDICES),
    Rule("integer", r"sparse_indices|topk_indices", _sparse_indices, Nature.INDICES),
    Rule("integer", r".*(indices|block_tables?|page_table|slot_mapping|slot_ids).*", _page_indices, Nature.INDICES),
    Rule("integer", r"topk_ids|expert_ids|topk_idx", _expert_ids, Nature.INDICES),
    Rule("integer", r".*(seq_?lens?|lengths?|_lens?)", _sequence_lengths, Nature.INDICES),
    Rule("integer", r".*positions?|pos_ids|.*position_ids", _positions, Nature.INDICES),
    Rule("integer", r"top_?k.*", _top_k, Nature.INDICES),
    Rule("integer", r".*(token|input)_ids", _token_ids, Nature.INDICES),
    Rule("integer", r".*", _bytes, Nature.FIXED),
    Rule("bool", r".*", _bernoulli, Nature.FIXED),
    Rule("scalar", r".*(eps|epsilon)", _constant(1e-6), Nature.FIXED),
    Rule("scalar", r"sm_scale|softmax_scale|scale|attn_scale", _softmax_scale, Nature.FIXED),
    Rule("scalar", r"routed_scaling_factor", _constant(2.5), Nature.FIXED),
    Rule("scalar", r".*", _constant(1.0), Nature.FIXED),
    Rule("integer scalar", r"local_expert_offset", _constant(0), Nature.FIXED),
    Rule("packed", r"(?!.*(probs?|scales?|cos_sin.*)$).*", _fp4_pairs, Nature.PLAIN),
    Rule("float", r".*probs?", _probabilities, Nature.ROWS),
    Rule("float", r"top_?p.*|min_?p.*", _uniform(0.1, 0.95), Nature.FACTORS),
    Rule("float", r"temperatures?", _uniform(0.5, 1.5), Nature.FACTORS),
    Rule("float", r".*cos_sin.*", _cos_sin, Nature.FIXED),
    Rule("float", r"[qk]", _normalised, Nature.ROWS, ("gdn", "gated_delta")),
    Rule("float", r"A", _decay, Nature.FACTORS, ("mamba",)),
    Rule("float", r"A_log", _log_decay, Nature.FACTORS),
    Rule("float", r"output\d_scales.*", _expert_scale, Nature.FACTORS),
    Rule("float", r".*scales?", _block_scale, Nature.FACTORS),
    Rule("float", r".*weights?", _weight, Nature.WEIGHTS),
    Rule("float", r"(rout(er|ing)|gating)_.*|.*correction_bias", _normal, Nature.SCORES),
    Rule("float", r".*logits", _normal, Nature.SCORES, ("moe",)),
    Rule("float", r".*", _normal, Nature.PLAIN),
)
"""The first rule that fits makes the input."""
