"""Integer redrawing: new values for the integer inputs of a call, as far as its constraints allow.

A solution can derive a plan from integers that it has seen. Redrawn integers make such a plan
invalid, at about the same cost of the call:

- Page, block and slot numbers are relabelled by one random permutation of the pool.
- Requests are reordered: offsets, lengths, page tables and ragged index inputs change together, and
  all totals stay. Where that changes no length of a last page, the lengths change by up to three tokens.
- Tokens of a routing table are permuted, and experts are relabelled.
- Slots of sparse attention are relabelled with the pages or permuted within each row.
- Positions, token numbers, top-k and seeds are drawn uniformly from their valid values.

Integers of unknown meaning and scalars stay. Use `redraw_integers` between checks and between timed
passes.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import torch
from fib_schema import ConstraintError, Definition, constraint_names, evaluate_constraint

from .generation import Value
from .redraw_plan import RedrawPlan, plan_redraws

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
    """Return the integer tensors among the inputs as int64 on the CPU."""
    return {
        name: value.to("cpu", torch.int64).contiguous()
        for name, spec in definition.inputs.items()
        if spec.is_integer and isinstance(value := values.get(name), torch.Tensor)
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
