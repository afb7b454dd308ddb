"""Input variation: fresh values for timed calls, mixed from two input sets in a few launches.

Each timed call needs inputs that differ from all earlier ones in every element that a solution may
read; synthesizing them costs more than most kernels. `vary` mixes them from two valid sets:

- Values that are valid one by one (activations, caches, states, weights, scales) are mixed per
  element by a fair draw. The inputs of a set are independent of one another, so the mixture has the
  distribution of either set for every op, also for quantized values beside the scales of the other
  set. Mixing whole rows would leave a matrix product with rows seen before, which can be cached.
- Rows that are valid as a whole (probabilities, keys of length 1) are mixed per row, and their
  elements are permuted in the same way for all rows, which keeps sums and norms.
- Values that are equal in all sets (blobs) cannot be mixed. Plain values and weights are multiplied
  per element by 0.5 to 0.85, which keeps signs, zeros, infinities and orders of magnitude. The rows
  of routing scores are permuted, which keeps the load of each expert. Scales and rotary caches keep
  their values.

Booleans and scalars keep their values, and so do inputs whose values a constraint of the definition
reads. Integers keep their values here; `redrawing` changes them.
"""

from __future__ import annotations

import ast
import enum
from collections.abc import Iterator, Mapping, Sequence

import torch
from fib_schema import Definition, parse_constraint

from .generation import Value
from .makers import CHUNK_ELEMENTS
from .synthesis import Role, role_of

_FEW_DRAWS = 64
"""Number of fair draws up to which all may well be equal; both outcomes are then forced to occur."""
_SMALL_ELEMENTS = 4096
"""Elements up to which plain tensors are rescaled as well, because they have few mixtures."""
_MIN_ELEMENTS, _MIN_ROWS = 16, 8
"""Below these sizes, a mixture or a permutation would soon repeat."""
_FACTORS = (0.5, 0.85)  # above, rounding to three significant bits may undo the change
_SHAPE_ATTRIBUTES = frozenset({"shape", "ndim", "dtype", "size", "dim", "numel"})
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_BYTE_ONES = 0x0101010101010101


class Variation(enum.Enum):
    """Method of making fresh values of an input."""

    MIXED = "mixed"
    """Each element comes from one of two sets."""
    RESCALED = "rescaled"
    """Mixed, and each element is multiplied by a random factor; fp4 values change signs instead."""
    SHUFFLED = "shuffled"
    """Each row comes from one of two sets; one permutation reorders the elements of all rows."""
    PERMUTED = "permuted"
    """The rows of the first set in a random order other than the original one."""


class LinkGranularity(enum.Enum):
    """Smallest unit of an input that a link kernel may change while the input stays valid.

    A link makes the next call's input depend on the previous call's output by selecting between
    two candidate values of each unit.
    """

    ELEMENT = "element"
    """Each element comes from one of two candidates, independently of all others."""
    PAIR_SWAP = "pair_swap"
    """Each row comes from one of two candidates, and adjacent elements of a row may be swapped, which keeps
    the sum and the norm of the row."""
    WHOLE = "whole"
    """The input as a whole is one of two candidates, because its rows must stay together (load of each expert)."""


_GRANULARITIES = {
    Variation.MIXED: LinkGranularity.ELEMENT,
    Variation.RESCALED: LinkGranularity.ELEMENT,
    Variation.SHUFFLED: LinkGranularity.PAIR_SWAP,
    Variation.PERMUTED: LinkGranularity.WHOLE,
}


def link_granularity(variation: Variation) -> LinkGranularity:
    """Return the smallest unit that a link may change in an input that is varied by this method."""
    return _GRANULARITIES[variation]


def varying_inputs(definition: Definition, sets: Sequence[Mapping[str, Value]]) -> dict[str, Variation]:
    """Return the inputs whose values can be varied, with the method; empty if no input can.

    Compares the sets once, which synchronizes the device; `vary` does not.

    Args:
        definition: The definition that the inputs belong to.
        sets: Valid input sets of one workload. With a single set, all inputs count as equal in all sets.
    """
    fixed = {name for text in definition.constraints for name in _names_read_by_value(parse_constraint(text))}
    found = {}
    for name in definition.inputs:
        tensors = [value for item in sets if isinstance(value := item.get(name), torch.Tensor)]
        if name in fixed or not tensors or len(tensors) < len(sets):
            continue
        variation = _select_variation(role_of(definition, name), tensors)
        if variation is not None:
            found[name] = variation
    return found


def vary(
    target: Mapping[str, torch.Tensor],
    first: Mapping[str, Value],
    second: Mapping[str, Value],
    names: Mapping[str, Variation],
    generator: torch.Generator,
) -> None:
    """Write fresh values into tensors, different ones for each slot, without synchronizing the device.

    Needs up to 12 launches per input, most of them on small tensors, and as many for every further
    2**25 elements; this bounds the temporary memory. Tensors that are not named stay unchanged.

    Shapes:
        first, second: any, the same for one name; of one dtype and device.
        target: ``[slots, *shape]``.

    Args:
        target: Tensors to write; they share no memory with the sets.
        first: One input set.
        second: Another input set, or the same if there is only one.
        names: Result of `varying_inputs` for the sets.
        generator: Draws all random numbers; on the device of the tensors. Equal states give equal values.
    """
    for name, variation in names.items():
        out, a, b = target[name], _tensor(first, name).contiguous(), _tensor(second, name).contiguous()
        if not out.numel() or out[0].is_contiguous():
            _vary(out, a, b, variation, generator)
            continue
        for slot in out:  # one at a time, to need little memory
            made = torch.empty_like(a).unsqueeze(0)
            _vary(made, a, b, variation, generator)
            slot.copy_(made[0])


def _vary(
    out: torch.Tensor, a: torch.Tensor, b: torch.Tensor, variation: Variation, generator: torch.Generator
) -> None:
    """Write fresh values of one input to slots, each of which is contiguous."""
    match variation:
        case Variation.MIXED:
            _mix(out, a, b, generator)
        case Variation.RESCALED:
            _mix(out, a, b, generator)
            _rescale(out, generator)
        case Variation.SHUFFLED:
            for slot in out:
                _shuffle(slot, a, b, generator)
        case Variation.PERMUTED:
            for slot in out:
                _permute(slot, a, generator)


# -- selection of the method ------------------------------------------------------------------------


def _select_variation(role: Role, tensors: Sequence[torch.Tensor]) -> Variation | None:
    """Return the method for an input, by its role and by whether its values differ between the sets."""
    size = tensors[0].numel()
    if not tensors[0].is_floating_point() or not size:
        return None
    bits = [_bits(tensor.contiguous()) for tensor in tensors]
    are_equal = len(bits) == 1 or any(torch.equal(bits[0], other) for other in bits[1:])
    if role in {Role.PLAIN, Role.WEIGHTS}:
        if not are_equal:
            return Variation.MIXED if size > _SMALL_ELEMENTS else Variation.RESCALED
        return Variation.RESCALED if bool(bits[0].any()) else None  # zeros stay zeros
    if role is Role.ROWS:
        return Variation.SHUFFLED if size >= _MIN_ELEMENTS else None
    if role is Role.SCORES and are_equal:
        return Variation.PERMUTED if len(_rows(tensors[0].contiguous())) >= _MIN_ROWS else None
    if role in {Role.SCORES, Role.FACTORS} and not are_equal:
        return Variation.MIXED if size >= _MIN_ELEMENTS else None
    return None


def _names_read_by_value(node: ast.AST) -> Iterator[str]:
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
        yield from _names_read_by_value(child)


# -- making of the values --------------------------------------------------------------------------


def _mix(out: torch.Tensor, first: torch.Tensor, second: torch.Tensor, generator: torch.Generator) -> None:
    """Take each element of each slot from one tensor or the other."""
    a, b = _bits(first), _bits(second)
    for part, start in _parts(out):
        end = start + part.shape[1]
        torch.where(_draw(part.numel(), generator).view_as(part), a[start:end], b[start:end], out=part)


def _rescale(out: torch.Tensor, generator: torch.Generator) -> None:
    """Multiply each element by its own random factor, in place."""
    if _is_packed(out):
        for bits, _ in _parts(out):
            flips = _random_bytes(bits.numel(), 0x11, generator).mul_(8)  # the sign bits of both numbers
            bits.bitwise_xor_(flips.view_as(bits))
        return
    for bits, _ in _parts(out):
        part = bits.view(out.dtype)
        factors = torch.empty(part.shape, device=out.device).uniform_(*_FACTORS, generator=generator)
        part.copy_(factors.mul_(part.to(torch.float32)))


def _parts(out: torch.Tensor) -> Iterator[tuple[torch.Tensor, int]]:
    """Yield the bits of all slots in chunks ``[slots, elements]``, each with the index of its first element."""
    bits = out.flatten(1).view(_INTEGERS[out.dtype.itemsize])
    for start in range(0, bits.shape[1], CHUNK_ELEMENTS):
        columns = bits[:, start : start + CHUNK_ELEMENTS]
        for part in torch.split(columns, max(1, CHUNK_ELEMENTS // columns.shape[1])):
            yield part, start


def _shuffle(out: torch.Tensor, first: torch.Tensor, second: torch.Tensor, generator: torch.Generator) -> None:
    """Take each row from one tensor or the other; permute the elements of all rows in the same way."""
    rows = _rows(out)
    chosen = _draw(len(rows), generator).unsqueeze(1)
    order = _order(rows.shape[1], generator)
    step = max(1, CHUNK_ELEMENTS // rows.shape[1])
    parts = [torch.split(tensor, step) for tensor in (rows, chosen, _rows(first), _rows(second))]
    for target, choice, a, b in zip(*parts, strict=True):
        torch.index_select(torch.where(choice, a, b), 1, order, out=target)


def _permute(out: torch.Tensor, first: torch.Tensor, generator: torch.Generator) -> None:
    """Write the rows in a random order other than the original one."""
    order = _order(len(_rows(first)), generator)
    is_old = (order == torch.arange(len(order), device=order.device)).all()
    torch.index_select(_rows(first), 0, torch.where(is_old, order.roll(1), order), out=_rows(out))


def _draw(count: int, generator: torch.Generator) -> torch.Tensor:
    """Return fair draws, a bool tensor [count]; 2 to 64 draws are neither all true nor all false."""
    chosen = _random_bytes(count, 0x01, generator).view(torch.bool)
    if not 1 < count <= _FEW_DRAWS:
        return chosen
    order = _order(count, generator)
    return (chosen | (order == 0)) & (order != 1)


def _random_bytes(count: int, bits: int, generator: torch.Generator) -> torch.Tensor:
    """Return random bytes masked by `bits` (at most 0x7f); each non-negative int64 draw gives eight bytes."""
    words = torch.empty(-(-count // 8), dtype=torch.int64, device=generator.device)
    return words.random_(generator=generator).bitwise_and_(bits * _BYTE_ONES).view(torch.uint8)[:count]


def _order(count: int, generator: torch.Generator) -> torch.Tensor:
    """Return a random permutation of `count` indices."""
    return torch.rand(count, generator=generator, device=generator.device).argsort()


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """View the elements as integers of the same width in one dimension, for all dtypes."""
    return tensor.view(-1).view(_INTEGERS[tensor.dtype.itemsize])


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    """View the bits as rows, formed by all dimensions but the last; a vector is one row."""
    return _bits(tensor).view(-1, tensor.shape[-1] if tensor.dim() else 1)


def _is_packed(tensor: torch.Tensor) -> bool:
    return str(tensor.dtype) == "torch.float4_e2m1fn_x2"  # absent from torch before 2.8


def _tensor(values: Mapping[str, Value], name: str) -> torch.Tensor:
    value = values[name]
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"input {name!r} cannot be varied: expected a tensor, got {value!r}")
    return value
