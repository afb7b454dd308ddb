"""Graph safety: whether a captured call was right in replays with other integers than those that it was captured with.

Timed passes capture each call once and replay it with inputs that the judge makes anew, integers included, and compare
calls drawn in secret with fresh answers. Booleans are never drawn anew. Offsets of requests that all have the same
length cannot be drawn anew without other sizes; the padding check does that before, in replays of a captured call. This
module decides from what both did; it makes no calls itself.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs
from fib_schema import Definition

MIN_VERIFIED = 10
"""Replays that were compared with fresh answers; fewer show little."""


@attrs.frozen(kw_only=True)
class GraphEvidence:
    """Facts about the timing of a solution."""

    method: str
    """Method of the timer."""
    has_setup: bool
    """Whether the solution made a plan on the host, of the integers that it saw."""
    verified_calls: int
    """Replays whose outputs were compared with fresh answers of the reference."""
    discrete: Iterable[str]
    """The integer and boolean tensors among the inputs that have several valid values, see `discrete_inputs`."""
    changed: Iterable[str]
    """The inputs whose values differed from replay to replay."""
    changed_in_padded_calls: Iterable[str] = ()
    """The integer tensors that differed in the replays of a padding check that has found nothing wrong."""
    kept_integers: bool
    """Whether integers stayed because the baseline plans on the host."""


def discrete_inputs(definition: Definition, names: Iterable[str]) -> list[str]:
    """The integers and booleans among input tensors: offsets, page numbers and masks, by which kernels choose work."""
    specs = definition.inputs
    return [name for name in names if specs[name].is_integer or specs[name].dtype == "bool"]


def graph_problem(evidence: GraphEvidence) -> str | None:
    """Reason why a solution was not shown to be safe in a CUDA graph; None if it was."""
    if evidence.method != "handshake":
        return f"it was timed by the method {evidence.method!r}, which replays no captured call with changed inputs"
    if evidence.has_setup:
        return "its setup makes a plan on the host"
    if evidence.kept_integers:
        return "its integers were not redrawn, because the baseline has a setup"
    if fixed := sorted(set(evidence.discrete).difference(evidence.changed, evidence.changed_in_padded_calls)):
        return f"integer or boolean inputs were not redrawn: {', '.join(fixed)}"
    if evidence.verified_calls < MIN_VERIFIED:
        return f"only {evidence.verified_calls} replays were compared with fresh answers"
    return None


def graph_fields(evidence: GraphEvidence) -> dict[str, object]:
    """The fields of a trace's timing."""
    problem = graph_problem(evidence)
    return {"graph_safe": True} if problem is None else {"graph_safe": False, "graph_unsafe_reason": problem}
