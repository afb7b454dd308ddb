"""Index padding: calls of one definition whose page numbers lie in a buffer that is longer than their total.

All calls have the same buffer and other offsets, as the replays of one CUDA graph have. Behind the last offset the
buffer holds page numbers that are valid but belong to no request, or numbers that are not pages at all. The exact
inputs of each call, for the reference, end at the last offset.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import attrs
import torch
from fib_schema import Definition
from fib_schema.padded_indices import PaddedIndices, padded_indices_of

from .generation import Value
from .makers import POOL_AXES, first_axis
from .synthesis import Role, role_of

_SPARE = 64
"""Elements of the buffer that no call uses, except one that fills it."""
_LAST_PAGE_LENGTHS = re.compile(r".*last_page_len.*")
"""Lengths that are valid for any number of pages; others depend on the offsets."""


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
    is_given: bool = False
    """Whether the exact values are those of the workload."""


def draw_padded_calls(
    definition: Definition, axes: Mapping[str, int], values: Mapping[str, Value], generator: torch.Generator
) -> Sequence[PaddedDraw]:
    """Draw calls with padded indices. Their totals differ; that of the first one lies between those of others.

    Args:
        definition: The definition that the inputs belong to.
        axes: Sizes of the axes; constant axes may be missing.
        values: The inputs of a workload; the tensors are not changed.
        generator: Draws all random numbers, on the CPU.

    Returns:
        The calls; none if the definition has no padded indices, or other integers depend on the offsets.
    """
    padded, pool = padded_indices_of(definition), first_axis({**definition.const_axes, **axes}, *POOL_AXES)
    if padded is None or not pool or _has_dependent_integers(definition, padded):
        return ()
    offsets = values[padded.offsets]
    if not isinstance(offsets, torch.Tensor) or len(offsets) < 2 or not int(offsets[-1]) or int(offsets[0]):
        return ()
    counts = offsets.diff().to("cpu", torch.int64)
    maker = _Maker(padded, values, pool, 2 * int(counts.sum()) + _SPARE, generator)
    others = (_fewer(counts, generator), maker.filling(counts), _fewest(counts))
    return (*map(maker.make, others), maker.make(counts, is_given=True))


def _has_dependent_integers(definition: Definition, padded: PaddedIndices) -> bool:
    """Whether integers other than last page lengths accompany the padded indices, or these are not page numbers."""
    if any(role_of(definition, name) is not Role.PAGES for name in padded.inputs):
        return True
    if role_of(definition, padded.offsets) is not Role.OFFSETS:
        return True
    known = {padded.offsets, *padded.inputs}
    integers = [name for name, spec in definition.inputs.items() if spec.is_integer and name not in known]
    return not all(_LAST_PAGE_LENGTHS.fullmatch(name) for name in integers)


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


@attrs.frozen
class _Maker:
    padded: PaddedIndices
    values: Mapping[str, Value]
    pool: int
    length: int
    """Length of the buffer."""
    generator: torch.Generator

    def filling(self, counts: torch.Tensor) -> torch.Tensor:
        """More pages for each request, so many that they fill the buffer."""
        more = counts + _fewer(counts, self.generator)
        more[int(torch.randint(len(counts), (), generator=self.generator))] += self.length - int(more.sum())
        return more

    def make(self, counts: torch.Tensor, *, is_given: bool = False) -> PaddedDraw:
        total = int(counts.sum())
        offsets = self._like(self.padded.offsets, torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)]))
        exact, stale, poisoned = {}, {}, {}
        for name in self.padded.inputs:
            pages = self._given(name) if is_given else self._pages(total)
            exact[name] = self._like(name, pages)
            stale[name] = self._like(name, torch.cat([pages, self._pages(self.length - total)]))
            poison = self._poison(name, self.length - total)
            poisoned[name] = self._like(name, torch.cat([pages, poison]))
        first = {self.padded.offsets: offsets}
        return PaddedDraw(total, first | exact, first | stale, first | poisoned, is_given=is_given)

    def _pages(self, count: int) -> torch.Tensor:
        return torch.randint(self.pool, (count,), generator=self.generator)

    def _poison(self, name: str, count: int) -> torch.Tensor:
        """Numbers that are not pages: negative ones, the first behind the pool, the largest."""
        kinds = torch.tensor([-1, self.pool, torch.iinfo(self._given(name).dtype).max])
        return kinds[torch.randint(len(kinds), (count,), generator=self.generator)]

    def _given(self, name: str) -> torch.Tensor:
        value = self.values[name]
        assert isinstance(value, torch.Tensor), "index inputs are tensors"
        return value.cpu()

    def _like(self, name: str, made: torch.Tensor) -> torch.Tensor:
        given = self.values[name]
        assert isinstance(given, torch.Tensor), "index inputs and offsets are tensors"
        return made.to(given.device, given.dtype)
