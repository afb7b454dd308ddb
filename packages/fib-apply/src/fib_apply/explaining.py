"""Says in words, or for JSON, what serves a definition's calls, and why. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from .choosing.rules import Candidate, Choices, Ranking
from .config import ApplyConfig
from .key import ApplyKey
from .routing.policy import ranking_for

if TYPE_CHECKING:
    from .routing.dispatcher import Dispatcher


@attrs.frozen
class Answer:
    """What serves a key on one hardware."""

    key: ApplyKey
    ranking: Ranking | None
    """None if the fallback serves it, for nothing is recorded that may."""
    like: ApplyKey | None
    """The recorded key that the ranking is of: this one, or the nearest; None if it is over all keys."""

    @property
    def is_recorded(self) -> bool:
        """Whether anything was measured at this very key."""
        return self.like == self.key

    def lines(self, policy: str, left_out: Mapping[str, str]) -> Iterator[str]:
        """As text: the key, and below it what serves it.

        Args:
            policy: What the settings say of keys that are not recorded.
            left_out: Solutions that are not called, and why.
        """
        yield f"{self.key}"
        if not self.is_recorded:
            yield f"  not recorded; {policy}: {self._served_as()}"
        for line in () if self.ranking is None else lines_of(self.ranking, left_out):
            yield f"  {line}"

    def _served_as(self) -> str:
        if self.ranking is None:
            return "the fallback serves it"
        return f"served like {'any other key' if self.like is None else self.like}"

    def to_plain(self) -> dict[str, Any]:
        """As plain objects, for JSON."""
        like = None if self.like is None else dict(self.like.axes)
        return {**_plain_key(self.key), "is_recorded": self.is_recorded, "like": like, **plain_ranking(self.ranking)}


def answer(choices: Choices | None, key: ApplyKey, config: ApplyConfig) -> Answer:
    """What serves a key, by what is recorded and the policy for misses."""
    ranking = ranking_for(choices, key, config)
    known: Mapping[ApplyKey, Ranking] = {} if choices is None else choices.by_key
    like = key if key in known else next((other for other, found in known.items() if found is ranking), None)
    return Answer(key, ranking, like)


def explain(dispatcher: Dispatcher, left_out: Mapping[str, str]) -> str:
    """What is chosen for each key of each hardware, and the generated code."""
    lines = [f"{dispatcher.definition.name} ({dispatcher.definition.op_type})"]
    for choices in dispatcher.supply.choices.values():
        answers = [answer(choices, key, dispatcher.config) for key in sorted_keys(choices)]
        lines += ["", f"on {choices.hardware}:", *lines_on(choices, answers, dispatcher.config, left_out)]
    if not dispatcher.supply.choices:
        lines += ["", "nothing was measured: the fallback serves all calls"]
    for source in dispatcher.sources.values():
        lines += ["", source.rstrip()]
    return "\n".join(lines)


def sorted_keys(choices: Choices) -> list[ApplyKey]:
    """What is recorded, by size."""
    return sorted(choices.by_key, key=lambda key: (key.axes, key.encode))


def lines_on(
    choices: Choices,
    answers: Iterable[Answer],
    config: ApplyConfig,
    left_out: Mapping[str, str],
    *,
    has_best: bool = True,
) -> Iterator[str]:
    """What serves keys on one hardware, and what is best over all keys."""
    for found in answers:
        for line in found.lines(config.on_miss_policy, left_out):
            yield f"  {line}"
    if has_best and choices.best is not None:
        yield "  over all keys"
        for line in lines_of(choices.best, left_out):
            yield f"    {line}"


def lines_of(ranking: Ranking, left_out: Mapping[str, str]) -> Iterator[str]:
    """What is chosen and what would be next, each with its latency."""
    yield ranking.reason
    if ranking.plain is None:
        yield "the fallback serves " + ("all calls that were not planned" if ranking.candidates else "these calls")
    for place, candidate in enumerate(ranking.candidates, start=1):
        because = f"; not called: {left_out[candidate.solution]}" if candidate.solution in left_out else ""
        yield f"{place}. {candidate.solution}: {_latency(candidate)}{because}"
    for solution, reason in ranking.left_out:
        yield f"-  {solution}: {reason}"


def _latency(candidate: Candidate) -> str:
    text = latency_text(candidate.latency_ms)
    if candidate.interval_ms is not None:
        low, high = candidate.interval_ms
        text += f" ({low * 1e3:.2f} to {high * 1e3:.2f})"
    return text + (", by plan() only" if candidate.has_setup else "")


def latency_text(latency_ms: float) -> str:
    """In microseconds."""
    return f"{latency_ms * 1e3:.2f} us"


def plain_ranking(ranking: Ranking | None) -> dict[str, Any]:
    """As plain objects, for JSON: `solution` serves plain calls, `planned` those of a plan."""
    candidates = () if ranking is None else ranking.candidates
    plain = None if ranking is None else ranking.plain
    return {
        "solution": None if plain is None else plain.solution,
        "planned": candidates[0].solution if candidates and candidates[0].has_setup else None,
        "reason": None if ranking is None else ranking.reason,
        "candidates": [_plain_candidate(candidate) for candidate in candidates],
        "left_out": {} if ranking is None else dict(ranking.left_out),
    }


def _plain_candidate(candidate: Candidate) -> dict[str, Any]:
    found = attrs.asdict(candidate)
    return {**found, "interval_ms": None if candidate.interval_ms is None else list(candidate.interval_ms)}


def _plain_key(key: ApplyKey) -> dict[str, Any]:
    return {"axes": dict(key.axes), "features": dict(key.feats)}
