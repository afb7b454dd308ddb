"""Tells outputs that were computed with less than float32, which a loose tolerance does not see.

Such an output is right within its tolerance, but its error is far above what sums in another order
leave. How far that is depends on how much an op enlarges errors: the reference itself tells, called
on inputs that were moved by about what is looked for. TF32 rounds operands to 10 bits and bfloat16
to 7; moving by 16 bits is less than either, and far more than the 23 bits of float32. An op whose
outputs jump under such a move (it chooses, or it rounds by itself) is not judged.

Measured on matrix products over 64 to 16,384 addends, the root of the mean square relative to that of
the output: float32 in any order up to 2.3e-6, TF32 2.9e-4, bfloat16 2.9e-3; the bound lies at 6e-5.
"""

from __future__ import annotations

import math

import attrs
import torch

from ..judge.prepared import InputSet, PreparedWorkload
from ..secure_random import SECRET
from ..transport.slots import CallLayout
from .elements import chunks, to_double

LOW_PRECISION = "low_precision"
MOVED = 2.0**-16
"""By up to which share of itself each input is moved."""
_LEAST, _FACTOR = 2.0**-14, 4.0
_JUMPS = 8 * MOVED
_STILL = 0.1


def moved_inputs(layout: CallLayout, inputs: torch.Tensor) -> torch.Tensor | None:
    """The inputs with each number moved a little; None where precision cannot be judged.

    That is only where all floating inputs have float32: what comes in with less can be right with less.
    """
    moved = inputs.clone()
    floats = [tensor for tensor in layout.input_tensors(moved).values() if tensor.is_floating_point()]
    if not floats or any(tensor.dtype is not torch.float32 for tensor in floats):
        return None
    generator = torch.Generator(inputs.device).manual_seed(SECRET.getrandbits(62))
    for tensor in floats:
        share = torch.empty_like(tensor).uniform_(-MOVED, MOVED, generator=generator)
        tensor.addcmul_(tensor, share)
    return moved


def relative_errors(layout: CallLayout, found: torch.Tensor, expected: torch.Tensor) -> dict[str, float]:
    """The root of the mean square error relative to that of the output, of each output in float32."""
    pairs = zip(layout.output_tensors(found).items(), layout.output_tensors(expected).values(), strict=True)
    return {name: _relative_error(a, b) for (name, a), b in pairs if a.dtype is torch.float32 and a.numel()}


def _relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    sums = torch.zeros(2, dtype=torch.float64, device=found.device)
    for (_, a), (_, b) in zip(chunks(found), chunks(expected), strict=True):
        wanted = to_double(b)
        is_finite = wanted.isfinite()
        wanted = wanted.where(is_finite, 0)
        error = (to_double(a) - wanted).where(is_finite, 0)
        sums += torch.stack([error.square().sum(), wanted.square().sum()])
    error_square, square = sums.tolist()
    return math.sqrt(error_square / square) if square > 0 else 0.0


def bounds_of(layout: CallLayout, moved: torch.Tensor, expected: torch.Tensor) -> dict[str, float]:
    """Above which error an output was computed with less than float32, by what moved inputs make of it.

    Not judged is an output that jumps, and one of which a part stays as it is: both have been rounded.
    """
    still = _still_shares(layout, moved, expected)
    moves = relative_errors(layout, moved, expected)
    is_smooth = {name: move <= _JUMPS and still[name] <= _STILL for name, move in moves.items()}
    return {name: max(_LEAST, _FACTOR * move) for name, move in moves.items() if is_smooth[name]}


def _still_shares(layout: CallLayout, moved: torch.Tensor, expected: torch.Tensor) -> dict[str, float]:
    """Of each output, the share of the elements that moved inputs leave as they are; zeros do not count."""
    pairs = zip(layout.output_tensors(moved).items(), layout.output_tensors(expected).values(), strict=True)
    return {name: float(((a == b) & (b != 0)).double().mean()) for (name, a), b in pairs if a.numel()}


@attrs.define
class PrecisionWatch:
    """Looks at a solution's outputs on one workload."""

    prepared: PreparedWorkload
    _errors: dict[str, list[float]] = attrs.field(init=False, factory=dict)

    def look(self, item: InputSet, outputs: torch.Tensor) -> None:
        """Look at the outputs for one input set; those of unusual values say nothing."""
        if item.distribution == "normal" and self.prepared.error_bounds:
            for name, error in relative_errors(self.prepared.layout, outputs, item.expected).items():
                self._errors.setdefault(name, []).append(error)

    def flags(self) -> list[str]:
        """`LOW_PRECISION`, if an output is off in every set."""
        bounds = self.prepared.error_bounds
        is_low = any(name in bounds and min(errors) > bounds[name] for name, errors in self._errors.items())
        return [LOW_PRECISION] if is_low else []

    def to_extra(self) -> dict[str, object]:
        """What a trace keeps of it."""
        bounds = self.prepared.error_bounds
        return {
            name: {"error": min(errors), "bound": bounds[name]}
            for name, errors in self._errors.items()
            if name in bounds
        }
