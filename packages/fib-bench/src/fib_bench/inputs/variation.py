"""Fresh inputs for timed calls, made of two input sets in a few launches.

A timed call must get inputs that were never seen, differing wherever a solution may look; making
them from scratch costs more than most kernels. So they are mixed from two valid sets:

- Where each element is valid by itself (activations, caches, states, weights, scales), every element
  comes from one set or the other by a fair draw. The inputs of the sets are drawn independently of
  one another, so the mixture has the same distribution as either, whatever the op: quantised values
  beside the other set's scales, or pages of a cache from both, are what a third set might hold.
  Mixing whole rows would do for validity, but not here: a product of two matrices then consists of
  rows seen before, four products that can be cached.
- Where a row is valid as a whole (probabilities, keys of length 1), whole rows are mixed, and their
  elements are put into a new order, the same for all rows: sums and lengths stay, even in one row.
- What is the same in all sets (a blob) is not mixed. Plain values and weights are multiplied element
  by element by 0.5 to 0.85: signs, zeros, infinities and orders of magnitude stay. The rows of
  routing scores are permuted, which leaves the load of each expert as it was. Of scales and caches
  of angles nothing is known: they keep their values.

Integers, truths and scalars keep their values, and so does an input whose values a constraint of
the definition reads.
"""

from __future__ import annotations

import ast
import enum
from collections.abc import Iterator, Mapping, Sequence

import torch
from fib_schema import Definition, parse_constraint

from .distributions import CHUNK
from .generation import Value
from .synthesis import CannotSynthesise, Nature, rule_of

_FEW = 64
"""Up to so many draws, a fair one may well be the same for all: then both outcomes are forced."""
_SMALL = 4096
"""Plain tensors of up to so many elements are rescaled as well: there are few mixtures of few elements."""
_LEAST_ELEMENTS, _LEAST_ROWS = 16, 8
"""Below these, a mixture or an order would soon come again."""
_FACTORS = (0.5, 0.85)  # above, rounding to three significant bits may undo the change
_ABOUT_SHAPE = frozenset({"shape", "ndim", "dtype", "size", "dim", "numel"})
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_BYTE_ONES = 0x0101010101010101


class Variation(enum.Enum):
    """How fresh values of an input are made."""

    MIXED = "mixed"
    """Each element is that of one set or the other."""
    RESCALED = "rescaled"
    """Mixed, and each element is multiplied by a random factor; fp4 numbers change their signs."""
    SHUFFLED = "shuffled"
    """Each row is that of one set or the other, its elements in a new order."""
    PERMUTED = "permuted"
    """The rows of the first set in a new order."""


def varying_inputs(definition: Definition, sets: Sequence[Mapping[str, Value]]) -> dict[str, Variation]:
    """The inputs whose values can be varied, and how; empty if there are none: fixed inputs.

    Compares the sets once, which waits for the device; `vary` does not.

    Args:
        definition: What the inputs are for.
        sets: Input sets of one workload, all valid; with only one, each input counts as equal in all sets.
    """
    fixed = {name for text in definition.constraints for name in _read_by_value(parse_constraint(text))}
    found = {}
    for name in definition.inputs:
        tensors = [value for item in sets if isinstance(value := item.get(name), torch.Tensor)]
        if name in fixed or not tensors or len(tensors) < len(sets):
            continue
        variation = _variation(_nature(definition, name), tensors)
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
    """Write fresh values into tensors, others for each slot, without waiting for the device.

    Up to 12 launches per input, most of them on small tensors, and as many for every further 2**25
    elements, which bounds the temporary memory. Tensors that are not named are left alone.

    Shapes:
        first, second: any, the same for one name; contiguous, of one dtype and device.
        target: ``[slots, *shape]``, each slot contiguous.

    Args:
        target: What to write to; it shares no memory with the sets.
        first: One input set.
        second: Another one, or the same if there is only one.
        names: What `varying_inputs` returned for the sets.
        generator: Draws all that is random; on the device of the tensors. Equal states give equal values.
    """
    for name, variation in names.items():
        out, a, b = target[name], _tensor(first, name), _tensor(second, name)
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


# -- what can be varied ------------------------------------------------------------------------


def _variation(nature: Nature, tensors: Sequence[torch.Tensor]) -> Variation | None:
    """How to vary an input, by what its values are and whether they differ between the sets."""
    size = tensors[0].numel()
    if not tensors[0].is_floating_point() or not size:
        return None
    bits = [_bits(tensor) for tensor in tensors]
    are_equal = len(bits) == 1 or any(torch.equal(bits[0], other) for other in bits[1:])
    if nature in {Nature.PLAIN, Nature.WEIGHTS}:
        if not are_equal:
            return Variation.MIXED if size > _SMALL else Variation.RESCALED
        return Variation.RESCALED if bool(bits[0].any()) else None  # zeros stay zeros
    if nature is Nature.ROWS:
        return Variation.SHUFFLED if size >= _LEAST_ELEMENTS else None
    if nature is Nature.SCORES and are_equal:
        return Variation.PERMUTED if len(_rows(tensors[0])) >= _LEAST_ROWS else None
    if nature in {Nature.SCORES, Nature.FACTORS} and not are_equal:
        return Variation.MIXED if size >= _LEAST_ELEMENTS else None
    return None


def _nature(definition: Definition, name: str) -> Nature:
    try:
        return rule_of(definition, name).nature
    except CannotSynthesise:
        return Nature.FIXED  # a blob that no rule knows


def _read_by_value(node: ast.AST) -> Iterator[str]:
    """The names whose values, rather than shapes, an expression reads."""
    match node:
        case ast.Attribute(value=ast.Name(), attr=attr) if attr in _ABOUT_SHAPE:
            return
        case ast.Call(func=ast.Name(id="len"), args=[ast.Name()]):
            return
        case ast.Compare(left=ast.Name(), ops=[ast.Is() | ast.IsNot()]):
            return
        case ast.Name(id=name):
            yield name
    for child in ast.iter_child_nodes(node):
        yield from _read_by_value(child)


# -- how it is varied --------------------------------------------------------------------------


def _mix(out: torch.Tensor, first: torch.Tensor, second: torch.Tensor, generator: torch.Generator) -> None:
    """Take each element of each slot from one tensor or the other."""
    a, b = _bits(first), _bits(second)
    for part, start in _parts(out):
        end = start + part.shape[1]
        torch.where(_draw(part.numel(), generator).view_as(part), a[start:end], b[start:end], out=part)


def _rescale(out: torch.Tensor, generator: torch.Generator) -> None:
    """Multiply each element by a factor of its own, in place."""
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
    """The bits of all slots in pieces ``[slots, elements]`` of bounded size, each with its first element."""
    bits = out.flatten(1).view(_INTEGERS[out.dtype.itemsize])
    for start in range(0, bits.shape[1], CHUNK):
        columns = bits[:, start : start + CHUNK]
        for part in torch.split(columns, max(1, CHUNK // columns.shape[1])):
            yield part, start


def _shuffle(out: torch.Tensor, first: torch.Tensor, second: torch.Tensor, generator: torch.Generator) -> None:
    """Take each row from one tensor or the other, with its elements in an order that is the same for all rows."""
    rows = _rows(out)
    chosen = _draw(len(rows), generator).unsqueeze(1)
    order = _order(rows.shape[1], generator)
    step = max(1, CHUNK // rows.shape[1])
    parts = [torch.split(tensor, step) for tensor in (rows, chosen, _rows(first), _rows(second))]
    for target, choice, a, b in zip(*parts, strict=True):
        torch.index_select(torch.where(choice, a, b), 1, order, out=target)


def _permute(out: torch.Tensor, first: torch.Tensor, generator: torch.Generator) -> None:
    """Bring the rows into an order that is not the one they have."""
    order = _order(len(_rows(first)), generator)
    is_old = (order == torch.arange(len(order), device=order.device)).all()
    torch.index_select(_rows(first), 0, torch.where(is_old, order.roll(1), order), out=_rows(out))


def _draw(count: int, generator: torch.Generator) -> torch.Tensor:
    """Fair draws, a bool tensor [count]; if they are few but at least two, neither all true nor all false."""
    chosen = _random_bytes(count, 0x01, generator).view(torch.bool)
    if not 1 < count <= _FEW:
        return chosen
    order = _order(count, generator)
    return (chosen | (order == 0)) & (order != 1)


def _random_bytes(count: int, bits: int, generator: torch.Generator) -> torch.Tensor:
    """Random bytes in which only the given bits are ever set, up to 0x7f: eight are drawn at a time, without sign."""
    words = torch.empty(-(-count // 8), dtype=torch.int64, device=generator.device)
    return words.random_(generator=generator).bitwise_and_(bits * _BYTE_ONES).view(torch.uint8)[:count]


def _order(count: int, generator: torch.Generator) -> torch.Tensor:
    """A random order of `count` things, as indices."""
    return torch.rand(count, generator=generator, device=generator.device).argsort()


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """The elements as integers of the same width in one dimension: all dtypes can then be moved and compared."""
    return tensor.view(-1).view(_INTEGERS[tensor.dtype.itemsize])


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    """The bits as rows: all dimensions but the last; a vector is one row."""
    return _bits(tensor).view(-1, tensor.shape[-1] if tensor.dim() else 1)


def _is_packed(tensor: torch.Tensor) -> bool:
    return str(tensor.dtype) == "torch.float4_e2m1fn_x2"  # which older versions of torch do not have


def _tensor(values: Mapping[str, Value], name: str) -> torch.Tensor:
    value = values[name]
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"input {name!r} is to be varied, but it is {value!r} and no tensor")
    return value
