"""The precision flag marks outputs that were computed in fewer bits than the inputs have.

Such an output is within its tolerance, but its error is far above that of another order of summation. The bound comes
from the reference: it is called on inputs that were moved a little, and the change of its outputs shows how much the
function enlarges errors. Inputs of float32 are moved by up to 2**-16 of themselves: TF32 rounds operands to 10 bits and
bfloat16 to 7. Inputs of 16 bits each move by one unit in the last place, and inputs of float32 beside them by as much,
because honest kernels round intermediate values to 16 bits (split-K partial sums, attention weights).

Outputs of fewer than 16 bits and outputs that jump under such a move (routing, rounding) are not judged. The error of
an output is the upper quartile over its rows of the root mean square error of a row relative to the row, so that a few
rows in which a tie was resolved otherwise do not count.

Measured on matrix products over 64 to 16,384 addends, float32 in and out: any order up to 2.3e-6, TF32 2.9e-4, bfloat16
2.9e-3; the bound lies at 6e-5. With 16 bits in and out, in units of half the dtype's `eps`: float32 sums 0.0; 2 to 16
partial sums rounded to 16 bits 0.6 to 0.8, added in 16 bits 0.9 to 1.5; **the bound 2.1 to 2.2**; sums kept in 16 bits
3.4 to 13 in steps of 8 addends, 1.8 to 6.8 of 32, 1.0 to 3.4 of 128; bfloat16 operands for float16 4.7 to 5.1; one
operand in e4m3 6.7. So a sum of few steps in 16 bits is as precise as split-K and is not flagged.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import attrs
import torch

from ..secure_random import SECRET
from .comparison import row_squares

LOW_PRECISION = "low_precision"
MAX_MOVE = 2.0**-16
"""The largest relative move of an input of float32, where no input has fewer bits."""
_MIN_BOUND, _BOUND_PER_CHANGE = 2.0**-14, 4.0
"""Of float32: the smallest bound, and the bound divided by the change of the outputs."""
_MIN_BOUND_UNITS, _BOUND_PER_CHANGE_16_BITS = 2.0, 1.0
"""Of 16 bits: the smallest bound in units of half `eps`, and the bound divided by the change of the outputs."""
_JUMP_FACTOR = 8.0
"""An output jumps if it changes by more than this multiple of the move of the inputs."""
_MAX_UNCHANGED_SHARE = 0.1
"""The reference rounds an output of float32 to fewer bits if a larger share of its elements does not change."""
_ROW_QUANTILE, _MAX_ROWS = 0.75, 1 << 20
"""Of a call: a function may compute some rows with less."""
_WEIGHTY = 1024
"""An input with at most this share of the elements of the largest does not decide the bound."""
_SIXTEEN_BITS = (torch.bfloat16, torch.float16)
_JUDGED = (torch.float32, *_SIXTEEN_BITS)
_MAGNITUDE = 0x7FFF
"""The bits of a 16-bit number without its sign."""

Tensors = Mapping[str, torch.Tensor]


def move_inputs(inputs: Tensors) -> bool:
    """Move each number of the floating inputs a little, in place; integers stay.

    Returns:
        Whether precision can be judged: there are floating inputs, and all weighty ones are of float32 or of 16 bits.
        Else nothing moves; others than weighty ones never do.
    """
    coarsest = _coarsest(inputs.values())
    if coarsest is None:
        return False
    largest = _largest_move(coarsest)
    for tensor in _weighty(inputs.values()):
        if tensor.numel():
            generator = torch.Generator(tensor.device).manual_seed(SECRET.getrandbits(62))
            if tensor.dtype in _SIXTEEN_BITS:
                _move_one_step(tensor, generator)
            else:
                share = torch.empty_like(tensor).uniform_(-largest, largest, generator=generator)
                tensor.addcmul_(tensor, share)
    return True


def _coarsest(tensors: Iterable[torch.Tensor]) -> torch.dtype | None:
    """The dtype with the fewest mantissa bits among weighty tensors; None if there is none, or an unjudged one."""
    dtypes = {tensor.dtype for tensor in _weighty(tensors)}
    if not dtypes or not dtypes.issubset(_JUDGED):
        return None
    return max(dtypes, key=lambda dtype: torch.finfo(dtype).eps)


def _weighty(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """The floating tensors without those that are far smaller than the largest: a bias excuses no rounding of it."""
    found = [tensor for tensor in tensors if tensor.is_floating_point()]
    largest = max((tensor.numel() for tensor in found), default=0)
    return [tensor for tensor in found if tensor.numel() * _WEIGHTY > largest or tensor.numel() == largest]


def _largest_move(dtype: torch.dtype) -> float:
    """The largest relative move of an input, by the coarsest dtype of all inputs."""
    return MAX_MOVE if dtype is torch.float32 else torch.finfo(dtype).eps


def _move_one_step(tensor: torch.Tensor, generator: torch.Generator) -> None:
    """Move each number to a neighbour in its dtype; zeros, NaN and infinities stay, and signs."""
    bits = tensor.view(torch.int16)
    magnitude = bits & _MAGNITUDE
    step = torch.randint(0, 2, bits.shape, generator=generator, device=bits.device, dtype=torch.int16) * 2 - 1
    largest = int(torch.tensor(torch.finfo(tensor.dtype).max, dtype=tensor.dtype).view(torch.int16))
    moved = (magnitude + step).clamp_(min=1, max=largest)
    stays = (magnitude == 0) | (magnitude > largest)
    tensor.copy_((torch.where(stays, magnitude, moved) | (bits & ~_MAGNITUDE)).view(tensor.dtype))


def relative_errors(found: Tensors, expected: Tensors) -> dict[str, list[float]]:
    """The relative errors of several calls, ``[calls, *shape]``: for each that of three of four rows, where it counts.

    Elements that are NaN or infinite in `expected` do not count, nor outputs whose dtype cannot be judged.
    """
    return {
        name: _relative_errors(found[name], tensor)
        for name, tensor in expected.items()
        if tensor.dtype in _JUDGED and tensor.numel()
    }


def _relative_errors(found: torch.Tensor, expected: torch.Tensor) -> list[float]:
    error_squares, wanted_squares = row_squares(found, expected)
    ratios = (error_squares / wanted_squares).sqrt().masked_fill(wanted_squares == 0, math.nan)
    rows = ratios.view(len(expected), -1)
    rows = rows[:, :: -(-rows.shape[1] // _MAX_ROWS)]
    errors: list[float] = rows.nanquantile(_ROW_QUANTILE, dim=1).nan_to_num(0.0).tolist()
    return errors


def error_bounds(inputs: Tensors, moved: Tensors, expected: Tensors) -> dict[str, float]:
    """The errors above which outputs were computed in fewer bits than the inputs have, whose dtypes alone count.

    `moved` has outputs of the reference for inputs that `move_inputs` moved, of one call, ``[1, *shape]``.
    """
    dtype = _coarsest(inputs.values())
    if dtype is None:
        return {}
    bounds = {}
    for name, (change,) in relative_errors(moved, expected).items():
        output = expected[name].dtype
        if change > _JUMP_FACTOR * _largest_move(dtype):
            continue
        if dtype is not torch.float32:
            unit = max(torch.finfo(dtype).eps, torch.finfo(output).eps) / 2
            bounds[name] = max(_MIN_BOUND_UNITS * unit, _BOUND_PER_CHANGE_16_BITS * change)
        elif output is torch.float32:
            is_same = (moved[name] == expected[name]) & (expected[name] != 0)
            if is_same.double().mean() <= _MAX_UNCHANGED_SHARE:
                bounds[name] = max(_MIN_BOUND, _BOUND_PER_CHANGE * change)
    return bounds


@attrs.define
class PrecisionWatch:
    """The errors of one solution on one workload, whose bounds are those of `error_bounds`."""

    bounds: Mapping[str, float]
    _errors: dict[str, list[float]] = attrs.field(init=False, factory=dict)

    def record(self, found: Tensors, expected: Tensors) -> None:
        """Record the errors of calls, ``[calls, *shape]``; use only input sets of normally distributed values."""
        if self.bounds:
            for name, errors in relative_errors(found, expected).items():
                self._errors.setdefault(name, []).extend(errors)

    def flags(self) -> list[str]:
        """`LOW_PRECISION`, if the error of an output exceeds its bound in more than a quarter of the sets."""
        is_low = any(_typical(errors) > self.bounds[name] for name, errors in self._judged())
        return [LOW_PRECISION] if is_low else []

    def to_extra(self) -> dict[str, object]:
        """The fields of a trace."""
        return {name: {"error": _typical(errors), "bound": self.bounds[name]} for name, errors in self._judged()}

    def _judged(self) -> list[tuple[str, list[float]]]:
        return [(name, errors) for name, errors in self._errors.items() if name in self.bounds]


def _typical(errors: Sequence[float]) -> float:
    """An error that three of four sets do not exceed: a function may be exact in some calls and save in others."""
    return sorted(errors)[3 * (len(errors) - 1) // 4]
