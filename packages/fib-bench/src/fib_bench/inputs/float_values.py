"""Makers of floating-point, boolean and byte inputs and of scalars.

Large tensors are drawn on the device of the generator, because drawing a large weight on a CPU
takes seconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from .distributions import CHUNK_ELEMENTS
from .draft import InputDraft, Maker, SynthesisError, TensorMaker, tensor_dtype


def normal(draft: InputDraft, name: str, generator: torch.Generator) -> torch.Tensor:
    """Make standard normal values."""
    return _normal_values(draft, name, generator)


def weight(draft: InputDraft, name: str, generator: torch.Generator) -> torch.Tensor:
    """Make normal values; those of matrices are divided by the root of the fan-in, so that sums stay near 1."""
    shape = draft.shape(name)
    is_fp8 = draft.spec(name).dtype.startswith("float8")  # fp8 cannot represent values that small
    fan_in = 1 if len(shape) < 2 or is_fp8 else max(shape[-1], 1)
    return _normal_values(draft, name, generator, 1 / math.sqrt(fan_in))


def fp4_pairs(draft: InputDraft, name: str, generator: torch.Generator) -> torch.Tensor:
    """Make uniform bit patterns of e2m1, all finite (-6 to 6). The last axis counts bytes of two values."""
    values = torch.empty(draft.shape(name), dtype=torch.uint8, device=generator.device)
    return values.random_(0, 256, generator=generator).view(tensor_dtype(draft.spec(name)))


def uniform(low: float, high: float) -> TensorMaker:
    """Return a maker of uniform values in [low, high)."""

    def make(draft: InputDraft, name: str, generator: torch.Generator) -> torch.Tensor:
        return _rand(draft.shape(name), generator) * (high - low) + low

    make.__doc__ = f"Make uniform values in [{low:g}, {high:g})."
    return make


def block_scale(draft: InputDraft, name: str, generator: torch.Generator) -> torch.Tensor:
    """Make positive dequantization scales; those of weights keep sums near 1."""
    values = uniform(0.5, 1.5)(draft, name, generator)
    base = name.removesuffix("_scale")
    if "weight" in base and base in draft.definition.inputs:
        return values / math.sqrt(max(draft.shape(base)[-1], 1))
    return values


def expert_scale(draft: InputDraft, name: str, generator: torch.Generator) -> torch.Tensor:
    """Make one dequantization scale per expert, for sums over the hidden or intermediate axis."""
    width = draft.axis("intermediate_size") if "output2" in name else draft.axis("hidden_size")
    return uniform(0.5, 1.5)(draft, name, generator) / math.sqrt(width or 1)


def normalized(draft: InputDraft, name: str, generator: torch.Generator) -> torch.Tensor:
    """Make rows of length 1; a delta rule diverges with longer keys."""
    return torch.nn.functional.normalize(_randn(draft.shape(name), generator), dim=-1)


def decay(draft: InputDraft, name: str, generator: torch.Generator) -> torch.Tensor:
    """Make decay rates between -16 and -1."""
    return -_rand(draft.shape(name), generator) * 15 - 1


def log_decay(draft: InputDraft, name: str, generator: torch.Generator) -> torch.Tensor:
    """Make logarithms of decay rates between 1 and 16."""
    return (_rand(draft.shape(name), generator) * 15 + 1).log()


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
