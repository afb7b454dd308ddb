"""Integer draws: methods that redraw integer inputs of one role each, or of the requests of a batch together.

Each draw names the inputs that it changes and returns new values for them. Inputs are int64
tensors on the CPU. The generator may belong to any device.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import takewhile
from typing import Protocol

import attrs
import torch

from .makers import is_last_page
from .synthesis import Role

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
    """Draws each element uniformly from the other values between two bounds; elements outside them (padding) stay.

    Args:
        name: The input.
        low: Smallest value.
        high: Largest value, included; above `low`.
    """

    name: str
    low: int
    high: int

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
        return {self.name: torch.where((values >= self.low) & (values <= self.high), drawn, values)}


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


_ATTEMPTS = 8
_ORDERED_ROLES = frozenset({Role.PAGES, Role.SLOTS, Role.POSITIONS})
"""Roles of index inputs whose elements or rows may belong to requests."""


@attrs.frozen
class RequestGroup:
    """Integer inputs of the same requests.

    Args:
        count: Number of requests.
        offsets: Inputs with `count` + 1 offsets.
        lengths: Inputs with one length per request, perhaps followed by unused elements.
        rows: Index inputs with one row per request.
        ragged: Index inputs whose elements are partitioned by offsets: the name of the offsets.
    """

    count: int
    offsets: tuple[str, ...] = ()
    lengths: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    ragged: Mapping[str, str] = attrs.field(factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """All inputs of the group."""
        return (*self.offsets, *self.lengths, *self.rows, *self.ragged)

    def lengths_of(self, name: str, integers: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the lengths, shape [count], that an input of offsets or lengths states."""
        values = integers[name]
        return values.diff() if name in self.offsets else values[: self.count]

    def obstacle(self, name: str, integers: Mapping[str, torch.Tensor]) -> str | None:
        """Return why reordering the requests cannot change offsets or lengths, or None if it can."""
        if self.count < 2:
            return "the call has only one request" if self.count else "the call has no requests"
        lengths = self.lengths_of(name, integers)
        if bool((lengths == lengths[0]).all()):
            return f"all {self.count} requests have the same length"
        return None

    def redraw(self, integers: Mapping[str, torch.Tensor], generator: torch.Generator) -> dict[str, torch.Tensor]:
        """Return the inputs of the group with the requests in a random order."""
        order = self._order(integers, generator)
        drawn = {name: _reordered_offsets(integers[name], order) for name in self.offsets}
        for name in (*self.lengths, *self.rows):
            drawn[name] = torch.cat([integers[name][order], integers[name][self.count :]])
        for name, offsets in self.ragged.items():
            drawn[name] = _reordered_segments(integers[name], integers[offsets], order)
        return drawn

    def can_move_pages(self, integers: Mapping[str, torch.Tensor], roles: Mapping[str, Role]) -> bool:
        """Return whether requests may get other numbers of pages: all have as many, and no other input states them."""
        if self.count < 2 or len(self.offsets) != 1 or self.rows or not self.ragged:
            return False
        pages = self.lengths_of(self.offsets[0], integers)
        is_stated = not all(is_last_page(name) for name in self.lengths)
        is_paged = all(roles[name] is Role.PAGES for name in self.ragged)
        return is_paged and not is_stated and int(pages[0]) > 1 and bool((pages == pages[0]).all())

    def with_moved_pages(
        self, integers: Mapping[str, torch.Tensor], generator: torch.Generator
    ) -> dict[str, torch.Tensor]:
        """Return the offsets after half of the requests have given pages to the others; each keeps at least one."""
        (name,) = self.offsets
        pages = self.lengths_of(name, integers).clone()
        givers, takers = torch.randperm(self.count, generator=generator, device=generator.device).cpu().chunk(2)
        given = torch.randint(1, int(pages[0]), (len(takers),), generator=generator, device=generator.device).cpu()
        pages[givers[: len(takers)]] -= given
        pages[takers] += given
        return {name: torch.cat([integers[name][:1], integers[name][0] + pages.cumsum(0)])}

    def _order(self, integers: Mapping[str, torch.Tensor], generator: torch.Generator) -> torch.Tensor:
        """Return an order that changes all lengths that are not constant; a rotation by one always does."""
        lengths = [self.lengths_of(name, integers) for name in (*self.offsets, *self.lengths)]
        varying = [values for values in lengths if bool((values != values[0]).any())]
        for _ in range(_ATTEMPTS):
            order = torch.randperm(self.count, generator=generator, device=generator.device).cpu()
            if not any(torch.equal(values[order], values) for values in varying):
                return order
        return torch.arange(self.count).roll(1)


def find_groups(integers: Mapping[str, torch.Tensor], roles: Mapping[str, Role]) -> list[RequestGroup]:
    """Group the offsets and lengths of a call by the number of requests.

    Args:
        integers: Integer inputs on the CPU; offsets and lengths are one-dimensional and valid.
        roles: Role of each input.
    """
    offsets: dict[int, list[str]] = {}
    for name in _with_roles(roles, {Role.OFFSETS}):
        offsets.setdefault(len(integers[name]) - 1, []).append(name)
    lengths: dict[int, list[str]] = {}
    for name in _with_roles(roles, {Role.LENGTHS}):
        size = len(integers[name])
        is_padded = size not in offsets and size - 1 in offsets
        lengths.setdefault(size - 1 if is_padded else size, []).append(name)
    unassigned = _with_roles(roles, _ORDERED_ROLES)
    groups = []
    for count in {**offsets, **lengths}:
        group = _with_members(count, offsets.get(count, []), lengths.get(count, []), unassigned, integers)
        unassigned = [name for name in unassigned if name not in group.names]
        groups.append(group)
    return groups


def has_valid_offsets(values: torch.Tensor) -> bool:
    """Return whether values are offsets: one-dimensional, beginning at 0 or above, non-decreasing."""
    return values.dim() == 1 and int(values[0]) >= 0 and bool((values.diff() >= 0).all())


def _with_roles(roles: Mapping[str, Role], wanted: Iterable[Role]) -> list[str]:
    return [name for name, role in roles.items() if role in wanted]


def _with_members(
    count: int, offsets: list[str], lengths: list[str], candidates: list[str], integers: Mapping[str, torch.Tensor]
) -> RequestGroup:
    rows, ragged = [], {}
    for name in candidates:
        partition = _partition_of(name, offsets, count, integers)
        if partition is not None:
            ragged[name] = partition
        elif integers[name].shape[:1] == (count,):
            rows.append(name)
    return RequestGroup(count, tuple(offsets), tuple(lengths), tuple(rows), ragged)


def _partition_of(name: str, offsets: list[str], count: int, integers: Mapping[str, torch.Tensor]) -> str | None:
    """Return the offsets that partition a one-dimensional input: equal total, longest common name prefix."""
    values = integers[name]
    matching = [
        other for other in offsets if values.dim() == 1 and [*integers[other][[0, -1]].tolist()] == [0, len(values)]
    ]
    best = max(matching, key=lambda other: _shared_prefix(name, other), default=None)
    if best is None or (len(values) == count and not _shared_prefix(name, best)):
        return None
    return best


def _shared_prefix(one: str, other: str) -> int:
    """Return the number of leading characters that two names share."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _reordered_offsets(offsets: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    return torch.cat([offsets[:1], offsets[0] + offsets.diff()[order].cumsum(0)])


def _reordered_segments(values: torch.Tensor, offsets: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """Return the segments that offsets from 0 to len(values) define, in a new order."""
    lengths = offsets.diff()[order]
    shift = offsets[:-1][order] - (lengths.cumsum(0) - lengths)
    return values[torch.arange(len(values)) + shift.repeat_interleave(lengths)]
