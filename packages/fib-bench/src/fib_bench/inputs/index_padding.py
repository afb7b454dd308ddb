"""Index padding: calls of one definition whose page numbers lie in a buffer that is longer than their total.

All calls have the same buffer and other offsets, as the replays of one CUDA graph have. Behind the last offset the
buffer holds page numbers that are valid but belong to no request, or numbers that are not pages at all. The exact
inputs of each call, for the reference, end at the last offset.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
import torch
from fib_schema import Definition
from fib_schema.padded_indices import PaddedIndices, padded_indices_of

from .generation import Value
from .makers import POOL_AXES, first_axis, is_last_page
from .synthesis import Role, role_of

_SPARE = 64
"""Elements of the buffer that no call uses, except one that fills it."""


@attrs.frozen(eq=False)
class PaddedDraw:
    """The integers of one call; tensors have the dtypes and devices of the given ones."""

    total: int
    """Valid elements of the index inputs."""
    exact: Mapping[str, torch.Tensor]
    """Offsets, and index inputs that end at the total."""
    stale: Mapping[str, torch.Tensor]
    """Offsets, and whole buffers with pages of other requests behind the total."""
    poisoned: Mapping[str, torch.Tensor]
    """The same buffers, poisoned with numbers that are not pages."""


def draw_padded_calls(
    definition: Definition, axes: Mapping[str, int], values: Mapping[str, Value], generator: torch.Generator
) -> Sequence[PaddedDraw]:
    """Draw calls with padded indices. Their totals differ; that of the first one lies between those of others.

    There are none if the definition has no padded indices, or other integers depend on the offsets. All random numbers
    are drawn on the CPU.
    """
    padded, pool = padded_indices_of(definition), first_axis({**definition.const_axes, **axes}, *POOL_AXES)
    if padded is None or not pool or _has_dependent_integers(definition, padded):
        return ()
    given = {
        name: value for name in (padded.offsets, *padded.inputs) if isinstance(value := values[name], torch.Tensor)
    }
    offsets = given[padded.offsets].to("cpu", torch.int64)
    if len(offsets) < 2 or not int(offsets[-1]) or int(offsets[0]):
        return ()
    counts = offsets.diff()
    length = 2 * int(counts.sum()) + _SPARE
    filling = counts + _fewer(counts, generator)
    filling[int(torch.randint(len(counts), (), generator=generator))] += length - int(filling.sum())
    calls = (_fewer(counts, generator), filling, _fewest(counts), counts)
    return [_draw(padded, given, each, pool, length, generator) for each in calls]


def _has_dependent_integers(definition: Definition, padded: PaddedIndices) -> bool:
    """Whether integers other than last page lengths accompany the padded indices, or these are not page numbers."""
    if any(role_of(definition, name) is not Role.PAGES for name in padded.inputs):
        return True
    known = {padded.offsets, *padded.inputs}
    integers = [name for name, spec in definition.inputs.items() if spec.is_integer and name not in known]
    return role_of(definition, padded.offsets) is not Role.OFFSETS or not all(map(is_last_page, integers))


def _fewer(counts: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Between one page and all pages of each request."""
    shares = torch.rand(len(counts), generator=generator)
    return torch.where(counts > 0, 1 + (shares * counts).to(torch.int64).clamp(max=counts - 1), 0)


def _fewest(counts: torch.Tensor) -> torch.Tensor:
    """At most one page of each request, and of several requests the last one has none: engines add such requests."""
    fewest = counts.clamp(max=1)
    if len(counts) > 1 and int(fewest[:-1].sum()):
        fewest[-1] = 0
    return fewest


def _draw(
    padded: PaddedIndices, given: Mapping[str, torch.Tensor], counts: torch.Tensor, pool: int, length: int,
    generator: torch.Generator,
) -> PaddedDraw:  # fmt: skip
    """Draw a call with these numbers of pages of its requests, in a buffer of this length."""
    total = int(counts.sum())
    exact = {padded.offsets: torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])}
    stale, poisoned = dict(exact), dict(exact)
    for name in padded.inputs:
        drawn = torch.randint(pool, (length,), generator=generator)
        invalid = torch.tensor([-1, pool, torch.iinfo(given[name].dtype).max])  # negative, behind the pool, the largest
        poison = invalid[torch.randint(len(invalid), (length - total,), generator=generator)]
        exact[name], stale[name], poisoned[name] = drawn[:total], drawn, torch.cat([drawn[:total], poison])

    def like_given(made: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        return {name: tensor.to(given[name].device, given[name].dtype) for name, tensor in made.items()}

    return PaddedDraw(total, like_given(exact), like_given(stale), like_given(poisoned))
