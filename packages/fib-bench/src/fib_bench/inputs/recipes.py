"""Recipes of generated inputs: from them, `generator.h` makes the inputs of a timed call out of one key.

A recipe says which values are valid, so that every call can have its own. It is the contents that the rule of the input
states (`synthesis`), and more:

- Plain values and weights are normal, mixed with rows of the other distributions of the workload, rows of another
  magnitude, single elements far from the rest and, in rows beside those of ``shifted``, parts with another mean. No few
  elements and no part tell what a row is like, and no sum over a row can be foretold.
- Recorded values are multiplied per element by 0.5 to 0.85. Where both signs occur, signs are drawn, and zeros get
  values; else they stay, like infinities. Where values are selected, the elements of each row change places. Recorded
  scores keep their signs, and their rows change places.

Scalars, rotary caches and inputs whose values a constraint reads stay, like structure, which `redrawing` changes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Mapping, Sequence

import msgspec
import torch
from fib_schema import Definition, DType, parse_constraint
from fib_schema.strides import normalized_strides

from .. import recipe
from ..recipe import Content, Recipe
from . import synthesis
from .generation import Value
from .synthesis import InputDraft, Role, SynthesisError, find_rule, first_axis, is_distributable, role_of

_DTYPES = tuple(dtype.value for dtype in (
    DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16, DType.FLOAT8_E4M3FN, DType.FLOAT8_E5M2, DType.FLOAT4_E2M1,
    DType.INT64, DType.INT32, DType.INT16, DType.INT8, DType.BOOL,
))  # fmt: skip
_DISTRIBUTIONS = {"normal": 1, "wide": 2, "tiny": 4, "zeros_and_ones": 8, "shifted": 16}
_SCALES, _SPIKES = 32, 64
_FACTORS = (0.5, 0.85)  # above, rounding to three significant bits may undo the change
_SCORE_FACTORS = (0.9, 1.0)  # other factors would change the load of experts
_SCALAR_FACTOR = 0.625
_MAX_DIMS = 4
_LONG_VECTOR, _VECTOR_ROW = 1024, 32
"""Elements above which a vector consists of rows, and their number; each element of a shorter one is a row."""

u32, u64 = ctypes.c_uint32, ctypes.c_uint64


class Input(ctypes.Structure):
    """`FibInput` of the header."""

    _fields_ = (
        ("target", u64), ("base", u64), ("elements", u64), ("kind", u32), ("dtype", u32), ("row", u32), ("index", u32),
        ("mask", u32), ("scale", ctypes.c_float), ("low", ctypes.c_float), ("high", ctypes.c_float), ("first", u64),
        ("last", u64), ("dims", u32), ("shape", u32 * _MAX_DIMS), ("stride", u32 * _MAX_DIMS), ("padding", u32),
    )  # fmt: skip


def native_input(recipe: Recipe, target: int, base: int) -> Input:
    """Return the recipe for the native code, with the addresses of the input and of its base, multiples of 16."""
    return Input(
        target=target, base=base if recipe.needs_base else 0, elements=recipe.elements, kind=recipe.kind,
        dtype=_DTYPES.index(recipe.dtype), row=recipe.row, index=recipe.position, mask=recipe.mask, scale=recipe.scale,
        low=recipe.low, high=recipe.high, first=recipe.first % 2**64, last=recipe.last % 2**64, dims=len(recipe.shape),
        shape=(u32 * _MAX_DIMS)(*recipe.shape), stride=(u32 * _MAX_DIMS)(*recipe.strides),
    )  # fmt: skip


def plan_recipes(
    definition: Definition,
    axes: Mapping[str, int],
    values: Mapping[str, Value],
    *,
    distributions: Sequence[str],
    recorded: Collection[str] = (),
) -> tuple[dict[str, Recipe], dict[str, str]]:
    """Select what each input of a call may contain, and why the values of others stay, but of structure.

    Constant axes may be missing. `values` are valid inputs, the base of recipes that need one; CUDA tensors synchronize
    the device. The reference accepts the `distributions`; the values of `recorded` inputs come from blobs.
    """
    draft = InputDraft(definition, {**definition.const_axes, **axes}, 0)
    read, recipes, reasons = read_by_constraints(definition), dict[str, Recipe](), dict[str, str]()
    for position, (name, spec) in enumerate(definition.inputs.items()):
        value, dtype = values.get(name), str(spec.dtype)
        if not isinstance(value, torch.Tensor) or not value.numel():
            continue
        if role_of(definition, name) in synthesis.STRUCTURE_ROLES:
            continue
        try:
            if name in read:
                raise SynthesisError("a constraint reads its values")
            shape, strides = _merged(value.shape, normalized_strides(tuple(value.shape), value.stride()))
            if dtype not in _DTYPES:
                raise SynthesisError(f"values of dtype {dtype} are not generated for timed calls")
            content = _content(draft, name, value, distributions, is_recorded=name in recorded)
        except SynthesisError as error:
            reasons[name] = str(error)
            continue
        row = value.shape[-1] if value.dim() else 1
        if value.dim() < 2 and content.kind == recipe.NORMAL and content.mask & ~(1 | _SCALES | _SPIKES):
            row = _VECTOR_ROW if value.numel() > _LONG_VECTOR else 1
        fields = {"shape": shape, "strides": strides, **msgspec.structs.asdict(content)}
        recipes[name] = Recipe(name=name, position=position, dtype=dtype, elements=value.numel(), row=row, **fields)
    return recipes, reasons


def sealed(name: str, position: int, tensor: torch.Tensor) -> Recipe | None:
    """Return the recipe that encrypts values, and decrypts them; None if they cannot be, or it takes a CPU too long."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    is_slow = tensor.is_floating_point() and not tensor.is_cuda
    if dtype not in _DTYPES or is_slow or dtype == "bool" or not tensor.is_contiguous() or not tensor.numel():
        return None  # copies make 1 of other bytes of a boolean
    return Recipe(
        recipe.SEALED, name=name, position=position, dtype=dtype, elements=tensor.numel(), row=1, needs_base=True
    )


def read_by_constraints(definition: Definition) -> set[str]:
    """Return the names whose values, rather than shapes, a constraint reads."""
    return {name for text in definition.constraints for name in synthesis.names_read_by_value(parse_constraint(text))}


def other_scalars(
    definition: Definition, axes: Mapping[str, int], values: Mapping[str, Value]
) -> list[dict[str, int | float]]:
    """Return other values of scalars for a call each.

    Those that are valid in any case come together: floating ones, and the first expert of a device. A reference may
    refuse another integer or boolean, so they come one by one.
    """
    sizes, read = {**definition.const_axes, **axes}, read_by_constraints(definition)
    local = sizes.get("num_local_experts") or 1
    experts = sizes.get("num_experts", 0) // local * local
    valid: dict[str, int | float] = {}
    others: list[dict[str, int | float]] = []
    for name, value in values.items():
        if name in read or isinstance(value, torch.Tensor) or value is None:
            continue
        if type(value) is float:
            valid |= {name: float(f"{value * _SCALAR_FACTOR:.4g}")} if value else {}
        elif name == "local_expert_offset":
            valid |= {name: (int(value) + local) % experts} if experts > local and value % local == 0 else {}
        elif type(value) is bool:
            others.append({name: not value})
        else:
            others.append({name: value // 2 if value > 1 else value + 1 if value >= 0 else -value})
    return [valid, *others] if valid else others


def _content(
    draft: InputDraft, name: str, value: torch.Tensor, distributions: Sequence[str], *, is_recorded: bool
) -> Content:
    """Return what depends on the meaning of an input; `SynthesisError` with the reason if its values stay."""
    rule = find_rule(draft.definition, name)
    found = None if rule.role is Role.FIXED else rule.values(draft, name)
    if not isinstance(found, Content):
        is_float = value.is_floating_point()
        raise SynthesisError("its values depend on each other" if is_float else "no rule states which values are valid")
    if found.kind == recipe.INTEGER:
        return _integers(draft, found, value, rule.role, is_recorded)
    if found.kind == recipe.MASK:
        if bool((value == value.flatten()[0]).all()):
            raise SynthesisError("all of its elements are equal")
        if not is_recorded:
            return found
        is_first = bool(value.any(-1).all())  # true in each row
        return msgspec.structs.replace(found, high=float(value.float().mean()), first=int(is_first))
    if found.kind in {recipe.SHARES, recipe.DIRECTION} and (value.dim() == 0 or value.shape[-1] < 2):
        raise SynthesisError("a row of one element has only one value")
    if is_recorded and found.kind != recipe.BYTES and not _has_rows_like(found, value):
        return _rescaled(value, rule.role, is_selected=synthesis.is_selected(draft.definition, name))
    if found.kind != recipe.NORMAL:
        return found
    low, high = synthesis.wide_exponents(draft.definition)
    mask = _DISTRIBUTIONS["normal"] | _SCALES
    if rule.role is Role.SCORES:  # ties are ambiguous, and bfloat16 has many of them far from zero
        mask = _DISTRIBUTIONS["normal"]
    elif rule.role is Role.WEIGHTS:
        mask |= _SPIKES
    elif len(distributions) > 1 and is_distributable(draft.definition, name):  # else references may fail
        mask |= sum(_DISTRIBUTIONS[each] for each in distributions if each != "normal") | _SPIKES
    return msgspec.structs.replace(found, mask=mask, low=low, high=high)


def _integers(draft: InputDraft, content: Content, value: torch.Tensor, role: Role, is_recorded: bool) -> Content:
    low, high = content.first, content.last
    if role is Role.COUNTS:  # the size of the vocabulary disables top-k
        vocabulary = first_axis(draft.axes, *synthesis.VOCABULARY_AXES) or 1 << 31
        high = min(max(high, int(value.masked_fill(value >= vocabulary, 0).max())), vocabulary - 1)
    elif role is Role.BYTES and is_recorded:
        low, high = int(value.min()), int(value.max())
    inside = (value >= low) & (value <= high)
    if low >= high or not bool(inside.any()):
        raise SynthesisError(f"only {low} is valid" if low >= high else f"no element lies between {low} and {high}")
    return msgspec.structs.replace(content, first=low, last=high, needs_base=not bool(inside.all()))


def _has_rows_like(content: Content, value: torch.Tensor) -> bool:
    """Return whether recorded rows have the sum or the length of rows that can be drawn."""
    if content.kind not in {recipe.SHARES, recipe.DIRECTION}:
        return False
    totals = value.float().sum(-1) if content.kind == recipe.SHARES else value.float().norm(dim=-1)
    return bool(((totals - 1).abs() < 0.02).all())


def _rescaled(value: torch.Tensor, role: Role, *, is_selected: bool) -> Content:
    numbers = value.to(torch.float32)
    if not bool((numbers != 0).any()):
        raise SynthesisError("all recorded values are zero")
    if role is Role.SCORES:
        return Content(recipe.RESCALE, 1.0, *_SCORE_FACTORS, first=1, needs_base=True)
    has_signs = role is not Role.FACTORS and bool((numbers < 0).any() & (numbers > 0).any() & numbers.isfinite().all())
    low, high = _FACTORS
    places = 2 if is_selected and role is Role.PLAIN else 0
    return Content(recipe.RESCALE, float(numbers.abs().mean()), low, high, places, int(has_signs), needs_base=True)


def _merged(shape: Sequence[int], strides: Sequence[int] | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return shape and strides with as few dimensions as possible; empty if contiguous."""
    if strides is None:
        return (), ()
    sizes, steps = list[int](), list[int]()
    for size, step in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if sizes and steps[-1] == size * step:
            sizes[-1], steps[-1] = sizes[-1] * size, step
        else:
            sizes.append(size)
            steps.append(step)
    if len(sizes) > _MAX_DIMS:
        raise SynthesisError(f"its elements lie apart in more than {_MAX_DIMS} dimensions")
    return tuple(sizes), tuple(steps)
