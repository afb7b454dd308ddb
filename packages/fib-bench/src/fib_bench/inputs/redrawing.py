"""Integer redrawing: new values for the integer inputs of a call, as far as its constraints allow.

A solution can derive a plan from integers that it has seen. Redrawn integers make such a plan
invalid, at about the same cost of the call:

- Page, block and slot numbers are relabelled by one random permutation of the pool.
- Requests are reordered: offsets, lengths, page tables and ragged index inputs change together, and
  all totals stay. Where that changes no length of a last page, the lengths change by up to three tokens.
- Tokens of a routing table are permuted, and experts are relabelled.
- Slots of sparse attention are relabelled with the pages or permuted within each row.
- Positions are drawn uniformly from their valid values.

Integers of unknown meaning and scalars stay. Integers that are data (tokens, seeds, top-k, bytes) are not looked at:
`generator` makes them anew for each call. Use `redraw_integers` between checks and between timed
passes.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import torch
from fib_schema import ConstraintError, Definition, constraint_names, evaluate_constraint

from . import makers
from .generation import Value
from .integer_draws import (
    IntegerDraw,
    PageRelabeling,
    RequestGroup,
    RoutingDraw,
    SelectionShuffle,
    UniformDraw,
    find_groups,
    has_valid_offsets,
)
from .synthesis import Role, role_of

_UNKNOWN = "no rule states which values are valid"
_FEW_TOKENS = 3
"""Tokens by which last pages get shorter or longer: enough to change them, too few to change the time of a call."""
_POOLED = frozenset({Role.PAGES, Role.SLOTS, Role.SELECTIONS})


@attrs.define
class RedrawPlan:
    """Draws for the integer inputs of a call.

    Args:
        draws: The draws, in the order in which they are applied.
        reasons: Inputs without a draw, each with the reason.
        determined: Inputs without a draw that have only one valid value for the sizes of the call.
        movable: Requests whose pages may move to others, which makes a call slower; see `move_pages`.
    """

    draws: list[IntegerDraw] = attrs.field(factory=list)
    reasons: dict[str, str] = attrs.field(factory=dict)
    determined: set[str] = attrs.field(factory=set)
    movable: list[RequestGroup] = attrs.field(factory=list)

    @property
    def redrawable(self) -> frozenset[str]:
        """The inputs that the draws are expected to change."""
        return frozenset(name for draw in self.draws for name in draw.names if name not in self.reasons)

    def without(self, names: frozenset[str], reason: str) -> RedrawPlan:
        """Return a plan without the draws of these inputs; all their inputs get the reason."""
        removed = [draw for draw in self.draws if names & set(draw.names)]
        kept = [draw for draw in self.draws if draw not in removed]
        still_drawn = {name for draw in kept for name in draw.names}
        dropped = {name for draw in removed for name in draw.names if name not in still_drawn}
        return RedrawPlan(kept, dict.fromkeys(dropped, reason) | self.reasons, self.determined, self.movable)


def plan_redraws(definition: Definition, axes: Mapping[str, int], integers: Mapping[str, torch.Tensor]) -> RedrawPlan:
    """Select draws for the integer tensors of a call.

    Args:
        definition: The definition that the inputs belong to.
        axes: Sizes of all axes, constant ones included.
        integers: The integer tensors by name, int64 on the CPU.
    """
    planner = _Planner(definition, axes, integers, {name: role_of(definition, name) for name in integers})
    planner.exclude_invalid()
    planner.add_requests()
    planner.add_pages()
    for name, role in planner.roles.items():
        planner.add_single(name, role)
    return planner.plan


@attrs.define
class _Planner:
    definition: Definition
    axes: Mapping[str, int]
    integers: Mapping[str, torch.Tensor]
    roles: dict[str, Role]
    plan: RedrawPlan = attrs.field(factory=RedrawPlan)
    has_requests: bool = False
    ordered: set[str] = attrs.field(factory=set)
    """Inputs that belong to requests."""

    def exclude_invalid(self) -> None:
        """Give reasons to inputs that no draw can handle, and forget their roles."""
        for name, role in list(self.roles.items()):
            reason = self._invalid(self.integers[name], role)
            if reason is not None:
                self.plan.reasons[name] = reason
                del self.roles[name]

    def _invalid(self, values: torch.Tensor, role: Role) -> str | None:
        if not values.numel():
            return "it has no elements"
        if role is Role.FIXED:
            return _UNKNOWN
        if role is Role.OFFSETS and not has_valid_offsets(values):
            return "its values are not offsets: one-dimensional, non-negative, non-decreasing"
        if role is Role.LENGTHS and values.dim() != 1:
            return "only lengths of one dimension can be reordered"
        return self._out_of_pool(values, role) if role in _POOLED else None

    def _out_of_pool(self, values: torch.Tensor, role: Role) -> str | None:
        pool = makers.pool_size(self.axes)
        if pool is None:
            return "no axis states the number of pages"
        limit = pool if role is Role.PAGES else pool * makers.page_size(self.axes)
        largest = int(values.max())
        return f"it contains {largest}, the pool ends at {limit - 1}" if largest >= limit else None

    def add_requests(self) -> None:
        """Add a draw per request group; give reasons to offsets and lengths that it does not change."""
        groups = find_groups(self.integers, self.roles)
        self.has_requests = bool(groups)
        blocked = self._order_obstacle()
        for group in groups:
            self.ordered.update(group.names)
            reasons = {
                name: blocked or group.obstacle(name, self.integers) for name in (*group.offsets, *group.lengths)
            }
            self.plan.reasons.update({name: reason for name, reason in reasons.items() if reason is not None})
            if not all(reasons.values()):
                self.plan.draws.append(group)
            else:
                self._keep_positions(group, next(reason for reason in reasons.values() if reason is not None))
            if blocked is None:
                self._add_last_pages(group)
                if group.can_move_pages(self.integers, self.roles):
                    self.plan.movable.append(group)
            self.plan.determined.update(name for name in group.offsets if self._is_determined(name))

    def _add_last_pages(self, group: RequestGroup) -> None:
        """Add draws of the tokens in equally long last pages, close to their length so that the work stays.

        Queries must not be longer than their keys, so there is none beside offsets of queries, or other lengths.
        """
        is_alone = len(group.offsets) == len(group.lengths) == 1
        page = makers.page_size(self.axes)
        for name in group.lengths:
            has_tokens = is_alone and makers.is_last_page(name) and page > 1
            if has_tokens and self.plan.reasons.pop(name, None) is not None:
                length = int(self.integers[name][0])
                self._add_uniform(name, max(length - _FEW_TOKENS, 1), min(max(length, 1 + _FEW_TOKENS), page))

    def _is_determined(self, name: str) -> bool:
        """Return whether offsets are 0 and a total that a constraint equates with an axis."""
        values = self.integers[name]
        return len(values) == 2 and int(values[0]) == 0 and makers.total_axis(self.definition, name) is not None

    def _order_obstacle(self) -> str | None:
        """Return why requests must keep their order, or None if they need not."""
        for name in self.integers:
            if self.plan.reasons.get(name) == _UNKNOWN:
                return f"input {name!r} of unknown meaning may depend on the order of the requests"
            if self.roles.get(name) is Role.SELECTIONS:
                return f"the selections in {name!r} may depend on the order of the requests"
        return None

    def _keep_positions(self, group: RequestGroup, reason: str) -> None:
        for name in group.names:
            if self.roles[name] is Role.POSITIONS:
                self.plan.reasons[name] = reason

    def add_pages(self) -> None:
        """Add one relabelling for all inputs that refer to the page pool."""
        pool = makers.pool_size(self.axes) or 0
        pages = self._redrawn_names(Role.PAGES, pool)
        slots = self._redrawn_names(Role.SLOTS, pool)
        if not self.has_requests and pool > 1:
            slots += self._redrawn_names(Role.SELECTIONS, pool)
        if pages or slots:
            page_size = makers.page_size(self.axes)
            self.plan.draws.append(PageRelabeling(tuple(pages), tuple(slots), pool, page_size))

    def _redrawn_names(self, role: Role, pool: int) -> list[str]:
        """Return the inputs of a role whose pages can be relabelled; give reasons to the others."""
        names = []
        for name in (name for name, found in self.roles.items() if found is role):
            if bool((self.integers[name] < 0).all()):
                self.plan.reasons[name] = "it contains padding only"
            elif pool < 2:
                self.plan.reasons[name] = "the pool has only one page"
            else:
                names.append(name)
        return names

    def add_single(self, name: str, role: Role) -> None:
        """Add the draw of an input that depends on no other input, or a reason."""
        match role:
            case Role.SELECTIONS if not any(name in draw.names for draw in self.plan.draws):
                self._add_if(
                    name, _rows_vary(self.integers[name]), SelectionShuffle(name), "each row has one slot only"
                )
            case Role.EXPERTS:
                self._add_routing(name)
            case Role.POSITIONS if name not in self.ordered:
                self._add_positions(name)

    def _add_if(self, name: str, is_possible: bool, draw: IntegerDraw, reason: str) -> None:
        if is_possible:
            self.plan.draws.append(draw)
        else:
            self.plan.reasons[name] = reason

    def _add_routing(self, name: str) -> None:
        values, experts = self.integers[name], makers.expert_count(self.axes)
        is_packed = makers.is_packed_with_weights(self.definition.inputs[name].description)
        ids = values >> 16 if is_packed else values
        if experts is None or values.dim() != 2 or int(ids.max()) >= experts:
            self.plan.reasons[name] = (
                "only expert numbers of shape [tokens, top_k] below the number of experts are known"
            )
        elif any(role is Role.OFFSETS for role in self.roles.values()):
            self.plan.reasons[name] = "offsets among the inputs may be derived from it"
        else:
            relabels = experts > 1 and not self._has_local_experts(experts)
            can_change = bool((ids >= 0).any()) if relabels else bool((values != values[:1]).any())
            draw = RoutingDraw(name, experts, is_packed, relabels)
            self._add_if(name, can_change, draw, "all tokens have the same experts, and experts cannot be relabelled")

    def _has_local_experts(self, experts: int) -> bool:
        is_split = self.axes.get("num_local_experts", experts) != experts
        return is_split or "local_expert_offset" in self.definition.inputs

    def _add_positions(self, name: str) -> None:
        if self.has_requests:
            self.plan.reasons[name] = "positions may depend on the lengths of the requests"
            return
        limit, largest = makers.position_limit(self.axes), int(self.integers[name].max())
        if limit is None:
            self.plan.reasons[name] = "no axis states the number of positions"
        elif largest >= limit:
            self.plan.reasons[name] = f"it contains {largest}, the number of positions is {limit}"
        else:
            self._add_uniform(name, 0, limit - 1)

    def _add_uniform(self, name: str, low: int, high: int) -> None:
        values = self.integers[name]
        if high <= low:
            self.plan.reasons[name] = f"only {low} is valid"
        elif not bool(((values >= low) & (values <= high)).any()):
            self.plan.reasons[name] = f"no element lies between {low} and {high}"
        else:
            self.plan.draws.append(UniformDraw(name, low, high))


def _rows_vary(values: torch.Tensor) -> bool:
    """Return whether a row contains different slots, padding aside."""
    if not values.dim():
        return False
    highest = values.amax(-1)
    lowest = torch.where(values < 0, highest.unsqueeze(-1), values).amin(-1)
    return bool((lowest < highest).any())


_ATTEMPTS = 8
"""Draws until all redrawable inputs change; small inputs may repeat their values by chance."""
_SCALAR = "a scalar is a parameter of the call"


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


def redraw_integers(
    definition: Definition, axes: Mapping[str, int], values: Mapping[str, Value], generator: torch.Generator
) -> Redrawing:
    """Redraw the integer inputs of a call.

    The constraints of the definition hold for the result if they hold for the given values. Draws
    that violate a constraint are repeated and finally dropped. Index arithmetic runs on the CPU, so
    CUDA inputs synchronize the device.

    Args:
        definition: The definition that the inputs belong to.
        axes: Sizes of the axes; constant axes may be missing.
        values: The inputs by name; the tensors are not changed.
        generator: Draws all random numbers, on any device. Equal states give equal values.

    Returns:
        The inputs, with new tensors of the same shape, strides, dtype and device where they changed.
    """
    axes = {**definition.const_axes, **axes}
    integers = _integer_tensors(definition, values)
    plan = plan_redraws(definition, axes, integers)
    drawn, plan = _draw(plan, integers, generator, _Constraints(definition, axes, values))
    changed = tuple(name for name in integers if not torch.equal(drawn[name], integers[name]))
    kept = _scalar_reasons(definition, values)
    for name in integers:
        if name not in changed:
            kept[name] = plan.reasons.get(name, f"{_ATTEMPTS} draws repeated the present values")
    determined = frozenset(plan.determined - set(changed))
    return Redrawing({**values, **_restored(values, drawn, changed)}, changed, kept, determined)


def move_pages(
    definition: Definition, axes: Mapping[str, int], values: Mapping[str, Value], generator: torch.Generator
) -> Redrawing:
    """Move pages from some requests to others, where all have as many: reordering the requests changes nothing there.

    For checks, not for timing: a call takes as long as its longest request. Arguments are those of `redraw_integers`.

    Returns:
        The inputs; `Redrawing.changed` is empty if no pages may move.
    """
    axes = {**definition.const_axes, **axes}
    integers = _integer_tensors(definition, values)
    drawn = dict(integers)
    for group in plan_redraws(definition, axes, integers).movable:
        drawn.update(group.with_moved_pages(integers, generator))
    changed = _changes(drawn, integers)
    if _Constraints(definition, axes, values).violated(drawn, changed) is not None:
        changed = frozenset()
    names = tuple(name for name in integers if name in changed)
    return Redrawing({**values, **_restored(values, drawn, names)}, names, {})


@attrs.frozen
class _Constraints:
    definition: Definition
    axes: Mapping[str, int]
    values: Mapping[str, Value]

    def violated(self, integers: Mapping[str, torch.Tensor], names: frozenset[str]) -> str | None:
        """Return the first constraint that reads one of the names and does not hold."""
        originals = {name: self.values[name] for name in integers}
        cast = {
            name: tensor.to(original.dtype)
            for name, tensor in integers.items()
            if isinstance(original := originals[name], torch.Tensor)
        }
        for constraint in self.definition.constraints:
            if not names & constraint_names(constraint):
                continue
            try:
                holds = evaluate_constraint(constraint, {**self.axes, **self.values, **cast})
            except ConstraintError:
                holds = False
            if not holds:
                return constraint
        return None


def _draw(
    plan: RedrawPlan, integers: Mapping[str, torch.Tensor], generator: torch.Generator, constraints: _Constraints
) -> tuple[Mapping[str, torch.Tensor], RedrawPlan]:
    """Draw until the constraints hold and all redrawable inputs change; drop draws that violate a constraint."""
    best: Mapping[str, torch.Tensor] = integers
    while plan.draws:
        violated = None
        for _ in range(_ATTEMPTS):
            drawn = _apply(plan, integers, generator)
            violated = constraints.violated(drawn, _changes(drawn, integers))
            if violated is None:
                if plan.redrawable <= _changes(drawn, integers):
                    return drawn, plan
                best = max(best, drawn, key=lambda item: len(_changes(item, integers)))
        if best is not integers or violated is None:
            break
        reason = f"redrawn values violate the constraint {violated!r}"
        plan = plan.without(constraint_names(violated), reason)
    return best, plan


def _apply(
    plan: RedrawPlan, integers: Mapping[str, torch.Tensor], generator: torch.Generator
) -> Mapping[str, torch.Tensor]:
    drawn = dict(integers)
    for draw in plan.draws:
        drawn.update(draw.redraw(drawn, generator))
    return drawn


def _changes(drawn: Mapping[str, torch.Tensor], integers: Mapping[str, torch.Tensor]) -> frozenset[str]:
    return frozenset(name for name, tensor in integers.items() if not torch.equal(drawn[name], tensor))


def _integer_tensors(definition: Definition, values: Mapping[str, Value]) -> dict[str, torch.Tensor]:
    """Return the integer tensors among the inputs that are not data, as int64 on the CPU."""
    return {
        name: value.to("cpu", torch.int64).contiguous()
        for name, spec in definition.inputs.items()
        if spec.is_integer
        and not role_of(definition, name).is_data
        and isinstance(value := values.get(name), torch.Tensor)
    }


def _scalar_reasons(definition: Definition, values: Mapping[str, Value]) -> dict[str, str]:
    return {
        name: _SCALAR
        for name, spec in definition.inputs.items()
        if spec.is_integer and isinstance(values.get(name), int)
    }


def _restored(
    values: Mapping[str, Value], drawn: Mapping[str, torch.Tensor], names: tuple[str, ...]
) -> dict[str, torch.Tensor]:
    """Copy drawn tensors into new tensors of the original strides, dtype and device."""
    restored = {}
    for name in names:
        original = values[name]
        if isinstance(original, torch.Tensor):
            made = torch.empty_strided(original.shape, original.stride(), dtype=original.dtype, device=original.device)
            restored[name] = made.copy_(drawn[name])
    return restored
