"""Readiness: what serves each recorded key on this machine now, and why the fallback serves the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import attrs

from ..build_service.service import BuildService
from ..events import Routed
from ..hardware import local_hardware
from ..key import ApplyKey
from ..miss_reasons import BEING_BUILT, NOTHING_BUILT, QUARANTINED
from ..selection.rankings import Candidate, Ranking
from ..selection.table import ApplyTable


@attrs.frozen
class KeyState:
    """Current server of the calls of a recorded key: a solution or the fallback."""

    key: ApplyKey
    solution: str | None
    """None if the fallback does."""
    reason: str | None
    """Reason why the fallback serves them; None if a solution does."""


def key_states(
    table: ApplyTable, definition: str, service: BuildService, quarantined: Mapping[str, str]
) -> list[KeyState]:
    """The states of the recorded keys of a definition, on the first hardware of this machine that has some.

    Args:
        table: The selected solutions.
        definition: Its name.
        service: Holds the loaded solutions.
        quarantined: Solutions that are not called, each with the reason.
    """
    views = map(table.for_hardware, local_hardware())
    rankings = next((found for view in views if (found := view.rankings(definition)) is not None), None)
    if rankings is None:
        return []
    return [_state(key, ranking, service, quarantined) for key, ranking in rankings.by_key.items()]


def routed(states: Iterable[KeyState], definition: str) -> Routed:
    """The numbers of keys by solution and by reason."""
    found = list(states)
    by_solution = Counter(state.solution for state in found if state.solution is not None)
    by_reason = Counter(state.reason for state in found if state.reason is not None)
    return Routed(definition, by_solution, by_reason)


def _state(key: ApplyKey, ranking: Ranking, service: BuildService, quarantined: Mapping[str, str]) -> KeyState:
    plain = ranking.plain_candidates
    if not plain:
        return KeyState(key, None, ranking.plain_problem)
    first = next(_usable(plain, service, quarantined), None)
    if first is None:
        is_any_quarantined = any(candidate.solution in quarantined for candidate in plain)
        return KeyState(key, None, QUARANTINED if is_any_quarantined else NOTHING_BUILT)
    if service.find(first.solution) is None:
        return KeyState(key, None, BEING_BUILT if service.is_requested(first.solution) else "not built yet")
    return KeyState(key, first.solution, None)


def _usable(
    candidates: Iterable[Candidate], service: BuildService, quarantined: Mapping[str, str]
) -> Iterator[Candidate]:
    for candidate in candidates:
        if candidate.solution not in quarantined and service.problem(candidate.solution) is None:
            yield candidate
