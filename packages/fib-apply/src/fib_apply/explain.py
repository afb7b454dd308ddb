"""Explanations: which solutions serve a definition's calls or one call, and why; as text and for JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec

from .key import ApplyKey
from .selection.rankings import Candidate, HardwareRankings, Ranking

if TYPE_CHECKING:
    from .routing.dispatcher import Dispatcher


def report_lines(
    hardware: str, by_hardware: Mapping[str, HardwareRankings], left_out: Mapping[str, str] = MappingProxyType({})
) -> Iterator[str]:
    """The rankings of a definition on one hardware; `left_out` are solutions that are not called."""
    rankings = by_hardware.get(hardware)
    if rankings is None:
        elsewhere = f" (but on {', '.join(by_hardware)})" if by_hardware else ""
        yield f"on {hardware}: no measurements{elsewhere}; the fallback serves all calls"
        return
    found = [(str(key), rankings.by_key[key]) for key in sorted_keys(rankings)]
    if rankings.best is not None:
        found.append(("over all keys", rankings.best))
    yield f"on {hardware}:"
    for label, ranking in found:
        yield f"  {label}"
        for line in ranking_lines(ranking, left_out):
            yield f"    {line}"


def plain_report(hardware: str, by_hardware: Mapping[str, HardwareRankings]) -> dict[str, Any]:
    """The same as plain objects, for JSON."""
    rankings = by_hardware.get(hardware)
    keys = [] if rankings is None else [plain_key(key, rankings.by_key[key]) for key in sorted_keys(rankings)]
    best = None if rankings is None or rankings.best is None else plain_ranking(rankings.best)
    return {"hardware": hardware, "keys": keys, "best": best}


def plain_key(key: ApplyKey, ranking: Ranking) -> dict[str, Any]:
    """A recorded key and its ranking as plain objects, for JSON."""
    return {"axes": dict(key.axes), "features": dict(key.feats), **plain_ranking(ranking)}


def explain_definition(dispatcher: Dispatcher, left_out: Mapping[str, str], problems: Iterable[str] = ()) -> str:
    """The problems of a definition, its guards, rankings by hardware, and the generated code."""
    definition, by_hardware = dispatcher.definition, dispatcher.pool.rankings
    lines = [f"{definition.name} ({definition.op_type})", *problems]
    lines.append(f"calls pass {dispatcher.guards}")
    for hardware in by_hardware:
        lines += ["", *report_lines(hardware, by_hardware, left_out)]
    if not by_hardware:
        lines += ["", "no measurements: the fallback serves all calls"]
    for source in dispatcher.sources.values():
        lines += ["", source.rstrip()]
    return "\n".join(lines)


def explain_call(dispatcher: Dispatcher, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Explain a call without a plan; nothing is called, built or counted, but the key builder runs.

    A solution that still has to compile for the call is named, although the fallback serves the call until then.
    """
    from .routing.slow_path import device_of, not_chosen
    from .routing.validation import Rejection

    definition, pool = dispatcher.definition, dispatcher.pool
    try:
        merged = definition.merge_kwargs_to_args(args, kwargs)
    except TypeError as error:
        return f"the fallback (arguments): {error}"
    variant = dispatcher.slow_path.variants()[len(merged) > len(definition.inputs)]
    key = variant.validator.rejection(merged) or dispatcher.slow_path.key(merged)
    if isinstance(key, Rejection):
        return f"the fallback ({key.reason}): {key.problem}"
    ranking = pool.ranking(key, device_of(merged))
    if ranking is None or not ranking.candidates:
        details = "" if ranking is None else f": {ranking.reason}"
        return f"the fallback ({not_chosen(ranking)}): {key}{details}"
    numbers = pool.numbers_of(merged)
    usable = pool.first_usable(ranking, numbers)
    if usable is None or pool.build_service.find(usable.solution) is None:
        return f"the fallback ({pool.miss_reason(ranking, numbers)}): {key}"
    return f"{usable.solution}: {key}"


def sorted_keys(rankings: HardwareRankings) -> list[ApplyKey]:
    """The recorded keys, by size."""
    return sorted(rankings.by_key, key=lambda key: (key.axes, key.encode))


def ranking_lines(ranking: Ranking, left_out: Mapping[str, str]) -> Iterator[str]:
    """The candidates in order, each with its latency, and the solutions that are left out."""
    yield ranking.reason
    if ranking.plain is None:
        is_planned = ranking.candidates and not ranking.is_padded
        yield "the fallback serves " + ("all calls without a plan" if is_planned else "these calls")
    for place, candidate in enumerate(ranking.candidates, start=1):
        because = f"; not called: {left_out[candidate.solution]}" if candidate.solution in left_out else ""
        against = "" if candidate.fallback_ms is None else f"; {ranking.fallback} {format_fallback(candidate)}"
        yield f"{place}. {candidate.solution}: {_format_candidate(candidate, ranking)}{against}{because}"
    for solution, reason in ranking.left_out:
        yield f"-  {solution}: {reason}"


def _format_candidate(candidate: Candidate, ranking: Ranking) -> str:
    text = _format_timing(candidate.latency_ms, candidate.interval_ms)
    if ranking.is_padded and not candidate.may_pad:
        return text + ", not verified with padded indices"
    return text + (", by plan() only" if candidate.has_setup else "")


def format_fallback(candidate: Candidate | None) -> str:
    """The fallback's time on the workloads of a candidate, or a dash."""
    if candidate is None or candidate.fallback_ms is None:
        return "-"
    return _format_timing(candidate.fallback_ms, candidate.fallback_interval_ms)


def _format_timing(latency_ms: float, interval_ms: tuple[float, float] | None) -> str:
    if interval_ms is None:
        return format_latency(latency_ms)
    low, high = interval_ms
    return f"{format_latency(latency_ms)} ({low * 1e3:.2f} to {high * 1e3:.2f})"


def format_latency(latency_ms: float) -> str:
    """A latency in microseconds."""
    return f"{latency_ms * 1e3:.2f} us"


def plain_ranking(ranking: Ranking) -> dict[str, Any]:
    """A ranking as plain objects, for JSON. `solution` serves plain calls, `planned` those of a plan."""
    first = () if ranking.is_padded else ranking.candidates[:1]
    return {
        "solution": None if ranking.plain is None else ranking.plain.solution,
        "planned": next((candidate.solution for candidate in first if candidate.has_setup), None),
        "reason": ranking.reason,
        "fallback": ranking.fallback,
        "candidates": [msgspec.structs.asdict(candidate) for candidate in ranking.candidates],
        "left_out": dict(ranking.left_out),
    }
