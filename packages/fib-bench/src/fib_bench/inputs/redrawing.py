"""Redrawing of structure: new values for the integer inputs that others depend on, as far as constraints allow.

A solution can derive a plan from integers that it has seen. Redrawn integers make it invalid, at about the same cost:

- Page and block numbers are relabelled by one random permutation of the pool.
- Requests are reordered: offsets, lengths, page tables and ragged index inputs change together, and all totals stay.
  Where that changes no length of a last page, the lengths change by up to three tokens.
- Tokens of a routing table are permuted, and experts are relabelled.
- Slots of sparse attention are relabelled with the pages, positions are drawn uniformly from their valid values.

Integers of unknown meaning and scalars stay. Those that are data (tokens, seeds, top-k, bytes) are left to `recipes`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

import attrs
import torch
from fib_schema import ConstraintError, Definition, constraint_names, evaluate_constraint

from . import synthesis
from .generation import Value, fewer
from .synthesis import Role, first_axis, is_last_page, is_packed_with_weights, page_size, role_of, total_axis

Integers = Mapping[str, torch.Tensor]
"""Integer inputs by name, int64 on the CPU."""
_ATTEMPTS = 8  # until a draw changes something; small inputs may repeat their values by chance
_FEW_TOKENS = 3  # by which last pages get shorter or longer: too few to change the time of a call
_LIMITS = {
    Role.PAGES: synthesis.POOL_AXES,
    Role.SELECTIONS: synthesis.POOL_AXES,
    Role.EXPERTS: synthesis.EXPERT_AXES,
    Role.POSITIONS: synthesis.POSITION_AXES,
}
"""The axes that state below which number pages, experts and positions are."""
_UNKNOWN = "no rule states which values are valid"
_SAME = "for calls of these sizes it is the same however it is drawn"


@attrs.frozen
class Redrawing:
    """Result of redrawing the integers of one call."""

    values: Mapping[str, Value]
    """All inputs, redrawn where possible. Unchanged inputs are the objects that were given."""
    changed: tuple[str, ...]
    kept: Mapping[str, str]
    """Integer inputs with their old values, each with the reason."""
    determined: frozenset[str] = frozenset()
    """Those of them that have only one valid value for the sizes of the call."""


_Draw = Callable[[Integers, torch.Generator], Integers]  # new values of the same shapes, by name


def _relabel(integers: Integers, generator: torch.Generator, *, units: Mapping[str, int], pool: int) -> Integers:
    """Relabel the pages or experts of a pool by one permutation that maps none to itself.

    Equal ones stay equal and different ones stay different, within an input and between inputs. Numbers outside the
    pool (padding such as -1) stay. `units` has the numbers that belong to one page or expert, by input, whose order
    stays: a slot is page number * page size + position, a packed expert has a routing weight in its low bits.
    """
    order, drawn = torch.randperm(pool, generator=generator), {}
    labels = torch.empty_like(order).scatter_(0, order, order.roll(1))  # of one cycle
    for name, unit in units.items():
        pages = integers[name].div(unit, rounding_mode="floor")
        is_label = (pages >= 0) & (pages < pool)
        drawn[name] = integers[name] + torch.where(is_label, labels[pages.clamp(0, pool - 1)] - pages, 0) * unit
    return drawn


def _redraw_uniformly(integers: Integers, generator: torch.Generator, *, name: str, low: int, high: int) -> Integers:
    """Draw each element from the other values between two bounds; elements outside them (padding) stay."""
    values, span = integers[name], high - low + 1
    steps = torch.randint(1, max(span, 2), values.shape, generator=generator)
    drawn = low + (values - low + steps).remainder(span)
    return {name: torch.where((values >= low) & (values <= high), drawn, values)}


def _change_lengths(
    integers: Integers, generator: torch.Generator, *, name: str, rows: Sequence[str], most: int, pages: int
) -> Integers:
    """Shorten requests and empty the last ones, as engines fill up captured batches; make the first one longer.

    A replay gets other lengths than any recorded call: up to `most`, as many as a row of page numbers has room for.
    """
    lengths, longest = fewer(integers[name], generator), int(integers[name].max())
    if len(lengths) > 1:
        lengths[int(torch.randint(1, len(lengths), (), generator=generator)) :] = 0
    if longest < most:
        lengths[0] = torch.randint(longest + 1, most + 1, (), generator=generator)
    elif len(lengths) == 1:
        lengths[0] = 0
    return {name: lengths} | {row: integers[row].clamp(0, pages - 1) for row in rows}


@attrs.frozen
class _Requests:
    """Integer inputs of the same requests, which `ragged` ones belong to by the offsets that it names."""

    count: int
    offsets: tuple[str, ...]
    lengths: tuple[str, ...]  # one length per request, perhaps followed by unused elements
    rows: tuple[str, ...]  # one row of indices per request
    ragged: Mapping[str, str]

    @property
    def names(self) -> tuple[str, ...]:
        """All inputs of the group."""
        return (*self.offsets, *self.lengths, *self.rows, *self.ragged)

    def lengths_of(self, name: str, integers: Integers) -> torch.Tensor:
        """Return the lengths, shape [count], that an input of offsets or lengths states."""
        return integers[name].diff() if name in self.offsets else integers[name][: self.count]

    def reorder(self, integers: Integers, generator: torch.Generator) -> Integers:
        """Return the inputs with the requests in a random order."""
        order = torch.randperm(self.count, generator=generator)
        for lengths in (self.lengths_of(name, integers) for name in (*self.offsets, *self.lengths)):
            if not _is_constant(lengths) and torch.equal(lengths[order], lengths):
                order = torch.arange(self.count).roll(1)  # changes all lengths that are not constant
        drawn = {name: _offsets_of(integers[name], integers[name].diff()[order]) for name in self.offsets}
        for name in (*self.lengths, *self.rows):
            drawn[name] = torch.cat([integers[name][order], integers[name][self.count :]])
        for name, offsets in self.ragged.items():
            lengths = integers[offsets].diff()[order]
            shift = integers[offsets][:-1][order] - (lengths.cumsum(0) - lengths)
            drawn[name] = integers[name][torch.arange(len(integers[name])) + shift.repeat_interleave(lengths)]
        return drawn

    def move_pages(self, integers: Integers, generator: torch.Generator) -> Integers:
        """Return the offsets after half of the requests have given pages to the others; each keeps at least one."""
        (name,) = self.offsets
        pages = self.lengths_of(name, integers).clone()
        givers, takers = torch.randperm(self.count, generator=generator).chunk(2)
        given = torch.randint(1, int(pages[0]), (len(takers),), generator=generator)
        pages[givers[: len(takers)]] -= given
        pages[takers] += given
        return {name: _offsets_of(integers[name], pages)}


def _is_constant(values: torch.Tensor) -> bool:
    return bool((values == values[:1]).all())


def _offsets_of(offsets: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return torch.cat([offsets[:1], offsets[0] + lengths.cumsum(0)])


def _find_requests(definition: Definition, integers: Integers, roles: Mapping[str, Role]) -> list[_Requests]:
    """Group the offsets and lengths of a call, and the inputs that they may order, by the number of requests."""
    offsets, lengths = dict[int, list[str]](), dict[int, list[str]]()
    for name in (name for name, role in roles.items() if role is Role.OFFSETS):
        offsets.setdefault(len(integers[name]) - 1, []).append(name)
    for name in (name for name, role in roles.items() if role is Role.LENGTHS):
        size = len(integers[name])
        is_padded = size not in offsets and size - 1 in offsets
        lengths.setdefault(size - 1 if is_padded else size, []).append(name)

    def is_ragged(name: str, part: str) -> bool:
        is_stated = definition.inputs[name].shape == (total_axis(definition, part),)
        return is_stated and integers[part][[0, -1]].tolist() == [0, len(integers[name])]

    ordered = [name for name, role in roles.items() if role in {Role.PAGES, Role.POSITIONS}]
    groups: list[_Requests] = []
    for count in {**offsets, **lengths}:
        names = [name for name in ordered if all(name not in group.names for group in groups)]
        ragged = {name: part for part in offsets.get(count, ()) for name in names if is_ragged(name, part)}
        rows = tuple(name for name in names if name not in ragged and integers[name].shape[:1] == (count,))
        groups.append(_Requests(count, tuple(offsets.get(count, ())), tuple(lengths.get(count, ())), rows, ragged))
    return groups


class Structure:
    """The structural integers of a call. What draws there are is found out once; CUDA inputs synchronize the device.

    Constant axes may be missing. `values` are all inputs, of which the tensors are not changed.
    """

    def __init__(self, definition: Definition, axes: Mapping[str, int], values: Mapping[str, Value]) -> None:
        self.definition, self.axes, self.values = definition, {**definition.const_axes, **axes}, values
        self.integers: dict[str, torch.Tensor] = {}
        """Structure, and integers of unknown meaning, int64 on the CPU."""
        self.reasons: dict[str, str] = {}
        """Inputs without a draw, each with the reason."""
        self.determined: set[str] = set()
        """Inputs without a draw that have only one valid value for the sizes of the call."""
        self.roles: dict[str, Role] = {}
        """Roles of the inputs that a draw may handle."""
        self._draws: list[_Draw] = []
        self._moves: list[_Draw] = []  # of pages between requests, which make a call slower
        for name in (name for name, spec in definition.inputs.items() if spec.is_integer):
            value, role = values.get(name), role_of(definition, name)
            if isinstance(value, int):
                self.reasons[name] = "a scalar is a parameter of the call"
            elif isinstance(value, torch.Tensor) and role in {*synthesis.STRUCTURE_ROLES, Role.FIXED}:
                self.integers[name] = value.to("cpu", torch.int64).contiguous()
                if obstacle := self._invalid(name, role):
                    self.reasons[name] = obstacle
                else:
                    self.roles[name] = role
        self.groups = _find_requests(definition, self.integers, self.roles)
        self._add_requests()
        paged = {Role.PAGES} if self.groups else {Role.PAGES, Role.SELECTIONS}
        if units := {name: self._unit(name, role) for name, role in self.roles.items() if role in paged}:
            self._draws.append(partial(_relabel, units=units, pool=self._count(Role.PAGES)))
        for name, role in self.roles.items():
            if role is Role.SELECTIONS and self.groups:
                self.reasons[name] = "the selections may be places within the requests"
            elif role is Role.EXPERTS:
                self._add_routing(name)
            elif role is Role.POSITIONS and not any(name in group.names for group in self.groups):
                if self.groups:
                    self.reasons[name] = "positions may depend on the lengths of the requests"
                elif problem := self._beyond(name, role):
                    self.reasons[name] = problem
                else:
                    self._draws.append(partial(_redraw_uniformly, name=name, low=0, high=self._count(role) - 1))

    def redraw(self, generator: torch.Generator) -> Redrawing:
        """Redraw the integer inputs; the generator is of the CPU, where index arithmetic runs.

        The constraints of the definition hold for the result if they hold for the given values. Draws that violate a
        constraint are repeated and finally dropped. New tensors have the shape, strides, dtype and device of the old.
        """
        return self._redraw(self._draws, generator)

    def move_pages(self, generator: torch.Generator) -> Redrawing:
        """Move pages between requests that all have as many, and empty requests if they may be; not for timing."""
        return self._redraw(self._moves, generator)

    def _redraw(self, draws: Sequence[_Draw], generator: torch.Generator) -> Redrawing:
        """Apply draws one after the other, as far as constraints allow."""
        current, reasons, same = self.integers, dict(self.reasons), dict[str, str]()
        for draw in draws:
            best, made, violated = current, dict[str, torch.Tensor](), None
            for _ in range(_ATTEMPTS):
                made = {**draw(current, generator)}
                drawn = {**current, **made}
                violated = self._violated(drawn, made.keys())
                if violated is None:
                    best = drawn
                    if not made.keys().isdisjoint(self._changed(drawn)):
                        break
            if best is current and violated is not None:
                reasons = dict.fromkeys(made, f"redrawn values violate the constraint {violated!r}") | reasons
            same |= dict.fromkeys(made, _SAME)
            current = best
        changed, restored = self._changed(current), dict(self.values)
        for name in changed:
            old = self.values[name]
            assert isinstance(old, torch.Tensor), "structure is made of tensors"
            new = torch.empty_strided(old.shape, old.stride(), dtype=old.dtype, device=old.device)
            restored[name] = new.copy_(current[name])
        kept = {name: reason for name, reason in (same | reasons).items() if name not in changed}
        return Redrawing(restored, changed, kept, frozenset(self.determined.difference(changed)))

    def _violated(self, integers: Integers, names: Collection[str]) -> str | None:
        """Return the first constraint that reads one of the names and does not hold."""
        for constraint in self.definition.constraints:
            if not constraint_names(constraint).isdisjoint(names):
                try:
                    if not evaluate_constraint(constraint, {**self.axes, **self.values, **integers}):
                        return constraint
                except ConstraintError:
                    return constraint
        return None

    def _changed(self, drawn: Integers) -> tuple[str, ...]:
        return tuple(name for name, tensor in self.integers.items() if not torch.equal(drawn[name], tensor))

    def _count(self, role: Role) -> int:
        return first_axis(self.axes, *_LIMITS[role]) or 0

    def _unit(self, name: str, role: Role) -> int:
        """The count of numbers that belong to one page or expert."""
        if role is Role.EXPERTS and is_packed_with_weights(self.definition.inputs[name].description):
            return 1 << 16
        return page_size(self.axes) if role is Role.SELECTIONS else 1

    def _invalid(self, name: str, role: Role) -> str:
        """Reason why no draw may handle an input; empty if one may."""
        values = self.integers[name]
        if not values.numel():
            return "it has no elements"
        if role is Role.FIXED:
            return _UNKNOWN
        is_rising = values.dim() == 1 and int(values[0]) >= 0 and bool((values.diff() >= 0).all())
        if role is Role.OFFSETS and not is_rising:
            return "its values are not offsets: one-dimensional, non-negative, non-decreasing"
        if role is Role.LENGTHS and values.dim() != 1:
            return "only lengths of one dimension can be reordered"
        if role is Role.EXPERTS and values.dim() != 2:
            return "only experts of shape [tokens, top_k] are known"
        return self._beyond(name, role) if role in {Role.PAGES, Role.SELECTIONS, Role.EXPERTS} else ""

    def _beyond(self, name: str, role: Role) -> str:
        limit, largest = self._count(role) * self._unit(name, role), int(self.integers[name].max())
        return f"it contains {largest}, the axes allow numbers below {limit}" if max(largest, 0) >= limit else ""

    def _add_requests(self) -> None:
        blocked = ""
        for name in self.integers:
            if self.reasons.get(name) == _UNKNOWN:
                blocked = blocked or f"input {name!r} of unknown meaning may depend on the order of the requests"
            elif self.roles.get(name) is Role.SELECTIONS:
                blocked = blocked or f"the selections in {name!r} may depend on the order of the requests"
        for group in self.groups:
            for name in group.offsets:  # they are 0 and a total that a constraint equates with an axis
                if self.integers[name].tolist()[:-1] == [0] and total_axis(self.definition, name) is not None:
                    self.determined.add(name)
            if blocked or group.count < 2:
                positions = [name for name in group.names if self.roles[name] is Role.POSITIONS]
                self.reasons |= dict.fromkeys((*group.offsets, *group.lengths, *positions), blocked or _SAME)
            else:
                self._draws.append(group.reorder)
            if not blocked:
                self._draws += self._last_pages(group)
                self._moves += [group.move_pages] if self._can_move_pages(group) else []
                lengths = () if group.offsets else synthesis.may_be_zero(self.definition).intersection(group.lengths)
                rows = [row for row in group.rows if self.roles[row] is Role.PAGES]
                most = min((self.integers[row].shape[-1] for row in rows), default=0) * page_size(self.axes)
                pages = max(self._count(Role.PAGES), 1)
                change = partial(_change_lengths, rows=rows, most=most, pages=pages)
                self._moves += [partial(change, name=name) for name in lengths]

    def _can_move_pages(self, group: _Requests) -> bool:
        """Return whether requests may get other numbers of pages: all have as many, and no other input states them."""
        if group.count < 2 or len(group.offsets) != 1 or group.rows or not group.ragged:
            return False
        pages = group.lengths_of(group.offsets[0], self.integers)
        is_paged = all(self.roles[name] is Role.PAGES for name in group.ragged)
        return is_paged and all(map(is_last_page, group.lengths)) and int(pages[0]) > 1 and _is_constant(pages)

    def _last_pages(self, group: _Requests) -> list[_Draw]:
        """The draw of the tokens in equally long last pages, close to their length so that the work stays."""
        if len(group.offsets) != 1 or len(group.lengths) != 1:  # queries must not be longer than their keys
            return []
        (name,), most = group.lengths, page_size(self.axes)
        if most < 2 or not is_last_page(name) or not _is_constant(group.lengths_of(name, self.integers)):
            return []
        length = int(self.integers[name][0])
        low, high = max(length - _FEW_TOKENS, 1), min(max(length, 1 + _FEW_TOKENS), most)
        return [partial(_redraw_uniformly, name=name, low=low, high=high)]

    def _add_routing(self, name: str) -> None:
        if Role.OFFSETS in self.roles.values():
            self.reasons[name] = "offsets among the inputs may be derived from it"
            return
        self._draws.append(lambda now, drawn: {name: now[name][torch.randperm(len(now[name]), generator=drawn)]})
        experts = self._count(Role.EXPERTS)
        is_split = self.axes.get("num_local_experts", experts) != experts
        if not is_split and "local_expert_offset" not in self.definition.inputs:
            self._draws.append(partial(_relabel, units={name: self._unit(name, Role.EXPERTS)}, pool=experts))
