"""Recipes of generated inputs: from them, `generator.h` makes the inputs of a timed call out of one key.

A recipe says which values are valid, so that every call can have its own:

- Plain values and weights are normal, mixed with rows of the other distributions of the workload, rows of another
  magnitude and single elements far from the rest. No few elements tell what a row is like, and no sum over a row can be
  foretold.
- Values that are valid one by one (scales, decays, thresholds, integer data) are uniform within their bounds.
- Rows that are valid as a whole keep the sum or the norm of neighbours; true and false elements change places.
- Recorded values are multiplied per element by 0.5 to 0.85, which keeps signs, zeros, infinities and magnitudes.

Scalars, rotary caches, structural integers and inputs whose values a constraint reads stay; `redrawing` changes
structural integers.
"""

from __future__ import annotations

import ast
import ctypes
from collections.abc import Collection, Iterator, Mapping, Sequence

import attrs
import msgspec
import torch
from fib_schema import Definition, DType, parse_constraint
from fib_schema.strides import normalized_strides

from ..recipe import Recipe
from . import makers
from .generation import Value
from .makers import InputDraft
from .synthesis import Role, SynthesisRule, find_rule, has_half

NORMAL, UNIFORM, PAIR_SUM, PAIR_ROTATE, RESCALE, INTEGER, BYTES, PAIR_SWAP = range(8)
"""Kinds of recipes."""
_DTYPES = tuple(dtype.value for dtype in (
    DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16, DType.FLOAT8_E4M3FN, DType.FLOAT8_E5M2, DType.FLOAT4_E2M1,
    DType.INT64, DType.INT32, DType.INT16, DType.INT8, DType.BOOL,
))  # fmt: skip
_DISTRIBUTIONS = {"normal": 1, "wide": 2, "tiny": 4, "zeros_and_ones": 8, "shifted": 16}
_SCALES, _SPIKES = 32, 64
_FACTORS = (0.5, 0.85)  # above, rounding to three significant bits may undo the change
_SCORE_FACTORS = (0.9, 1.0)  # other factors would change the load of experts
_MAX_DIMS = 4
_LONG_VECTOR, _VECTOR_ROW = 1024, 32
"""Elements above which a vector consists of rows, and their number; each element of a shorter one is a row."""
_STRUCTURE = "structure of the call, which is redrawn as a whole"
_SHAPE_ATTRIBUTES = frozenset({"shape", "ndim", "dtype", "size", "dim", "numel"})


u32, u64 = ctypes.c_uint32, ctypes.c_uint64


class Input(ctypes.Structure):
    """`FibInput` of the header."""

    _fields_ = (
        ("target", u64), ("base", u64), ("elements", u64), ("kind", u32), ("dtype", u32), ("row", u32), ("index", u32),
        ("mask", u32), ("scale", ctypes.c_float), ("low", ctypes.c_float), ("high", ctypes.c_float), ("first", u64),
        ("last", u64), ("dims", u32), ("shape", u32 * _MAX_DIMS), ("stride", u32 * _MAX_DIMS), ("padding", u32),
    )  # fmt: skip


def native_input(recipe: Recipe, target: int, base: int) -> Input:
    """Return the recipe for the native code.

    Args:
        recipe: What to make.
        target: Address of the input, a multiple of 16.
        base: Address of the values to change, or 0; a multiple of 16.
    """
    return Input(
        target=target, base=base if recipe.needs_base else 0, elements=recipe.elements, kind=recipe.kind,
        dtype=_DTYPES.index(recipe.dtype), row=recipe.row, index=recipe.position, mask=recipe.mask, scale=recipe.scale,
        low=recipe.low, high=recipe.high, first=recipe.first % 2**64, last=recipe.last % 2**64, dims=len(recipe.shape),
        shape=(u32 * _MAX_DIMS)(*recipe.shape), stride=(u32 * _MAX_DIMS)(*recipe.strides),
    )  # fmt: skip


# -- planning ---------------------------------------------------------------------------------------


def plan_recipes(
    definition: Definition,
    axes: Mapping[str, int],
    values: Mapping[str, Value],
    *,
    distributions: Sequence[str],
    recorded: Collection[str] = (),
    kept: Mapping[str, str] | None = None,
) -> tuple[dict[str, Recipe], dict[str, str]]:
    """Select what each input of a call may contain.

    Args:
        definition: The definition that the inputs belong to.
        axes: Sizes of the axes; constant axes may be missing.
        values: Valid inputs, the base of recipes that need one.
        distributions: Those that the reference accepts for the workload.
        recorded: Inputs whose values come from a blob.
        kept: Inputs that must stay, with reasons.

    Returns:
        Recipes by name, and the reasons for all other inputs but absent ones. Synchronizes the device.
    """
    reasons = dict.fromkeys(_read_by_value(definition), "a constraint reads its values") | dict(kept or {})
    planner = _Planner(InputDraft(definition, {**definition.const_axes, **axes}, 0), distributions, recorded)
    recipes: dict[str, Recipe] = {}
    for name in definition.inputs:
        found = reasons.get(name) or planner.plan(name, values.get(name))
        if isinstance(found, Recipe):
            recipes[name] = found
        elif values.get(name) is not None:
            reasons[name] = found
        else:
            reasons.pop(name, None)
    return recipes, reasons


@attrs.frozen
class _Planner:
    draft: InputDraft
    distributions: Sequence[str]
    recorded: Collection[str]

    def plan(self, name: str, value: Value) -> Recipe | str:
        """Return the recipe of an input, or why it has none."""
        if not isinstance(value, torch.Tensor):
            return "a scalar is a parameter of the call"
        if not value.numel():
            return "it has no elements"
        place = _merged(value.shape, normalized_strides(tuple(value.shape), value.stride()))
        if place is None:
            return f"its elements lie apart in more than {_MAX_DIMS} dimensions"
        found = self._content(name, value, find_rule(self.draft.definition, name))
        if isinstance(found, str):
            return found
        common = self._common(name, value) | {"shape": place[0], "strides": place[1]}
        return msgspec.convert(common | found, Recipe)

    def _common(self, name: str, value: torch.Tensor) -> dict[str, object]:
        row = value.shape[-1] if value.dim() else 1
        position = list(self.draft.definition.inputs).index(name)
        dtype = str(self.draft.spec(name).dtype)
        return {"name": name, "position": position, "dtype": dtype, "elements": value.numel(), "row": row}

    def _content(self, name: str, value: torch.Tensor, rule: SynthesisRule) -> dict[str, object] | str:
        """Return the fields that depend on the meaning of an input, or why its values stay."""
        dtype = self.draft.spec(name).dtype
        if dtype == DType.FLOAT4_E2M1:
            return {"kind": BYTES}
        if dtype == DType.BOOL:
            return _swapped(value)
        if not value.is_floating_point():
            return self._integers(name, value, rule.role)
        if rule.role is Role.ROWS:
            return _paired(value, PAIR_SUM if rule.make is makers.probabilities else PAIR_ROTATE)
        if rule.role is Role.FIXED:
            return "its values depend on each other"
        if name in self.recorded:
            return _rescaled(value, rule.role)
        if rule.role is Role.FACTORS:
            low, high = makers.factor_bounds(self.draft, name, rule.make)
            return {"kind": UNIFORM, "low": low, "high": high}
        return self._normal(name, value, rule)

    def _normal(self, name: str, value: torch.Tensor, rule: SynthesisRule) -> dict[str, object]:
        half = has_half(self.draft.definition)
        low, high = makers.WIDE_EXPONENTS_HALF if half else makers.WIDE_EXPONENTS
        fields: dict[str, object] = {"kind": NORMAL, "mask": self._mask(rule), "low": low, "high": high}
        if rule.make is makers.weight:
            fields["scale"] = makers.weight_deviation(self.draft, name)
        if value.dim() < 2 and rule.is_distributable and len(self.distributions) > 1:
            fields["row"] = _VECTOR_ROW if value.numel() > _LONG_VECTOR else 1
        return fields

    def _mask(self, rule: SynthesisRule) -> int:
        if rule.role is Role.SCORES:  # ties are ambiguous, and bfloat16 has many of them far from zero
            return _DISTRIBUTIONS["normal"]
        if not rule.is_distributable or len(self.distributions) < 2:
            selects = rule.is_distributable  # only normal values are left where outputs select by values
            return _DISTRIBUTIONS["normal"] | _SCALES | (0 if selects else _SPIKES)
        return sum(_DISTRIBUTIONS[name] for name in self.distributions) | _SCALES | _SPIKES

    def _integers(self, name: str, value: torch.Tensor, role: Role) -> dict[str, object] | str:
        bounds = self._bounds(name, value, role)
        if isinstance(bounds, str):
            return bounds
        low, high = bounds
        inside = (value >= low) & (value <= high)
        if low >= high or not bool(inside.any()):
            return f"only {low} is valid" if low >= high else f"no element lies between {low} and {high}"
        return {"kind": INTEGER, "first": low, "last": high, "needs_base": not bool(inside.all())}

    def _bounds(self, name: str, value: torch.Tensor, role: Role) -> tuple[int, int] | str:
        """Return the bounds of integers that are data, or why the values are not data."""
        match role:
            case Role.COUNTS:
                return 1, _largest_count(self.draft.axes, value)
            case Role.TOKENS:
                return self._token_bounds(int(value.max()))
            case Role.SEEDS:
                return 0, makers.SEED_LIMIT - 1
            case Role.BYTES:
                return (int(value.min()), int(value.max())) if name in self.recorded else (-128, 127)
            case Role.FIXED:
                return "no rule states which values are valid"
        return _STRUCTURE

    def _token_bounds(self, largest: int) -> tuple[int, int] | str:
        limit = makers.vocabulary_size(self.draft.axes)
        if limit is None:
            return "no axis states the size of the vocabulary"
        return (0, limit - 1) if largest < limit else f"it contains {largest}, the size of the vocabulary is {limit}"


def _largest_count(axes: Mapping[str, int], values: torch.Tensor) -> int:
    """Return the largest top-k to make: that of synthesis or of the input; the vocabulary size disables top-k."""
    default, vocabulary = makers.largest_top_k(axes), makers.vocabulary_size(axes)
    enabled = values if vocabulary is None else values[values < vocabulary]
    largest = max(default, int(enabled.max())) if enabled.numel() else default
    return largest if vocabulary is None else min(largest, vocabulary - 1)


def _swapped(value: torch.Tensor) -> dict[str, object] | str:
    width = value.shape[-1] // 2 * 2 if value.dim() else 0
    pairs = value[..., :width].reshape(-1, 2) if width else value.new_empty((0, 2))
    if not bool((pairs[:, 0] != pairs[:, 1]).any()):
        return "all neighbours are equal"
    return {"kind": PAIR_SWAP, "needs_base": True}


def _paired(value: torch.Tensor, kind: int) -> dict[str, object] | str:
    if not value.dim() or value.shape[-1] < 2:
        return "a row of one element has only one value"
    return {"kind": kind, "needs_base": True}


def _rescaled(value: torch.Tensor, role: Role) -> dict[str, object] | str:
    if not bool((value.to(torch.float32) != 0).any()):
        return "all recorded values are zero"
    low, high = _SCORE_FACTORS if role is Role.SCORES else _FACTORS
    return {"kind": RESCALE, "low": low, "high": high, "first": int(role is Role.SCORES), "needs_base": True}


def _merged(shape: Sequence[int], strides: Sequence[int] | None) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return shape and strides with as few dimensions as possible, empty if contiguous; None if there are too many."""
    if strides is None:
        return (), ()
    sizes: list[int] = []
    steps: list[int] = []
    for size, step in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if sizes and steps[-1] == size * step:
            sizes[-1], steps[-1] = sizes[-1] * size, step
        else:
            sizes.append(size)
            steps.append(step)
    return (tuple(sizes), tuple(steps)) if len(sizes) <= _MAX_DIMS else None


def _read_by_value(definition: Definition) -> set[str]:
    """Return the inputs whose values, rather than shapes, a constraint reads."""
    read = {name for text in definition.constraints for name in names_read_by_value(parse_constraint(text))}
    return read & set(definition.inputs)


def names_read_by_value(node: ast.AST) -> Iterator[str]:
    """Yield the names whose values, rather than shapes, an expression reads."""
    match node:
        case ast.Attribute(value=ast.Name(), attr=attr) if attr in _SHAPE_ATTRIBUTES:
            return
        case ast.Call(func=ast.Name(id="len"), args=[ast.Name()]):
            return
        case ast.Compare(left=ast.Name(), ops=[ast.Is() | ast.IsNot()]):
            return
        case ast.Name(id=name):
            yield name
    for child in ast.iter_child_nodes(node):
        yield from names_read_by_value(child)
