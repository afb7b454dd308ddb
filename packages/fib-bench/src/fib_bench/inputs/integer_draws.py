"""Integer draws: methods that redraw integer inputs of one role each.

Each draw names the inputs that it changes and returns new values for them. Inputs are int64
tensors on the CPU. The generator may belong to any device.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import attrs
import torch

Integers = Mapping[str, torch.Tensor]


class IntegerDraw(Protocol):
    """One method of redrawing."""

    @property
    def names(self) -> tuple[str, ...]:
        """The inputs that the draw may change."""

    def redraw(self, integers: Integers, generator: torch.Generator) -> dict[str, torch.Tensor]:
        """Return new values, by name, of the same shapes."""


@attrs.frozen
class PageRelabeling:
    """Relabels pages by one random permutation of the pool that maps no page to itself.

    Equal pages stay equal and different pages stay different, within an input and between inputs.
    Numbers outside the pool (padding such as -1) stay.

    Args:
        pages: Inputs of page numbers.
        slots: Inputs of token slots, page number * page size + position; positions stay.
        pool: Number of pages.
        page_size: Tokens per page.
    """

    pages: tuple[str, ...]
    slots: tuple[str, ...]
    pool: int
    page_size: int

    @property
    def names(self) -> tuple[str, ...]:
        """The inputs that the draw may change."""
        return (*self.pages, *self.slots)

    def redraw(self, integers: Integers, generator: torch.Generator) -> dict[str, torch.Tensor]:
        """Return all inputs with the pages relabelled."""
        labels = _derangement(self.pool, generator)
        drawn = {name: _relabelled(integers[name], labels) for name in self.pages}
        for name in self.slots:
            page = integers[name].div(self.page_size, rounding_mode="floor")
            position = integers[name] - page * self.page_size
            drawn[name] = _relabelled(page, labels) * self.page_size + position
        return drawn


@attrs.frozen
class SelectionShuffle:
    """Permutes the selected token slots within each row; negative numbers (padding) keep their places."""

    name: str

    @property
    def names(self) -> tuple[str, ...]:
        """The inputs that the draw may change."""
        return (self.name,)

    def redraw(self, integers: Integers, generator: torch.Generator) -> dict[str, torch.Tensor]:
        """Return the input with shuffled rows."""
        values = integers[self.name]
        rows = values.view(-1, values.shape[-1])
        is_padding = rows < 0
        keys = torch.rand(rows.shape, generator=generator, device=generator.device).cpu()
        sources = keys.masked_fill(is_padding, 2.0).sort(dim=1, stable=True).indices
        targets = is_padding.to(torch.uint8).sort(dim=1, stable=True).indices
        shuffled = torch.empty_like(rows).scatter_(1, targets, rows.gather(1, sources))
        return {self.name: shuffled.view(values.shape)}


@attrs.frozen
class RoutingDraw:
    """Permutes the tokens of a routing table ``[tokens, top_k]`` and relabels the experts.

    Experts stay different within a token, and the loads of the experts are permuted. Routing weights
    that are packed into the low 16 bits stay with their experts.

    Args:
        name: Input of expert numbers; negative numbers (padding) stay.
        experts: Number of experts.
        is_packed: Whether the low 16 bits are a bfloat16 routing weight.
        relabels: Whether experts may be relabelled; false if only some experts are local.
    """

    name: str
    experts: int
    is_packed: bool
    relabels: bool

    @property
    def names(self) -> tuple[str, ...]:
        """The inputs that the draw may change."""
        return (self.name,)

    def redraw(self, integers: Integers, generator: torch.Generator) -> dict[str, torch.Tensor]:
        """Return the input with permuted tokens and relabelled experts."""
        values = integers[self.name]
        values = values[_permutation(len(values), generator)]
        if not self.relabels:
            return {self.name: values}
        labels = _derangement(self.experts, generator)
        if not self.is_packed:
            return {self.name: _relabelled(values, labels)}
        return {self.name: (_relabelled(values >> 16, labels) << 16) | (values & 0xFFFF)}


@attrs.frozen
class UniformDraw:
    """Draws each element uniformly from the other values between two bounds.

    Args:
        name: The input.
        low: Smallest value.
        high: Largest value, included; above `low`.
        keeps_others: Whether elements outside the bounds (padding, "disabled") stay.
    """

    name: str
    low: int
    high: int
    keeps_others: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        """The inputs that the draw may change."""
        return (self.name,)

    def redraw(self, integers: Integers, generator: torch.Generator) -> dict[str, torch.Tensor]:
        """Return the input with new elements."""
        values = integers[self.name]
        span = self.high - self.low + 1
        steps = torch.randint(1, span, values.shape, generator=generator, device=generator.device).cpu()
        drawn = self.low + (values - self.low + steps).remainder(span)
        if self.keeps_others:
            drawn = torch.where((values >= self.low) & (values <= self.high), drawn, values)
        return {self.name: drawn}


@attrs.frozen
class ElementShuffle:
    """Permutes all elements of an input whose elements are valid in any order."""

    name: str

    @property
    def names(self) -> tuple[str, ...]:
        """The inputs that the draw may change."""
        return (self.name,)

    def redraw(self, integers: Integers, generator: torch.Generator) -> dict[str, torch.Tensor]:
        """Return the input with permuted elements."""
        values = integers[self.name]
        return {self.name: values.view(-1)[_permutation(values.numel(), generator)].view(values.shape)}


def _permutation(count: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randperm(count, generator=generator, device=generator.device).cpu()


def _derangement(count: int, generator: torch.Generator) -> torch.Tensor:
    """Return a random permutation of one cycle, which has no fixed point if `count` is 2 or more."""
    order = _permutation(count, generator)
    return torch.empty_like(order).scatter_(0, order, order.roll(1))


def _relabelled(values: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Replace the numbers below len(labels) by their labels; other numbers stay."""
    is_label = (values >= 0) & (values < len(labels))
    return torch.where(is_label, labels[values.clamp(0, len(labels) - 1)], values)
