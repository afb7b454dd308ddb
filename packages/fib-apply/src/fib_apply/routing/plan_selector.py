"""Plan selection: the best solution for the inputs of a plan, remembered by their sizes.

Engines plan before each step, mostly with sizes that they planned before. Validating a call takes 0.1 ms and more, so a
selection is remembered with a guard, as the entries of a `CallVariant` are.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ..key import ApplyKey
from ..miss_reasons import not_chosen
from ..signal_errors import raise_if_from_signal_handler
from .call_variant import CallVariant, compile_shapes
from .candidates import CandidatePool, LoadedCandidate
from .guards import Guard, GuardOptions, compile_guard
from .resolver import Resolver, device_of
from .validation import Rejection, has_nested

_MAX_SELECTIONS = 1024
_OPTIONS = {has_grad: GuardOptions(has_grad=has_grad) for has_grad in (False, True)}


class PlanSelection(NamedTuple):
    """The best solution for inputs and their key; None where there is none."""

    loaded: LoadedCandidate | None = None
    key: ApplyKey | None = None
    reason: str | None = None
    """The reason for a miss, if nothing is chosen for inputs like these, whether their calls have plans or not."""


class _Remembered(NamedTuple):
    """A selection, and what it is valid for."""

    guard: Guard
    generation: int
    quarantined: Mapping[str, str]
    selection: PlanSelection


class PlanSelector:
    """Selects solutions for plans of one definition.

    A selection that waits for a build is not remembered. The others are forgotten when a solution is quarantined or
    entries of the variant are dropped; a reload makes another selector.

    Args:
        pool: The candidates.
        resolver: Makes the keys.
        variant: The value-returning variant, whose generation counts invalidations.
        is_cached: Whether shapes determine the key; else nothing is remembered.
    """

    def __init__(self, pool: CandidatePool, resolver: Resolver, variant: CallVariant, *, is_cached: bool) -> None:
        self._pool, self._resolver, self._variant, self._is_cached = pool, resolver, variant, is_cached
        self._shapes_of = compile_shapes(pool.definition, is_destination_passing=False)
        self._remembered: dict[Any, _Remembered] = {}
        self._may_have_setup: bool | None = None

    @property
    def may_have_setup(self) -> bool:
        """Whether any solution of the definition may have a ``setup``; its sources are read once."""
        if self._may_have_setup is None:
            self._may_have_setup = self._pool.may_have_setup()
        return self._may_have_setup

    def select(self, inputs: Sequence[Any], fallback_equivalents: frozenset[str] = frozenset()) -> PlanSelection:
        """The best solution for inputs, with or without ``setup``.

        Args:
            inputs: The definition's inputs, in order.
            fallback_equivalents: Solutions that are the fallback in another form.
        """
        if has_nested(inputs):  # guards abort for such tensors
            return PlanSelection()
        place = self._place_of(inputs, fallback_equivalents)
        generation, quarantined = self._variant.generation, self._pool.quarantined
        known = None if place is None else self._remembered.get(place)
        if (
            known is not None
            and known.generation == generation
            and known.quarantined is quarantined
            and known.guard(*inputs)
        ):
            return known.selection
        selection, is_final = self._select(inputs, fallback_equivalents)
        if is_final and place is not None:
            guard = compile_guard(inputs, _OPTIONS[torch.is_grad_enabled()])
            if len(self._remembered) >= _MAX_SELECTIONS:
                for old in list(itertools.islice(self._remembered, _MAX_SELECTIONS // 2)):
                    self._remembered.pop(old, None)
            self._remembered[place] = _Remembered(guard, generation, quarantined, selection)
        return selection

    def _place_of(self, inputs: Sequence[Any], fallback_equivalents: frozenset[str]) -> Any:
        """The shapes of inputs, under which a selection is remembered; None if it cannot be."""
        if not self._is_cached:
            return None
        try:
            place = self._shapes_of(*inputs), fallback_equivalents
            hash(place)  # symbolic sizes have no hash
        except (AttributeError, TypeError) as error:
            raise_if_from_signal_handler(error)
            return None
        return place

    def _select(self, inputs: Sequence[Any], fallback_equivalents: frozenset[str]) -> tuple[PlanSelection, bool]:
        """A selection, and whether it holds for equal inputs until solutions are quarantined."""
        rejection = self._variant.validator.rejection(inputs)
        if rejection is not None:
            return PlanSelection(), rejection.is_cacheable
        key = self._resolver.key(inputs)
        if isinstance(key, Rejection):
            return PlanSelection(), False
        ranking = self._pool.ranking(key, device_of(inputs))
        if ranking is None or not ranking.candidates:
            return PlanSelection(None, key, not_chosen(ranking)), True
        loaded = self._pool.first_loaded(ranking, is_planned=True, fallback_equivalents=fallback_equivalents)
        return PlanSelection(loaded, key), loaded is not None
