"""Evaluator of sampling. Each token must be an allowed one, and many together must follow the reference.

The allowed set and the probabilities are computed from the inputs: probabilities or logits, cut by
top-k, top-p and min-p. Whether the reference does the same is tested on its own draws; a reference that
does something else is taken by its draws alone.

A solution has random numbers of its own, so it is called many times on the same inputs. In timed calls
each token is checked, and the draws of all checked timed calls, which have different inputs, are tested
together.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import torch
from fib_schema import Definition

from ..checking.comparison import Comparison
from ..config.model import ResolvedEvalConfig
from ..inputs.generation import Value
from ..secure_random import SECRET
from .protocol import Case, Check, Evaluator, Observation, Tensors, Verdict, calls_of

TRIALS = 100
SAMPLES = 10_000
"""Draws that show one token in a hundred outside the allowed set, and a temperature that is off by a fifth."""
TVD_THRESHOLD = 0.2
_TRYING_SECONDS = 5.0
"""For the reference's own draws; some are made in any case."""
_MIN_TRIES = 8
_MAX_PROBLEMS = 5
_MAX_ROWS = 128
"""Limit of the randomly chosen rows of one input set whose draws are tested."""
_MAX_TOKENS = {"cpu": 1 << 23, "cuda": 1 << 29}
"""Limit of the elements of tested rows in all input sets together, by device: about a second of work."""
_CHUNK = 1 << 22
"""Elements of rows that are looked at together."""
_DRAWS = {
    "multinomial", "rand", "rand_like", "randint", "randn", "bernoulli", "bernoulli_", "exponential_", "uniform_",
    "normal_", "random_", "geometric_", "Categorical", "sample", "gumbel_softmax",
}  # fmt: skip


class Sampling(Evaluator):
    """The allowed set for each token, distances between distributions for many."""

    name = "sampling"
    is_random = True

    def applies(self, definition: Definition) -> bool:
        """True for ops whose reference draws random numbers and returns only integers."""
        are_integer = all(spec.is_integer for spec in definition.outputs.values())
        return are_integer and bool(_DRAWS & calls_of(definition))

    def check(self, case: Case) -> Check:
        """Select the model that explains the reference's draws; without one, compare with the draws themselves."""
        if isinstance(case.first, Draws):
            again = _known(case, is_joint=case.first.filters.is_joint)
            assert again is not None, "the first input set was known"
            return attrs.evolve(again, trials=case.first.trials)
        if case.first is not None:
            return _unknown(case, [case.expected], trials=0, varies=case.first.is_observed)
        seen = _try_reference(case)
        for is_joint in (False, True):
            check = _known(case, is_joint=is_joint)
            if check is None:
                break
            calls = [case.expected, *seen]
            if self._explains(check, calls):
                return check
            if _is_seeded(calls) and self._explains(check, calls[:1]):
                return attrs.evolve(check, trials=0)  # a deterministic reference: only single calls can be judged
        trials = int(_setting(case.config, "sampling_validation_trials", TRIALS))
        calls = [case.expected, *seen]
        return _unknown(case, calls, trials, varies=len(calls) > 1 and not _is_seeded(calls))

    def _explains(self, check: Draws, calls: Sequence[Tensors]) -> bool:
        is_allowed = not any(check.compare(outputs, outputs).problems for outputs in calls)
        return is_allowed and not self.judge_together([Observation(check, outputs) for outputs in calls]).problems

    def judge_together(self, observations: Sequence[Observation]) -> Verdict:
        """Judge the draws of many calls."""
        known = [o for o in observations if isinstance(o.check, Draws)]
        if not known:
            return _judge_unknown(observations)
        threshold = max(o.check.tvd_threshold for o in known if isinstance(o.check, Draws))
        pooled, distances = PooledDraws(), RowDistances(threshold)
        checks = list(dict.fromkeys(o.check for o in known))
        for check in checks:
            assert isinstance(check, Draws)
            tokens = torch.cat([check.tokens(o.outputs) for o in known if o.check is check], dim=1)
            budget = _MAX_TOKENS[tokens.device.type] // len(checks)
            check.gather(tokens, budget, pooled, distances)
        found = [f"{problem} ({pooled.draws} draws)" for problem in pooled.problems()]
        problems = [*found, *distances.problems()]
        text = "; ".join(problems[:_MAX_PROBLEMS])
        more = f"; and {len(problems) - _MAX_PROBLEMS} more" if len(problems) > _MAX_PROBLEMS else ""
        return Verdict(
            problems=(text + more,) if problems else (),
            extra={"sampling": {"draws": pooled.draws} | distances.to_extra()},
        )


@attrs.frozen(eq=False, kw_only=True)
class Draws(Check):
    """Tokens that are drawn from rows of known probabilities."""

    name: str
    """The output that holds them."""
    source: Rows
    filters: Filters
    cuts: Cuts
    trials: int = attrs.field()
    samples: int
    tvd_threshold: float

    @property
    def most_trials(self) -> int:
        """The number of calls that make enough draws."""
        return max(self.trials, math.ceil(self.samples / max(len(self.source.values), 1))) if self.trials else 0

    def to_extra(self) -> dict[str, Any]:
        """The fields of a trace."""
        kinds = {name: getattr(self.filters, name) for name in ("top_k", "top_p", "min_p")}
        filters = [name for name, value in kinds.items() if value is not None]
        return {self.name: {"filters": filters, "is_joint": self.filters.is_joint, "tvd_threshold": self.tvd_threshold}}

    def tokens(self, outputs: Tensors) -> torch.Tensor:
        """The draws of one call, ``[rows, draws]``."""
        return outputs[self.name].long().reshape(len(self.source.values), -1)

    def compare(self, found: Tensors, expected: Tensors) -> Verdict:
        """Whether all tokens may be drawn; waits for the device once."""
        del expected
        tokens, vocabulary = self.tokens(found), self.source.values.shape[1]
        if not tokens.numel():
            return Verdict((Comparison(self.name, 0, 0),))
        inside = (tokens >= 0) & (tokens < vocabulary)
        levels = self.source.levels(slice(None), torch.where(inside, tokens, 0))
        wrong = ~(inside & (levels >= self.cuts.least[:, None]))
        first = wrong.any(dim=1).int().argmax()
        count, row = torch.stack([wrong.sum(), first]).tolist()
        comparison = Comparison(self.name, tokens.numel(), count)
        return Verdict((comparison,), (self._explain(tokens, wrong, count, row),) if count else ())

    def _explain(self, tokens: torch.Tensor, wrong: torch.Tensor, count: int, row: int) -> str:
        token = int(tokens[row][wrong[row]][0])
        text = f"output {self.name!r}: {count} of {tokens.numel()} tokens are outside the allowed set; in row {row}"
        if not 0 <= token < self.source.values.shape[1]:
            return f"{text} token {token}, which does not exist"
        what = "logit" if self.source.is_logits else "probability"
        level = float(self.source.levels(slice(row, row + 1))[0, token])
        return f"{text} token {token} of {what} {level:.6g}, where {float(self.cuts.least[row]):.6g} is the least"

    def gather(self, tokens: torch.Tensor, budget: int, pooled: PooledDraws, distances: RowDistances) -> None:
        """Add the draws of some randomly chosen rows, ``[rows, draws]`` of all calls on these inputs, to the tests.

        `budget` limits the elements of rows that are looked at.
        """
        rows, vocabulary = self.source.values.shape
        most = min(rows, _MAX_ROWS, max(1, budget // vocabulary))
        chosen = torch.tensor(SECRET.sample(range(rows), most), device=tokens.device)
        for part in torch.split(chosen, max(1, _CHUNK // vocabulary)):
            rows_with_choice, weights = self._sure_weights(part)
            if len(weights):
                draws = tokens[rows_with_choice].clamp(0, vocabulary - 1)
                self._add(rows_with_choice, weights, draws, pooled, distances)

    def _sure_weights(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Those of some rows in which several tokens are allowed for certain, and the probabilities of these tokens."""
        levels = self.source.levels(rows)
        weights = self.source.weights(levels).masked_fill(levels < self.cuts.sure[rows, None], 0.0)
        has_choice = (weights > 0).sum(dim=1) > 1
        weights = weights[has_choice]
        return rows[has_choice], weights / weights.sum(dim=1, keepdim=True)

    def _add(
        self,
        rows: torch.Tensor,
        weights: torch.Tensor,
        draws: torch.Tensor,
        pooled: PooledDraws,
        distances: RowDistances,
    ) -> None:
        own, is_sure = draw(weights, draws.shape[1]), weights.gather(1, draws) > 0
        pooled.add(weights, draws, own, is_sure)
        if draws.shape[1] < _MIN_TRIES:
            return
        tables = [table.cpu() for table in (weights, draws, own, is_sure)]
        for row, p, found, ours, is_tested in zip(rows.tolist(), *tables, strict=True):
            distances.add(f"output {self.name!r}: row {row}", p, found[is_tested], ours[is_tested])


@attrs.frozen(eq=False, kw_only=True)
class UnknownDraws(Check):
    """Random integers whose distribution is known by the draws of the reference alone."""

    bounds: tuple[int, int] | None
    """The smallest and the largest allowed value; None if unknown."""
    seen: Tensors
    """``[calls, elements]`` by output: the draws of the reference; empty if it always draws the same."""
    trials: int = attrs.field()

    @property
    def is_observed(self) -> bool:
        """Whether the outputs of calls are kept, to be judged together."""
        return bool(self.seen)

    def to_extra(self) -> dict[str, Any]:
        """The fields of a trace."""
        return {name: {"compared_with_calls": len(calls)} for name, calls in self.seen.items()}

    def compare(self, found: Tensors, expected: Tensors) -> Verdict:
        """Whether everything is within the bounds."""
        comparisons, problems = [], []
        for name in expected:
            wrong = 0
            if self.bounds is not None and found[name].numel():
                low, high = self.bounds
                wrong = int(((found[name] < low) | (found[name] > high)).sum())
            comparisons.append(Comparison(name, found[name].numel(), wrong))
            if wrong:
                problems.append(f"output {name!r}: {wrong} of {found[name].numel()} are not within {self.bounds}")
        return Verdict(tuple(comparisons), tuple(problems))


def _unknown(case: Case, calls: Sequence[Tensors], trials: int, *, varies: bool) -> UnknownDraws:
    """The check of an input set by the calls of the reference on it."""
    tables = {name: torch.stack([call[name].flatten().long().cpu() for call in calls]) for name in case.expected}
    return UnknownDraws(bounds=_bounds(case, calls), seen=tables if varies else {}, trials=trials)


def _bounds(case: Case, calls: Sequence[Tensors]) -> tuple[int, int] | None:
    """From 0 to the vocabulary's end, or as far as the reference goes beyond; None without a vocabulary."""
    tensors = [value for value in case.inputs.values() if isinstance(value, torch.Tensor) and value.dim() > 1]
    sizes = [tensor.shape[-1] for tensor in tensors if tensor.dtype.is_floating_point]
    values = [t for call in calls for t in call.values() if t.numel()]
    if not sizes or not values:
        return None
    return min(0, *(int(t.min()) for t in values)), max(max(sizes) - 1, *(int(t.max()) for t in values))


def _judge_unknown(observations: Sequence[Observation]) -> Verdict:
    """Compare draws with the reference's: many on one input set as samples, single ones of many sets as pairs."""
    problems: list[str] = []
    pairs: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = {}
    for check in dict.fromkeys(o.check for o in observations):
        calls = [o.outputs for o in observations if o.check is check]
        for name, seen in check.seen.items() if isinstance(check, UnknownDraws) else ():
            found = torch.stack([call[name].flatten().long().cpu() for call in calls])
            if len(seen) > 1:
                problems += filter(None, [problem_of_samples(name, found, seen)])
            else:
                pairs.setdefault(name, []).append((found[0], seen[0]))
    for name, some in pairs.items():
        draws, expected = (torch.cat(parts) for parts in zip(*some, strict=True))
        problems += problems_of_pairs(f"draws of output {name!r}", draws, expected)
    return Verdict(problems=tuple(problems), extra={"sampling": {"calls": len(observations)}})


def _known(case: Case, *, is_joint: bool) -> Draws | None:
    """The check by the probabilities in the inputs, if they are there; joint: top-p is meant of the whole row."""
    found = find_rows(case)
    if found is None:
        return None
    source, filters = found[0], attrs.evolve(found[1], is_joint=is_joint)
    return Draws(
        name=next(iter(case.expected)),
        source=source,
        filters=filters,
        cuts=cut(source, filters),
        trials=int(_setting(case.config, "sampling_validation_trials", TRIALS)),
        samples=int(_setting(case.config, "sampling_validation_samples", SAMPLES)),
        tvd_threshold=float(_setting(case.config, "sampling_tvd_threshold", TVD_THRESHOLD)),
    )


def _setting(config: ResolvedEvalConfig, name: str, default: float) -> float:
    value: object = config.extra.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError(f"extra.{name} must be a number greater than 0, got {value!r}")
    return value


def _is_seeded(calls: Sequence[Tensors]) -> bool:
    """Whether a reference draws the same again and again."""
    return len(calls) > 1 and all(
        torch.equal(a, b) for call in calls[1:] for a, b in zip(calls[0].values(), call.values(), strict=True)
    )


def _try_reference(case: Case) -> list[Mapping[str, torch.Tensor]]:
    """Further draws of the reference, as many as a solution has to make if there is time."""
    seen: list[Mapping[str, torch.Tensor]] = []
    begin, most = time.monotonic(), int(_setting(case.config, "sampling_validation_trials", TRIALS))
    while case.again is not None and len(seen) < most:
        if len(seen) >= min(_MIN_TRIES, most) and time.monotonic() - begin > _TRYING_SECONDS:
            break
        seen.append(case.again())
    return seen


# -- allowed sets of tokens --------------------------------------------------------------------

# Every filter keeps the most likely tokens, so a row is cut at one level. Where the level itself is a matter of
# rounding (a cumulative sum next to top-p) or of taste (equal probabilities at the top-k boundary), tokens lie between
# two levels: a sampler may draw them or not.

_TIE = 2.0**-20
"""Levels nearer to each other than this, relative, count as equal."""
_LOGIT_TIE = 1e-5
"""For logits, relative to themselves or to 1: an exponential and a division by a temperature are rounded."""
_SUM_ERROR = 2e-5
"""The error of a cumulative sum over a vocabulary in float32."""
_HEAD = 2048
"""The tokens to look at first: sorting all takes ten times as long, and is seldom needed."""
_MIN_PROBABILITY = 2.0**-150


@attrs.frozen(eq=False)
class Rows:
    """The probabilities or logits that tokens are drawn from."""

    values: torch.Tensor
    """``[rows, vocabulary]``"""
    is_logits: bool
    temperature: torch.Tensor | None = None
    """``[rows]``, float64"""

    def levels(self, rows: slice | torch.Tensor, tokens: torch.Tensor | None = None) -> torch.Tensor:
        """Numbers in float64 by which tokens are ordered; of all, or of those given, ``[rows, n]``."""
        values = self.values[rows]
        levels = (values if tokens is None else values.gather(1, tokens)).double()
        return levels if self.temperature is None else levels / self.temperature[rows, None]

    def slack(self, levels: torch.Tensor) -> torch.Tensor:
        """Below which difference levels count as equal."""
        return levels.abs().clamp(min=1.0) * _LOGIT_TIE if self.is_logits else levels.abs() * _TIE

    def weights(self, levels: torch.Tensor, total: torch.Tensor | None = None) -> torch.Tensor:
        """Probabilities by levels; of some tokens only, with the logarithm of the sum over all."""
        if not self.is_logits:
            return levels
        return (levels - (levels.logsumexp(-1, keepdim=True) if total is None else total)).exp()


@attrs.frozen(eq=False)
class Filters:
    """The filters of the rows; None where there is no such filter."""

    top_k: torch.Tensor | None = None
    """``[rows]``; values outside of 0 to the vocabulary size disable the filter."""
    top_p: torch.Tensor | None = None
    """``[rows]``, float64; 1 filters nothing, 0 leaves the most likely token."""
    min_p: torch.Tensor | None = None
    """``[rows]``, float64, relative to the most likely token."""
    is_joint: bool = False
    """Top-p of the whole row, instead of the row after top-k."""

    def of(self, rows: slice) -> Filters:
        """The filters of some rows."""
        top_k, top_p, min_p = (None if v is None else v[rows] for v in (self.top_k, self.top_p, self.min_p))
        return Filters(top_k, top_p, min_p, self.is_joint)


@attrs.frozen(eq=False)
class Cuts:
    """The levels at which rows are cut; both ``[rows]`` in float64."""

    sure: torch.Tensor
    """Tokens from this level on are kept for certain."""
    least: torch.Tensor
    """No token below this level is."""


def cut(rows: Rows, filters: Filters) -> Cuts:
    """Find the levels."""
    step = max(1, _CHUNK // max(rows.values.shape[1], 1))
    chunks = [slice(start, start + step) for start in range(0, len(rows.values), step)]
    parts = [_cut_chunk(rows, filters, chunk) for chunk in chunks]
    return Cuts(torch.cat([part.sure for part in parts]), torch.cat([part.least for part in parts]))


def _cut_chunk(rows: Rows, filters: Filters, chunk: slice) -> Cuts:
    levels = rows.levels(chunk)
    floor = torch.full_like(levels[:, 0], torch.finfo(torch.float64).min if rows.is_logits else _MIN_PROBABILITY)
    if filters.top_k is None and filters.top_p is None and filters.min_p is None:
        return Cuts(floor, floor)
    total = levels.logsumexp(-1, keepdim=True) if rows.is_logits else levels[:, :1]
    own = filters.of(chunk)
    count = min(_HEAD, levels.shape[1])
    while True:
        best = levels.topk(count, dim=1).values
        fewest, most = _counts(rows.weights(best, total), own, levels.shape[1])
        last = best.gather(1, (most - 1).clamp(max=count - 1)[:, None])
        is_enough = bool((best[:, -1:] < last - rows.slack(last)).all())  # neither kept nor equal to what is
        if is_enough or count == levels.shape[1]:
            break
        count = levels.shape[1]
    return _levels(rows, best, fewest.clamp(max=count), most.clamp(max=count), floor)


def _counts(weights: torch.Tensor, filters: Filters, vocabulary: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The number of the most likely tokens that are kept: at least, and at most."""
    sums = weights.cumsum(dim=1)
    before, kept = sums - weights, torch.full_like(weights[:, 0], vocabulary).long()
    whole = torch.ones_like(weights[:, 0])
    if filters.top_k is not None:
        k = filters.top_k
        kept = torch.where((k > 0) & (k < vocabulary), k, kept)
        if not filters.is_joint:
            ends = (kept - 1).clamp(max=weights.shape[1] - 1)
            whole = torch.where(kept < vocabulary, sums.gather(1, ends[:, None])[:, 0], whole)
    fewest = most = kept
    if filters.top_p is not None:
        low, high = (_nucleus(before, filters.top_p, whole, error) for error in (-_SUM_ERROR, _SUM_ERROR))
        is_cut = filters.top_p < 1
        fewest = torch.where(is_cut, torch.minimum(fewest, low), fewest)
        most = torch.where(is_cut, torch.minimum(most, high), most)
    if filters.min_p is not None:
        least = weights[:, :1] * filters.min_p[:, None]
        fewest = torch.minimum(fewest, (weights >= least * (1 + _LOGIT_TIE)).sum(dim=1).clamp(min=1))
        most = torch.minimum(most, (weights >= least * (1 - _LOGIT_TIE)).sum(dim=1))
    return fewest, most


def _nucleus(before: torch.Tensor, top_p: torch.Tensor, whole: torch.Tensor, error: float) -> torch.Tensor:
    """The tokens before which the sum does not exceed top-p: the one that crosses it is kept."""
    reach = torch.where(top_p > 0, (top_p + error) * whole, -1.0)
    return (before <= reach[:, None]).sum(dim=1).clamp(min=1)


def _levels(rows: Rows, best: torch.Tensor, fewest: torch.Tensor, most: torch.Tensor, floor: torch.Tensor) -> Cuts:
    """Levels from counts: where a group of equals is cut in two, all of them lie between the levels."""
    last_sure, last = (best.gather(1, counts[:, None] - 1)[:, 0] for counts in (fewest, most))
    least = torch.maximum(last - rows.slack(last), floor)
    following = best.gather(1, fewest.clamp(max=best.shape[1] - 1)[:, None])[:, 0]
    is_split = (fewest < best.shape[1]) & (following >= last_sure - rows.slack(last_sure)) & (following >= least)
    above = (last_sure + rows.slack(last_sure)).nextafter(torch.full_like(last_sure, torch.inf))
    return Cuts(torch.maximum(torch.where(is_split, above, last_sure), least), least)


_IGNORED = re.compile(r".*(seed|offset|philox|generator|deterministic).*")
_ROLES = {"top_k": r"top_?ks?(_arr|_values)?", "top_p": r"top_?ps?(_arr|_values)?", "min_p": r"min_?ps?(_arr|_values)?",
          "temperature": r"temperatures?|temp"}  # fmt: skip


def _roles(case: Case) -> dict[str, str] | None:
    """The inputs by role; None if the role of one is unknown."""
    found: dict[str, str] = {}
    for name, value in case.inputs.items():
        role = next((role for role, pattern in _ROLES.items() if re.fullmatch(pattern, name)), None)
        if role is None and isinstance(value, torch.Tensor) and value.dim() == 2 and value.dtype.is_floating_point:
            role = "rows"
        if role in found or (role is None and value is not None and not _IGNORED.fullmatch(name)):
            return None
        if role is not None and value is not None:
            found[role] = name
    return found


def find_rows(case: Case) -> tuple[Rows, Filters] | None:
    """The rows of probabilities or logits, and their filters; None if inputs are neither, or do not fit."""
    roles = _roles(case)
    if roles is None or "rows" not in roles or len(case.expected) != 1:
        return None
    rows, (samples,) = _tensor(case.inputs[roles["rows"]]), case.expected.values()
    others = {role: case.inputs[name] for role, name in roles.items() if role != "rows"}
    fit = all(not isinstance(value, torch.Tensor) or value.numel() in {1, len(rows)} for value in others.values())
    if not fit or samples.dim() not in {1, 2} or len(samples) != len(rows) or not len(rows):
        return None
    per_row = {role: _per_row(value, rows) for role, value in others.items()}
    top_k = per_row.get("top_k")
    filters = Filters(None if top_k is None else top_k.long(), per_row.get("top_p"), per_row.get("min_p"))
    return Rows(rows, not _are_probabilities(roles["rows"], rows), per_row.get("temperature")), filters


def _are_probabilities(name: str, rows: torch.Tensor) -> bool:
    if "prob" in name or "logit" in name:
        return "prob" in name
    return bool((rows >= 0).all()) and bool((rows.sum(dim=1, dtype=torch.float64) - 1).abs().max() < 1e-2)


def _tensor(value: Value) -> torch.Tensor:
    assert isinstance(value, torch.Tensor)
    return value


def _per_row(value: Value, rows: torch.Tensor) -> torch.Tensor:
    """One number per row in float64, from a scalar, one for all, or one for each."""
    numbers = value if isinstance(value, torch.Tensor) else torch.tensor(value, device=rows.device)
    return numbers.double().reshape(-1).expand(len(rows))


# -- statistical tests of draws ----------------------------------------------------------------

# Timed calls have inputs of their own, so there are few draws from each distribution. Where the distribution is known,
# the judge draws from it as well, once for each draw of the solution; where it is not, the reference does. Then
#
# - the mean log-probability, whose expectation is known, shows wrong temperatures and stale distributions;
# - in pairs of draws from one distribution neither is larger more often than the other, and neither has a bit of the
#   token id more often, which shows samplers that read a part of the vocabulary or skip every other token or tile;
# - rows with many draws are compared one by one, by the total variation distance or by chi-square.
#
# Source: Bernstein's, Hoeffding's and McDiarmid's inequalities.

FALSE_ALARM = 1e-10
"""Probability of a false alarm of each test. Small counts have heavier tails than chi-square, so it is about 1e-7."""
_LOG_ALARM = -math.log(FALSE_ALARM)
_SIGMAS = 6.0
"""Quantile of the normal distribution whose tail is about as small."""
_MIN_LOG_VARIANCE = 1e-8
"""Variance of logarithms below which they differ by rounding only."""
_MAX_ELEMENTS = 256
_MIN_COUNT = 4.0
"""Values that are to be expected more seldom in the smaller sample count as one."""


def draw(weights: torch.Tensor, count: int) -> torch.Tensor:
    """Draw from rows of weights ``[rows, vocabulary]``, none of which is all zero; ``[rows, count]``."""
    generator = torch.Generator(weights.device).manual_seed(SECRET.getrandbits(62))
    return torch.multinomial(weights, count, replacement=True, generator=generator)


@attrs.define
class PooledDraws:
    """The tests over all rows; draws are added call by call."""

    draws: int = 0
    _excess: float = 0.0
    _variance: float = 0.0
    _pairs: list[tuple[torch.Tensor, torch.Tensor]] = attrs.field(factory=list)

    def add(self, weights: torch.Tensor, tokens: torch.Tensor, own: torch.Tensor, counts: torch.Tensor) -> None:
        """Add draws of independent rows.

        Shapes:
            weights: ``[rows, vocabulary]``, float64, the probabilities; rows sum to 1.
            tokens, own: ``[rows, draws]``, int64, the draws of the solution and of the judge.
            counts: ``[rows, draws]``, whether a draw is to be tested.
        """
        log = weights.clamp(min=1e-300).log()
        mean = (weights * log).sum(dim=1, keepdim=True)
        variance = (weights * (log - mean).square()).sum(dim=1, keepdim=True)
        is_telling = counts & (variance > _MIN_LOG_VARIANCE)
        sums = torch.stack([((log.gather(1, tokens) - mean) * is_telling).sum(), (variance * is_telling).sum()])
        excess, spread = sums.tolist()
        self._excess += excess
        self._variance += spread
        self._pairs.append((tokens[counts].cpu(), own[counts].cpu()))
        self.draws += len(self._pairs[-1][0])

    def problems(self) -> list[str]:
        """The problems, a line each."""
        if not self.draws:
            return []
        found, own = (torch.cat(parts) for parts in zip(*self._pairs, strict=True))
        return [*self._temperature(), *problems_of_pairs("the draws", found, own)]

    def _temperature(self) -> list[str]:
        sigmas = self._excess / math.sqrt(self._variance) if self._variance > 0 else 0.0
        if abs(sigmas) < _SIGMAS:
            return []
        kind = "too often" if sigmas > 0 else "too seldom"
        mean = self._excess / self.draws
        off = f"the mean log-probability is off by {mean:+.3f}, {abs(sigmas):.0f} standard errors"
        return [f"likely tokens are drawn {kind}: {off}"]


@attrs.define
class RowDistances:
    """The total variation distances of rows with many draws, beside those of the judge's own draws.

    The threshold is the distance that is allowed beyond that of the judge's draws.
    """

    threshold: float
    _problems: list[str] = attrs.field(factory=list)
    _distances: tuple[float, float] = (0.0, 0.0)
    _draws: int = 0

    def add(self, label: str, probabilities: torch.Tensor, found: torch.Tensor, own: torch.Tensor) -> None:
        """Add the draws of one row, ``[draws]``, of the solution and of the judge, from ``[tokens]`` probabilities."""
        count = len(found)
        if not count:
            return
        distance, usual = (_distance(draws, probabilities) for draws in (found, own))
        self._draws += count
        self._distances = (self._distances[0] + distance * count, self._distances[1] + usual * count)
        if distance - usual > self._allowed(count):
            self._problems.append(
                f"{label} is drawn from another distribution: its total variation distance over {count} "
                f"draws is {distance:.3f}, of a right sampler {usual:.3f}, at most "
                f"{self._allowed(count):.3f} more is allowed"
            )

    def _allowed(self, draws: int) -> float:
        return max(self.threshold, math.sqrt(_LOG_ALARM / draws))

    def problems(self) -> list[str]:
        """The problems: over all rows first, then in single ones."""
        if not self._draws:
            return []
        found, usual = (distance / self._draws for distance in self._distances)
        if found - usual <= self._allowed(self._draws):
            return self._problems
        text = f"the total variation distance is {found:.3f} on average, of a right sampler {usual:.3f}"
        return [text, *self._problems]

    def to_extra(self) -> dict[str, Any]:
        """The fields of a trace; nothing where no row had enough draws."""
        names = ("total_variation", "total_variation_of_a_right_sampler") if self._draws else ()
        return {name: round(sum_ / self._draws, 4) for name, sum_ in zip(names, self._distances, strict=False)}


def _distance(draws: torch.Tensor, probabilities: torch.Tensor) -> float:
    shares = torch.bincount(draws, minlength=len(probabilities)).double() / len(draws)
    return float((shares - probabilities).abs().sum()) / 2


def problem_of_samples(name: str, found: torch.Tensor, reference: torch.Tensor) -> str:
    """Compare draws on one input set with those of the reference; empty if they may have the same distribution.

    Shapes:
        found, reference: ``[calls, elements]``, int64; their numbers of calls may differ.
    """
    step = max(1, -(-reference.shape[1] // _MAX_ELEMENTS))
    parts = [_homogeneity(found[:, i], reference[:, i]) for i in range(0, reference.shape[1], step)]
    total, freedom = sum(part[0] for part in parts), sum(part[1] for part in parts)
    if not freedom or _chi_square_tail(total, freedom) >= FALSE_ALARM:
        return ""
    return (
        f"output {name!r} is distributed otherwise than the reference's over {len(found)} and {len(reference)} calls: "
        f"chi-square is {total:.0f} with {freedom} degrees of freedom"
    )


def _homogeneity(found: torch.Tensor, reference: torch.Tensor) -> tuple[float, int]:
    """Chi-square of two samples of integers, and its degrees of freedom."""
    values, codes = torch.cat([found, reference]).unique(return_inverse=True)  # type: ignore[no-untyped-call]
    tables = [
        torch.bincount(part, minlength=len(values)).double() for part in (codes[: len(found)], codes[len(found) :])
    ]
    least = _MIN_COUNT * len(codes) / max(min(len(found), len(reference)), 1)
    is_frequent = tables[0] + tables[1] >= least
    a, b = (torch.cat([table[is_frequent], table[~is_frequent].sum().reshape(1)]) for table in tables)
    is_there = a + b >= least
    a, b = a[is_there], b[is_there]
    if len(a) < 2:
        return 0.0, 0
    ratio = (b.sum() / a.sum()).sqrt()
    return float(((a * ratio - b / ratio).square() / (a + b)).sum()), len(a) - 1


def _chi_square_tail(statistic: float, freedom: int) -> float:
    """The probability that a right sampler exceeds a value."""
    half = torch.tensor([freedom / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def problems_of_pairs(what: str, found: torch.Tensor, expected: torch.Tensor) -> list[str]:
    """Compare single draws from many distributions, ``[pairs]``, with draws of a right sampler from the same ones.

    A right sampler is the larger in half of the pairs that differ, and has a bit alone in half of those that differ
    in it.
    """
    problems = []
    if _is_uneven(found > expected, found < expected):
        side = "higher" if int((found > expected).sum()) * 2 > int((found != expected).sum()) else "lower"
        problems.append(f"{what} have {side} numbers than those of a right sampler over {len(found)} pairs")
    for bit in range(int(torch.maximum(found, expected).max()).bit_length()):
        a, b = ((tokens >> bit) & 1 for tokens in (found, expected))
        if _is_uneven(a > b, a < b):
            problems.append(f"{what} have bit {bit} set too often or too seldom over {len(found)} pairs")
    return problems


def _is_uneven(more: torch.Tensor, less: torch.Tensor) -> bool:
    """Whether two counts that should be alike differ by more than chance explains (Hoeffding's inequality)."""
    a, b = int(more.sum()), int(less.sum())
    return abs(a - b) > math.sqrt(2 * (a + b) * _LOG_ALARM)
