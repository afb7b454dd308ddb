"""Redrawing of structure: new values for the integer inputs that others depend on, as far as constraints allow.

A solution can derive a plan from integers that it has seen. Redrawn integers make such a plan
invalid, at about the same cost of the call:

- Page, block and slot numbers are relabelled by one random permutation of the pool.
- Requests are reordered: offsets, lengths, page tables and ragged index inputs change together, and
  all totals stay. Where that changes no length of a last page, the lengths change by up to three tokens.
- Tokens of a routing table are permuted, and experts are relabelled.
- Slots of sparse attention are relabelled with the pages.
- Positions are drawn uniformly from their valid values.

Integers of unknown meaning and scalars stay. Integers that are data (tokens, seeds, top-k, bytes) are not looked at:
`generator` makes them anew for each call.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import takewhile

import attrs
import torch
from fib_schema import ConstraintError, Definition, constraint_names, evaluate_constraint

from . import makers
from .generation import Value
from .makers import first_axis, is_last_page, is_packed_with_weights, page_size, total_axis
from .synthesis import STRUCTURE_ROLES, Role, role_of

Integers = Mapping[str, torch.Tensor]
"""Integer inputs by name, int64 on the CPU."""
_ATTEMPTS = 8
"""Draws until all redrawable inputs change; small inputs may repeat their values by chance."""
_FEW_TOKENS = 3
"""Tokens by which last pages get shorter or longer: enough to change them, too few to change the time of a call."""
_UNKNOWN = "no rule states which values are valid"


@attrs.frozen
class Redrawing:
    """Result of redrawing the integers of one call.

    Args:
        values: All inputs, redrawn where possible. Unchanged inputs are the objects that were given.
        changed: Integer inputs with new values.
        kept: Integer inputs with their old values, each with the reason.
        determined: Those of them that have only one valid value for the sizes of the call.
    """

    values: Mapping[str, Value]
    changed: tuple[str, ...]
    kept: Mapping[str, str]
    determined: frozenset[str] = frozenset()


@attrs.frozen
class _Draw:
    """One method of redrawing. It returns new values of the same shapes, by name; the named ones should change."""

    names: tuple[str, ...]
    make: Callable[[Integers, torch.Generator], Integers]


# -- draws -------------------------------------------------------------------------------------


def _relabel_pages(
    integers: Integers, generator: torch.Generator, *, pages: Sequence[str], slots: Sequence[str], pool: int, size: int
) -> Integers:
    """Relabel pages by one permutation of the pool that maps no page to itself; positions within a page stay.

    Equal pages stay equal and different pages stay different, within an input and between inputs. Numbers outside the
    pool (padding such as -1) stay. `slots` are page number * page size + position.
    """
    labels = _derangement(pool, generator)
    drawn = {name: _relabelled(integers[name], labels) for name in pages}
    for name in slots:
        page, position = integers[name].div(size, rounding_mode="floor"), integers[name].remainder(size)
        drawn[name] = _relabelled(page, labels) * size + position
    return drawn


def _redraw_routing(
    integers: Integers, generator: torch.Generator, *, name: str, experts: int, is_packed: bool, relabels: bool
) -> Integers:
    """Permute the tokens of a routing table ``[tokens, top_k]`` and relabel the experts, unless only some are local.

    Experts stay different within a token, and the loads of the experts are permuted. Routing weights
    that are packed into the low 16 bits stay with their experts.
    """
    values = integers[name][torch.randperm(len(integers[name]), generator=generator)]
    if not relabels:
        return {name: values}
    labels = _derangement(experts, generator)
    if not is_packed:
        return {name: _relabelled(values, labels)}
    return {name: (_relabelled(values >> 16, labels) << 16) | (values & 0xFFFF)}


def _redraw_uniformly(integers: Integers, generator: torch.Generator, *, name: str, low: int, high: int) -> Integers:
    """Draw each element from the other values between two bounds; elements outside them (padding) stay."""
    values, span = integers[name], high - low + 1
    steps = torch.randint(1, span, values.shape, generator=generator)
    drawn = low + (values - low + steps).remainder(span)
    return {name: torch.where((values >= low) & (values <= high), drawn, values)}


def _derangement(count: int, generator: torch.Generator) -> torch.Tensor:
    """Return a random permutation of one cycle, which has no fixed point if `count` is 2 or more."""
    order = torch.randperm(count, generator=generator)
    return torch.empty_like(order).scatter_(0, order, order.roll(1))


def _relabelled(values: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Replace the numbers below len(labels) by their labels; other numbers stay."""
    is_label = (values >= 0) & (values < len(labels))
    return torch.where(is_label, labels[values.clamp(0, len(labels) - 1)], values)


# -- requests ----------------------------------------------------------------------------------


@attrs.frozen
class _Requests:
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

    def lengths_of(self, name: str, integers: Integers) -> torch.Tensor:
        """Return the lengths, shape [count], that an input of offsets or lengths states."""
        return integers[name].diff() if name in self.offsets else integers[name][: self.count]

    def obstacle(self, name: str, integers: Integers) -> str | None:
        """Return why reordering the requests cannot change offsets or lengths, or None if it can."""
        if self.count < 2:
            return "the call has only one request" if self.count else "the call has no requests"
        is_equal = _is_constant(self.lengths_of(name, integers))
        return f"all {self.count} requests have the same length" if is_equal else None

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

    def can_move_pages(self, integers: Integers, roles: Mapping[str, Role]) -> bool:
        """Return whether requests may get other numbers of pages: all have as many, and no other input states them."""
        if self.count < 2 or len(self.offsets) != 1 or self.rows or not self.ragged:
            return False
        pages = self.lengths_of(self.offsets[0], integers)
        is_paged = all(roles[name] is Role.PAGES for name in self.ragged) and all(map(is_last_page, self.lengths))
        return is_paged and int(pages[0]) > 1 and _is_constant(pages)

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
    return bool((values == values[0]).all())


def _offsets_of(offsets: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Return offsets that begin where others do."""
    return torch.cat([offsets[:1], offsets[0] + lengths.cumsum(0)])


def _find_requests(integers: Integers, roles: Mapping[str, Role]) -> list[_Requests]:
    """Group the offsets and lengths of a call, and the inputs that they may order, by the number of requests."""
    offsets: dict[int, list[str]] = {}
    lengths: dict[int, list[str]] = {}
    for name in (name for name, role in roles.items() if role is Role.OFFSETS):
        offsets.setdefault(len(integers[name]) - 1, []).append(name)
    for name in (name for name, role in roles.items() if role is Role.LENGTHS):
        size = len(integers[name])
        is_padded = size not in offsets and size - 1 in offsets
        lengths.setdefault(size - 1 if is_padded else size, []).append(name)
    ordered = [name for name, role in roles.items() if role in {Role.PAGES, Role.SLOTS, Role.POSITIONS}]
    groups: list[_Requests] = []
    for count in {**offsets, **lengths}:
        names = [name for name in ordered if all(name not in group.names for group in groups)]
        parts = {name: _partition_of(integers[name], name, offsets.get(count, ()), count, integers) for name in names}
        ragged = {name: part for name, part in parts.items() if part is not None}
        rows = tuple(name for name in names if name not in ragged and integers[name].shape[:1] == (count,))
        groups.append(_Requests(count, tuple(offsets.get(count, ())), tuple(lengths.get(count, ())), rows, ragged))
    return groups


def _partition_of(
    values: torch.Tensor, name: str, offsets: Sequence[str], count: int, integers: Integers
) -> str | None:
    """Return the offsets that partition a one-dimensional input: equal total, longest common name prefix."""
    ends = [0, len(values)]
    matching = [other for other in offsets if values.dim() == 1 and integers[other][[0, -1]].tolist() == ends]
    best = max(matching, key=lambda other: _shared_prefix(name, other), default=None)
    if best is None or (len(values) == count and not _shared_prefix(name, best)):
        return None
    return best


def _shared_prefix(one: str, other: str) -> int:
    """Return the number of leading characters that two names share."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


# -- the structure of a call -------------------------------------------------------------------


@attrs.define(eq=False)
class Structure:
    """The structural integers of a call. What draws there are is found out once; CUDA inputs synchronize the device.

    Args:
        definition: The definition that the inputs belong to.
        axes: Sizes of the axes; constant axes may be missing.
        values: The inputs by name; the tensors are not changed.
    """

    definition: Definition
    axes: Mapping[str, int]
    values: Mapping[str, Value]
    integers: dict[str, torch.Tensor] = attrs.field(init=False, factory=dict)
    """Structure, and integers of unknown meaning, int64 on the CPU."""
    draws: list[_Draw] = attrs.field(init=False, factory=list)
    moves: list[_Draw] = attrs.field(init=False, factory=list)
    """Moves of pages between requests, which make a call slower."""
    reasons: dict[str, str] = attrs.field(init=False, factory=dict)
    """Inputs without a draw, each with the reason."""
    determined: set[str] = attrs.field(init=False, factory=set)
    """Inputs without a draw that have only one valid value for the sizes of the call."""
    roles: dict[str, Role] = attrs.field(init=False, factory=dict)
    """Roles of the inputs that a draw may handle."""
    groups: Sequence[_Requests] = attrs.field(init=False, default=())

    def __attrs_post_init__(self) -> None:
        self.axes = {**self.definition.const_axes, **self.axes}
        for name, spec in self.definition.inputs.items():
            value, role = self.values.get(name), role_of(self.definition, name)
            if spec.is_integer and isinstance(value, torch.Tensor) and role in {*STRUCTURE_ROLES, Role.FIXED}:
                self.integers[name] = value.to("cpu", torch.int64).contiguous()
                if (reason := self._invalid(self.integers[name], role)) is None:
                    self.roles[name] = role
                else:
                    self.reasons[name] = reason
        self._add_requests()
        self._add_pages()
        for name, role in self.roles.items():
            self._add_single(name, role)

    def redraw(self, generator: torch.Generator) -> Redrawing:
        """Redraw the integer inputs.

        The constraints of the definition hold for the result if they hold for the given values. Draws
        that violate a constraint are repeated and finally dropped. Index arithmetic runs on the CPU.

        Args:
            generator: Draws all random numbers, on the CPU. Equal states give equal values.

        Returns:
            The inputs, with new tensors of the same shape, strides, dtype and device where they changed.
        """
        drawn, reasons = self._drawn(self.draws, generator)
        changed = self._changed(drawn)
        kept = {
            name: "a scalar is a parameter of the call"
            for name, spec in self.definition.inputs.items()
            if spec.is_integer and isinstance(self.values.get(name), int)
        }
        for name in self.integers:
            if name not in changed:
                kept[name] = reasons.get(name, f"{_ATTEMPTS} draws repeated the present values")
        return Redrawing(self._restored(drawn, changed), changed, kept, frozenset(self.determined.difference(changed)))

    def move_pages(self, generator: torch.Generator) -> Redrawing:
        """Move pages from some requests to others, where all have as many: reordering them changes nothing there.

        For checks, not for timing: a call takes as long as its longest request.

        Returns:
            The inputs; `Redrawing.changed` is empty if no pages may move.
        """
        drawn, _ = self._drawn(self.moves, generator)
        changed = self._changed(drawn)
        return Redrawing(self._restored(drawn, changed), changed, {})

    def _drawn(self, draws: Sequence[_Draw], generator: torch.Generator) -> tuple[Integers, Mapping[str, str]]:
        """Apply draws one after the other; return what constraints allow, and reasons for what stays."""
        current, reasons = self.integers, dict(self.reasons)
        for draw in draws:
            best, made, violated = current, dict[str, torch.Tensor](), None
            for _ in range(_ATTEMPTS):
                made = {**draw.make(current, generator)}
                drawn = {**current, **made}
                violated = self._violated(drawn, made.keys())
                if violated is None:
                    best = drawn
                    if {*draw.names} <= {*self._changed(drawn)}:
                        break
            if best is current and violated is not None:
                reasons = dict.fromkeys(made, f"redrawn values violate the constraint {violated!r}") | reasons
            current = best
        return current, reasons

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

    def _restored(self, drawn: Integers, names: Sequence[str]) -> dict[str, Value]:
        """Return the inputs with drawn tensors of the original strides, dtype and device."""
        restored = dict(self.values)
        for name in names:
            old = self.values[name]
            assert isinstance(old, torch.Tensor), "structure is made of tensors"
            made = torch.empty_strided(old.shape, old.stride(), dtype=old.dtype, device=old.device)
            restored[name] = made.copy_(drawn[name])
        return restored

    # -- planning --------------------------------------------------------------------------------

    @property
    def pool(self) -> int:
        """Number of pages; 0 if no axis states it."""
        return first_axis(self.axes, *makers.POOL_AXES) or 0

    def _invalid(self, values: torch.Tensor, role: Role) -> str | None:
        if not values.numel():
            return "it has no elements"
        if role is Role.FIXED:
            return _UNKNOWN
        is_rising = values.dim() == 1 and int(values[0]) >= 0 and bool((values.diff() >= 0).all())
        if role is Role.OFFSETS and not is_rising:
            return "its values are not offsets: one-dimensional, non-negative, non-decreasing"
        if role is Role.LENGTHS and values.dim() != 1:
            return "only lengths of one dimension can be reordered"
        if role not in {Role.PAGES, Role.SLOTS, Role.SELECTIONS}:
            return None
        if first_axis(self.axes, *makers.POOL_AXES) is None:
            return "no axis states the number of pages"
        limit, largest = self.pool * (1 if role is Role.PAGES else page_size(self.axes)), int(values.max())
        return f"it contains {largest}, the pool ends at {limit - 1}" if largest >= limit else None

    def _add_requests(self) -> None:
        """Add a draw per group of requests; give reasons to offsets and lengths that it does not change."""
        self.groups = _find_requests(self.integers, self.roles)
        blocked = self._order_obstacle()
        for group in self.groups:
            stated = (*group.offsets, *group.lengths)
            reasons = {name: blocked or group.obstacle(name, self.integers) for name in stated}
            self.reasons.update({name: reason for name, reason in reasons.items() if reason is not None})
            names = tuple(name for name, reason in reasons.items() if reason is None)
            if names:
                self.draws.append(_Draw(names, group.reorder))
            else:
                kept = [name for name in group.names if self.roles[name] is Role.POSITIONS]
                self.reasons.update(dict.fromkeys(kept, str(reasons[stated[0]])))
            if blocked is None:
                self._add_last_pages(group)
                if group.can_move_pages(self.integers, self.roles):
                    self.moves.append(_Draw(group.offsets, group.move_pages))
            self.determined.update(name for name in group.offsets if self._is_determined(name))

    def _add_last_pages(self, group: _Requests) -> None:
        """Add draws of the tokens in equally long last pages, close to their length so that the work stays.

        Queries must not be longer than their keys, so there is none beside offsets of queries, or other lengths.
        """
        is_alone, page = len(group.offsets) == len(group.lengths) == 1, page_size(self.axes)
        for name in group.lengths:
            has_tokens = is_alone and is_last_page(name) and page > 1
            if has_tokens and self.reasons.pop(name, None) is not None:
                length = int(self.integers[name][0])
                self._add_uniform(name, max(length - _FEW_TOKENS, 1), min(max(length, 1 + _FEW_TOKENS), page))

    def _is_determined(self, name: str) -> bool:
        """Return whether offsets are 0 and a total that a constraint equates with an axis."""
        values = self.integers[name]
        return len(values) == 2 and int(values[0]) == 0 and total_axis(self.definition, name) is not None

    def _order_obstacle(self) -> str | None:
        """Return why requests must keep their order, or None if they need not."""
        for name in self.integers:
            if self.reasons.get(name) == _UNKNOWN:
                return f"input {name!r} of unknown meaning may depend on the order of the requests"
            if self.roles.get(name) is Role.SELECTIONS:
                return f"the selections in {name!r} may depend on the order of the requests"
        return None

    def _add_pages(self) -> None:
        """Add one relabelling for all inputs that refer to the page pool."""
        pages, slots = self._relabelled_names(Role.PAGES), self._relabelled_names(Role.SLOTS)
        if not self.groups:
            slots += self._relabelled_names(Role.SELECTIONS)
        if pages or slots:
            size = page_size(self.axes)
            make = partial(_relabel_pages, pages=pages, slots=slots, pool=self.pool, size=size)
            self.draws.append(_Draw((*pages, *slots), make))

    def _relabelled_names(self, role: Role) -> list[str]:
        """Return the inputs of a role whose pages can be relabelled; give reasons to the others."""
        names = []
        for name in (name for name, found in self.roles.items() if found is role):
            if bool((self.integers[name] < 0).all()):
                self.reasons[name] = "it contains padding only"
            elif self.pool < 2:
                self.reasons[name] = "the pool has only one page"
            else:
                names.append(name)
        return names

    def _add_single(self, name: str, role: Role) -> None:
        """Add the draw of an input that depends on no other input, or a reason."""
        if role is Role.SELECTIONS and self.groups:
            self.reasons[name] = "the selections may be places within the requests"
        elif role is Role.EXPERTS:
            self._add_routing(name)
        elif role is Role.POSITIONS and not any(name in group.names for group in self.groups):
            self._add_positions(name)

    def _add_routing(self, name: str) -> None:
        values, experts = self.integers[name], first_axis(self.axes, *makers.EXPERT_AXES)
        is_packed = is_packed_with_weights(self.definition.inputs[name].description)
        ids = values >> 16 if is_packed else values
        if experts is None or values.dim() != 2 or int(ids.max()) >= experts:
            self.reasons[name] = "only expert numbers of shape [tokens, top_k] below the number of experts are known"
            return
        if Role.OFFSETS in self.roles.values():
            self.reasons[name] = "offsets among the inputs may be derived from it"
            return
        is_split = self.axes.get("num_local_experts", experts) != experts
        relabels = experts > 1 and not is_split and "local_expert_offset" not in self.definition.inputs
        if bool((ids >= 0).any()) if relabels else bool((values != values[:1]).any()):
            make = partial(_redraw_routing, name=name, experts=experts, is_packed=is_packed, relabels=relabels)
            self.draws.append(_Draw((name,), make))
        else:
            self.reasons[name] = "all tokens have the same experts, and experts cannot be relabelled"

    def _add_positions(self, name: str) -> None:
        limit, largest = first_axis(self.axes, *makers.POSITION_AXES), int(self.integers[name].max())
        if self.groups:
            self.reasons[name] = "positions may depend on the lengths of the requests"
        elif limit is None:
            self.reasons[name] = "no axis states the number of positions"
        elif largest >= limit:
            self.reasons[name] = f"it contains {largest}, the number of positions is {limit}"
        else:
            self._add_uniform(name, 0, limit - 1)

    def _add_uniform(self, name: str, low: int, high: int) -> None:
        values = self.integers[name]
        if high <= low:
            self.reasons[name] = f"only {low} is valid"
        elif not bool(((values >= low) & (values <= high)).any()):
            self.reasons[name] = f"no element lies between {low} and {high}"
        else:
            self.draws.append(_Draw((name,), partial(_redraw_uniformly, name=name, low=low, high=high)))
