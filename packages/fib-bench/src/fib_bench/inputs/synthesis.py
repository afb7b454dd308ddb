"""Synthesis of inputs by a table from kinds and names of inputs to makers and roles.

The description of an input goes first, where it states the bounds of values; then the first rule that matches an
input. Floating-point tensors that no specific rule matches are standard normal; such integer tensors are refused. A
rule makes structure (`makers`), or states which contents are valid: from these both the first values of an input are
drawn (`draw`) and, by the `generator`, those of each timed call. The role of an input decides how a distribution
applies and how structure is redrawn (`redrawing`).

Distributions change plain floating-point inputs:

- ``wide``: rows of very different magnitude, evenly spread between bounds that both occur. Kernels without a
  scale per row, with a narrow accumulator or with exponentials that overflow fail.
- ``tiny``: values of about a thousandth, so that an epsilon matters.
- ``zeros_and_ones``: a quarter of the rows is zero, a quarter is one.
- ``shifted``: the mean of each column is 3 or -3. Recurrences whose gates are near zero forget soon; with
  these gates they do not, and kernels that begin in the middle fail.
"""

from __future__ import annotations

import ast
import enum
import math
import re
from collections.abc import Iterable
from functools import cache

import attrs
import torch
from fib_schema import Definition, DType, TensorSpec
from fib_schema.syntax import parse_source

from .. import recipe
from ..recipe import Content
from . import makers
from .makers import InputDraft, Maker, SynthesisError, is_query_offsets, tensor_dtype


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
    """Token slots of a paged cache (page number * page size + position in the page) selected per row; negative numbers
    are padding."""
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


@attrs.frozen
class SynthesisRule:
    """One row of the table."""

    kind: str
    """One of those that `_kinds` returns."""
    pattern: str
    """Regular expression for the whole name of the input."""
    make: Maker | Content | float | None
    """Makes the values or states the contents, or is one of them; None if random values are not valid."""
    role: Role
    op_types: tuple[str, ...] = ()
    """Prefixes of the op_types that the rule applies to; empty for all."""

    def values(self, draft: InputDraft, name: str) -> Content | torch.Tensor | float:
        """The values of an input, or the contents from which they are drawn; `SynthesisError` if none are valid."""
        if self.make is None:  # random integers are invalid page tables or offsets
            raise SynthesisError(f"no rule makes valid values for integer input {name!r}{_REMEDY}")
        return self.make(draft, name) if callable(self.make) else self.make


def find_rule(definition: Definition, name: str) -> SynthesisRule:
    """Return the rule for one input of a definition; `SynthesisError` if no rule matches."""
    spec = definition.inputs[name]
    kinds = _kinds(spec)
    if bounds := _UNIFORM.fullmatch(spec.description or ""):
        low, high = map(float, bounds.groups())
        if "float" in kinds:
            return SynthesisRule("float", name, Content(recipe.UNIFORM, low=low, high=high), Role.FACTORS)
        if "integer" in kinds:
            return SynthesisRule("integer", name, Content(recipe.INTEGER, first=int(low), last=int(high)), Role.DRAWN)
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
    return ("integer",) if spec.is_integer else ("float",)


_REMEDY = "; state their range as its description ('uniform values from 0 to 99'), a generator, or a blob"
_UNIFORM = re.compile(r"uniform values from (-?[\d.e+-]+) to (-?[\d.e+-]+)")
_REQUEST_NUMBERS = r"(batch|request|req|seq|sequence|token|qo?)_indices"
"""Names of request or token numbers, which are not page numbers and are derived from other inputs."""
RULES: tuple[SynthesisRule, ...] = (
    SynthesisRule("integer", r".*indptr.*|cu_seq_?lens.*|.*_offsets|.*start_loc.*", makers.offsets, Role.OFFSETS),
    SynthesisRule("integer", r".*last_page_len.*", makers.last_page_lengths, Role.LENGTHS),
    SynthesisRule("integer", r"sparse_indices|topk_indices", makers.selected_slots, Role.SELECTIONS),
    SynthesisRule("integer", _REQUEST_NUMBERS, None, Role.FIXED),
    SynthesisRule("integer", r".*(indices|block_tables?|page_table|slot_ids).*", makers.page_numbers, Role.PAGES),
    SynthesisRule("integer", r"topk_ids|expert_ids|topk_idx", makers.expert_ids, Role.EXPERTS),
    SynthesisRule("integer", r".*(seq_?lens?|lengths?|_lens?)", makers.sequence_lengths, Role.LENGTHS),
    SynthesisRule("integer", r".*positions?|pos_ids|.*position_ids", makers.positions, Role.POSITIONS),
    SynthesisRule("integer", r"top_?k.*", makers.top_k_values, Role.COUNTS),
    SynthesisRule("integer", r".*(token|input)_ids", makers.token_ids, Role.DRAWN),
    SynthesisRule("integer", r"(.*_)?seeds?", Content(recipe.INTEGER, last=2**31 - 1), Role.DRAWN),
    SynthesisRule("int8", r".*", Content(recipe.INTEGER, first=-128, last=127), Role.BYTES),
    SynthesisRule("uint8", r".*", Content(recipe.INTEGER, first=0, last=255), Role.BYTES),
    SynthesisRule("integer", r".*", None, Role.FIXED),
    SynthesisRule("bool", r".*", Content(recipe.MASK, high=0.5, first=1), Role.DRAWN),
    SynthesisRule("scalar", r".*(eps|epsilon)", 1e-06, Role.FIXED),
    SynthesisRule("scalar", r"sm_scale|softmax_scale|scale|attn_scale", makers.softmax_scale, Role.FIXED),
    SynthesisRule("scalar", r"routed_scaling_factor", 2.5, Role.FIXED),
    SynthesisRule("scalar", r".*", 1.0, Role.FIXED),
    SynthesisRule("integer scalar", r"local_expert_offset", 0, Role.FIXED),
    SynthesisRule("packed", r"(?!.*(probs?|scales?|cos_sin.*)$).*", Content(recipe.BYTES), Role.PLAIN),
    SynthesisRule("float", r".*probs?", Content(recipe.SHARES), Role.DRAWN),
    SynthesisRule("float", r"top_?p.*|min_?p.*", Content(recipe.UNIFORM, low=0.1, high=0.95), Role.FACTORS),
    SynthesisRule("float", r"temperatures?", Content(recipe.UNIFORM, low=0.5, high=1.5), Role.FACTORS),
    SynthesisRule("float", r".*cos_sin.*", makers.rotary_cache, Role.FIXED),
    SynthesisRule("float", r"[qk]", Content(recipe.DIRECTION), Role.DRAWN, ("gdn", "gated_delta")),
    SynthesisRule("float", r"A", Content(recipe.UNIFORM, low=-16.0, high=-1.0), Role.FACTORS, ("mamba",)),
    SynthesisRule("float", r"A_log", Content(recipe.UNIFORM, low=0.0, high=math.log(16)), Role.FACTORS),
    SynthesisRule("float", r"output\d_scales.*", makers.expert_scale, Role.FACTORS),
    SynthesisRule("float", r".*scales?", makers.block_scale, Role.FACTORS),
    SynthesisRule("float", r".*weights?", makers.weight, Role.WEIGHTS),
    SynthesisRule("float", r"(rout(er|ing)|gating)_.*|.*correction_bias", Content(recipe.NORMAL), Role.SCORES),
    SynthesisRule("float", r".*logits", Content(recipe.NORMAL), Role.SCORES, ("moe",)),
    SynthesisRule("float", r".*logits", Content(recipe.NORMAL, scale=3.0), Role.PLAIN, ("sampling",)),  # as of models
    SynthesisRule("float", r".*", Content(recipe.NORMAL), Role.PLAIN),
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
    """Make one input and add it to the draft; `SynthesisError` if no rule makes valid values."""
    spec, shape = draft.spec(name), draft.shape(name)
    text = f"{spec.dtype} of shape {list(shape)}"
    try:
        value = find_rule(draft.definition, name).values(draft, name)
        if isinstance(value, Content):
            generator = draft.generator(name, draft.device)
            value = draw(value, shape, tensor_dtype(spec), generator)
            if is_distributable(draft.definition, name):
                distribute(value, draft.distribution, generator, is_half=has_half(draft.definition))
        elif isinstance(value, torch.Tensor):
            value = _cast(value, tensor_dtype(spec)).reshape(shape)
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
            return _normal(content.scale, torch.empty(shape, dtype=dtype, device=device), generator)
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
            if content.kind == recipe.UNIFORM:
                values = values * (content.high - content.low) + content.low
            else:
                values = values < content.high
                if values.numel():
                    values[..., 0] = True
    return _cast(values, dtype)


def _normal(scale: float, values: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    if values.dtype.itemsize > 1:
        return values.normal_(0.0, scale, generator=generator)
    for part in torch.split(values.view(-1), _CHUNK_ELEMENTS):  # one-byte dtypes are converted from float32
        part.copy_(torch.randn(part.shape, generator=generator, device=values.device).mul_(scale))
    return values


def distribute(values: torch.Tensor, distribution: str, generator: torch.Generator, *, is_half: bool = False) -> None:
    """Convert standard normal values to a distribution, in place and without synchronizing the device.

    `is_half` says whether float16 takes part in the computation; it limits the magnitude of ``wide``.
    """
    if distribution == "normal" or not values.numel():
        return
    rows = values.view(-1, values.shape[-1]) if values.dim() > 1 else values.view(-1, 1)
    factors, offsets = _factors(distribution, rows, generator, is_half)
    step = max(1, _CHUNK_ELEMENTS // rows.shape[1])
    parts = (torch.split(tensor, step) for tensor in (rows, factors, offsets.expand(len(rows), -1)))
    for part, factor, offset in zip(*parts, strict=True):
        part.copy_(_cast(part.float() * factor + offset, values.dtype))


def _factors(
    distribution: str, rows: torch.Tensor, generator: torch.Generator, is_half: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the factor of each row, ``[rows, 1]``, and the offset of each row or column."""
    if distribution == "shifted":
        signs = torch.rand((1, rows.shape[1]), generator=generator, device=rows.device).lt(0.5)
        return torch.ones((len(rows), 1), device=rows.device), torch.where(signs, -_SHIFT, _SHIFT)
    drawn = torch.rand((len(rows), 1), generator=generator, device=rows.device)
    if distribution == "wide":
        low, high = WIDE_EXPONENTS_HALF if is_half else WIDE_EXPONENTS
        share = drawn.argsort(dim=0) / (len(rows) - 1) if len(rows) > 1 else drawn  # both bounds always occur
        return torch.exp2(share * (high - low) + low), torch.zeros_like(drawn)
    if distribution == "tiny":
        factor = _TINY_ONE_BYTE if rows.dtype.itemsize == 1 else _TINY
        return torch.full_like(drawn, factor), torch.zeros_like(drawn)
    kinds = drawn.argsort(dim=0) % 4  # a random order: even few rows contain both kinds; a single row becomes 1
    return (kinds > 1).float(), (kinds == 0).float()


def has_half(definition: Definition) -> bool:
    """Return whether float16 takes part in the computation."""
    return any(spec.dtype == DType.FLOAT16 for spec in (*definition.inputs.values(), *definition.outputs.values()))


def _cast(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Convert to a dtype; numbers beyond the range of a one-byte floating dtype would become NaN."""
    if dtype.is_floating_point and dtype.itemsize == 1:
        values = values.clamp_(-torch.finfo(dtype).max, torch.finfo(dtype).max)
    return values.to(dtype)


# -- selection by values -----------------------------------------------------------------------

_SELECTS = frozenset({"topk", "argmax", "argmin", "argsort", "sort"})
"""Calls by which a reference selects elements by their values; what equal ones give is ambiguous."""
_DRAWS = frozenset({
    "multinomial", "rand", "rand_like", "randint", "randn", "bernoulli", "bernoulli_", "exponential_", "uniform_",
    "normal_", "random_", "geometric_", "Categorical", "sample", "gumbel_softmax",
})  # fmt: skip
_SHAPE_ATTRIBUTES = frozenset({"shape", "ndim", "dtype", "size", "dim", "numel"})


def is_distributable(definition: Definition, name: str) -> bool:
    """Return whether a distribution may change an input: its values are plain, and equal ones are not ambiguous.

    Rows of ones contain ties, and a kernel may resolve that of a selection either way; a sampler may draw either token.
    """
    spec = definition.inputs[name]
    if spec.shape is None or spec.dtype == DType.FLOAT4_E2M1 or role_of(definition, name) is not Role.PLAIN:
        return False
    has_integers = any(output.is_integer for output in definition.outputs.values())
    return is_sampler(definition) or not (has_integers or is_selected(definition, name))


def is_sampler(definition: Definition) -> bool:
    """Return whether a reference draws random numbers and returns only integers."""
    return all(out.is_integer for out in definition.outputs.values()) and bool(_DRAWS & calls_in(definition.reference))


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
