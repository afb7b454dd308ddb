"""Explanations: which solutions serve a definition's calls or one call, and why; as text and for JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import attrs
import msgspec
from fib_schema import Definition

from .config import ApplyConfig
from .key import ApplyKey
from .selection.rankings import Candidate, HardwareRankings, Ranking, ranking_for

if TYPE_CHECKING:
    from .routing.dispatcher import Dispatcher


@attrs.frozen
class Answer:
    """The ranking that serves a key on one hardware."""

    key: ApplyKey
    ranking: Ranking | None
    """None if the fallback serves the key."""
    source: ApplyKey | None
    """The recorded key of the ranking: the key itself or the nearest; None if the ranking is over all keys."""
    batch_axes: tuple[str, ...] = ()
    """The axes at all sizes of which the ranking serves."""

    @classmethod
    def of(cls, rankings: HardwareRankings | None, key: ApplyKey, config: ApplyConfig) -> Answer:
        """The answer by the recorded rankings and the miss policy."""
        ranking = ranking_for(rankings, key, config)
        known: Mapping[ApplyKey, Ranking] = {} if rankings is None else rankings.by_key
        axes = () if rankings is None else rankings.batch_axes
        own = key if rankings is None else rankings.key_of(key)
        source = own if own in known else next((other for other, found in known.items() if found is ranking), None)
        return cls(own, ranking, source, axes)

    @property
    def is_recorded(self) -> bool:
        """Whether the key itself was measured."""
        return self.source == self.key

    @property
    def sizes(self) -> str:
        """The sizes and features of the calls that it is about."""
        if not self.batch_axes:
            return str(self.key)
        of_batch = f"all sizes of {', '.join(self.batch_axes)}"
        return f"{self.key}, {of_batch}" if self.key.axes or self.key.feats else of_batch

    def lines(self, policy: str, left_out: Mapping[str, str]) -> Iterator[str]:
        """The key, and below it the ranking."""
        yield self.sizes
        if not self.is_recorded:
            served = "the fallback serves it"
            if self.ranking is not None:
                served = f"served like {'any other key' if self.source is None else self.source}"
            yield f"  not recorded; {policy}: {served}"
        for line in () if self.ranking is None else ranking_lines(self.ranking, left_out):
            yield f"  {line}"

    def to_plain(self) -> dict[str, Any]:
        """The answer as plain objects, for JSON."""
        like = None if self.source is None else dict(self.source.axes)
        return {
            "axes": dict(self.key.axes),
            "features": dict(self.key.feats),
            "is_recorded": self.is_recorded,
            "like": like,
            "batch_axes": list(self.batch_axes),
            **plain_ranking(self.ranking),
        }


@attrs.frozen
class HardwareReport:
    """The answers for the keys in question of a definition on one hardware."""

    hardware: str
    rankings: HardwareRankings | None
    answers: Sequence[Answer]
    measured_on: Sequence[str]
    """All hardware with traces of the definition."""
    sizes: Mapping[str, int]
    """Of some axes; empty for all recorded keys."""

    @classmethod
    def of(
        cls,
        hardware: str,
        by_hardware: Mapping[str, HardwareRankings],
        config: ApplyConfig,
        definition: Definition,
        sizes: Mapping[str, int] = MappingProxyType({}),
    ) -> HardwareReport:
        """The recorded keys of some sizes; if there are none, and all axes have one, the key of these sizes."""
        rankings = by_hardware.get(hardware)
        recorded = [] if rankings is None else sorted_keys(rankings)
        asked = {} if rankings is None else dict(rankings.key_of(ApplyKey(sizes)).axes)
        keys = [key for key in recorded if asked.items() <= dict(key.axes).items()]
        if not keys and sizes and sizes.keys() == set(definition.var_axes):
            keys = [ApplyKey(sizes)]
        answers = [Answer.of(rankings, key, config) for key in keys]
        return cls(hardware, rankings, answers, tuple(by_hardware), sizes)

    def lines(self, config: ApplyConfig, left_out: Mapping[str, str] = MappingProxyType({})) -> Iterator[str]:
        """The answers, and without sizes the ranking over all keys; `left_out` are solutions that are not called."""
        if self.rankings is None:
            elsewhere = f" (but on {', '.join(self.measured_on)})" if self.measured_on else ""
            yield f"on {self.hardware}: no measurements{elsewhere}; the fallback serves all calls"
            return
        yield f"on {self.hardware}:"
        if not self.answers:
            yield f"  nothing is recorded for {ApplyKey(self.sizes)}; give all variable axes to apply the miss policy"
        for answer in self.answers:
            for line in answer.lines(config.on_miss_policy, left_out):
                yield f"  {line}"
        if not self.sizes and self.rankings.best is not None:
            yield "  over all keys"
            for line in ranking_lines(self.rankings.best, left_out):
                yield f"    {line}"

    def to_plain(self) -> dict[str, Any]:
        """The report as plain objects, for JSON."""
        best = None if self.rankings is None or self.rankings.best is None else plain_ranking(self.rankings.best)
        return {"hardware": self.hardware, "keys": [answer.to_plain() for answer in self.answers], "best": best}


def explain_definition(dispatcher: Dispatcher, left_out: Mapping[str, str], problems: Iterable[str] = ()) -> str:
    """The problems of a definition, notes of its callers, its guards, rankings by hardware, and the generated code."""
    definition, config, by_hardware = dispatcher.definition, dispatcher.config, dispatcher.pool.rankings
    lines = [f"{definition.name} ({definition.op_type})", *problems, *dispatcher.notes.values()]
    lines.append(f"calls pass {dispatcher.guards}")
    for hardware in by_hardware:
        lines += ["", *HardwareReport.of(hardware, by_hardware, config, definition).lines(config, left_out)]
    if not by_hardware:
        lines += ["", "no measurements: the fallback serves all calls"]
    for source in dispatcher.sources.values():
        lines += ["", source.rstrip()]
    return "\n".join(lines)


def explain_call(dispatcher: Dispatcher, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Explain a call without a plan; nothing is called, built or counted, but the key builder runs.

    A solution that still has to compile for the call is named, although the fallback serves the call until then.
    """
    from .routing.resolver import device_of, not_chosen
    from .routing.validation import Rejection

    definition, pool = dispatcher.definition, dispatcher.pool
    try:
        merged = definition.merge_kwargs_to_args(args, kwargs)
    except TypeError as error:
        return f"the fallback (arguments): {error}"
    variant = dispatcher.resolver.variants()[len(merged) > len(definition.inputs)]
    key = variant.validator.rejection(merged) or dispatcher.resolver.key(merged)
    if isinstance(key, Rejection):
        return f"the fallback ({key.reason}): {key.problem}"
    ranking = pool.ranking(key, device_of(merged))
    if ranking is None or not ranking.candidates:
        details = "" if ranking is None else f": {ranking.reason}"
        return f"the fallback ({not_chosen(ranking)}): {key}{details}"
    usable = pool.first_usable(ranking)
    if usable is None or pool.find(usable.solution) is None:
        return f"the fallback ({pool.miss_reason(ranking)}): {key}"
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


def plain_ranking(ranking: Ranking | None) -> dict[str, Any]:
    """A ranking as plain objects, for JSON. `solution` serves plain calls, `planned` those of a plan."""
    candidates = () if ranking is None else ranking.candidates
    plain = None if ranking is None else ranking.plain
    return {
        "solution": None if plain is None else plain.solution,
        "planned": _planned(ranking),
        "reason": None if ranking is None else ranking.reason,
        "fallback": None if ranking is None else ranking.fallback,
        "candidates": [msgspec.structs.asdict(candidate) for candidate in candidates],
        "left_out": {} if ranking is None else dict(ranking.left_out),
    }


def _planned(ranking: Ranking | None) -> str | None:
    if ranking is None or ranking.is_padded or not ranking.candidates or not ranking.candidates[0].has_setup:
        return None
    return ranking.candidates[0].solution
