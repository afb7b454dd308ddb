"""Evaluator of sampling. Each token must be an allowed one, and many together must follow the reference.

The allowed set and the probabilities are computed from the inputs: probabilities or logits, cut by
top-k and then by top-p. Whether the reference does the same is tested on its own draws.

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

from ..checking.comparison import Comparison
from ..config.model import ResolvedEvalConfig
from ..inputs.generation import Value
from ..secure_random import SECRET
from .protocol import BuiltIn, Case, Check, Observation, Tensors, Verdict

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
_REMEDY = "write an evaluator for it (see the page 'Add an evaluator') and name it in the settings"


class Sampling(BuiltIn):
    """The allowed set for each token, distances between distributions for many."""

    name = "sampling"
    is_random = True

    def check(self, case: Case) -> Draws:
        """Make the check, and try it on the reference; `ValueError` if the inputs do not explain its draws."""
        check = _draws(case)
        most = check.trials
        if isinstance(case.first, Draws):
            check, most = attrs.evolve(check, trials=case.first.trials), _MIN_TRIES
            if case.again is None:  # a timed call
                return check
        calls = [case.expected, *_try_reference(case, most)]
        if self._explains(check, calls):
            return check
        if _is_seeded(calls) and self._explains(check, calls[:1]):
            return attrs.evolve(check, trials=0)  # a deterministic reference: only single calls can be judged
        raise ValueError(f"the inputs of {case.definition.name!r} do not explain the draws of its reference; {_REMEDY}")

    def _explains(self, check: Draws, calls: Sequence[Tensors]) -> bool:
        is_allowed = not any(check.compare(outputs, outputs).problems for outputs in calls)
        return is_allowed and not self.judge_together([Observation(check, outputs) for outputs in calls]).problems

    def judge_together(self, observations: Sequence[Observation]) -> Verdict:
        """Judge the draws of many calls."""
        calls: dict[Draws, list[Tensors]] = {}
        for each in observations:
            assert isinstance(each.check, Draws), "all checks of this evaluator are"
            calls.setdefault(each.check, []).append(each.outputs)
        tests = DrawTests(max(check.tvd_threshold for check in calls))
        for check, outputs in calls.items():
            tokens = torch.cat([check.tokens(each) for each in outputs], dim=1)
            check.test(tokens, _MAX_TOKENS[tokens.device.type] // len(calls), tests)
        problems = tests.problems()
        text = "; ".join(problems[:_MAX_PROBLEMS])
        more = f"; and {len(problems) - _MAX_PROBLEMS} more" if len(problems) > _MAX_PROBLEMS else ""
        return Verdict(problems=(text + more,) if problems else (), extra={"sampling": tests.to_extra()})


@attrs.frozen(eq=False, kw_only=True)
class Draws(Check):
    """Tokens that are drawn from rows of known probabilities."""

    name: str
    """The output that holds them."""
    rows: Rows
    filters: tuple[str, ...]
    cuts: Cuts
    trials: int = attrs.field()
    samples: int
    tvd_threshold: float

    @property
    def most_trials(self) -> int:
        """The number of calls that make enough draws."""
        return max(self.trials, math.ceil(self.samples / len(self.rows.values))) if self.trials else 0

    def to_extra(self) -> dict[str, Any]:
        """The fields of a trace."""
        return {self.name: {"filters": list(self.filters), "tvd_threshold": self.tvd_threshold}}

    def tokens(self, outputs: Tensors) -> torch.Tensor:
        """The draws of one call, ``[rows, draws]``."""
        return outputs[self.name].long().reshape(len(self.rows.values), -1)

    def compare(self, found: Tensors, expected: Tensors) -> Verdict:
        """Whether all tokens may be drawn; waits for the device once."""
        del expected
        tokens, vocabulary = self.tokens(found), self.rows.values.shape[1]
        if not tokens.numel():
            return Verdict((Comparison(self.name, 0, 0),))
        inside = (tokens >= 0) & (tokens < vocabulary)
        chosen = self.rows.values.gather(1, torch.where(inside, tokens, 0)).double()
        wrong = ~(inside & (chosen >= self.cuts.least[:, None]))
        first = wrong.any(dim=1).int().argmax()
        count, row = torch.stack([wrong.sum(), first]).tolist()
        comparison = Comparison(self.name, tokens.numel(), count)
        return Verdict((comparison,), (self._explain(tokens, wrong, count, row),) if count else ())

    def _explain(self, tokens: torch.Tensor, wrong: torch.Tensor, count: int, row: int) -> str:
        token = int(tokens[row][wrong[row]][0])
        text = f"output {self.name!r}: {count} of {tokens.numel()} tokens are outside the allowed set; in row {row}"
        if not 0 <= token < self.rows.values.shape[1]:
            return f"{text} token {token}, which does not exist"
        found, least = float(self.rows.values[row, token]), float(self.cuts.least[row])
        return f"{text} token {token} of probability {found:.6g}, where {least:.6g} is the least"

    def test(self, tokens: torch.Tensor, budget: int, tests: DrawTests) -> None:
        """Add the draws of some randomly chosen rows, ``[rows, draws]`` of all calls on these inputs, to the tests.

        `budget` limits the elements of rows that are looked at.
        """
        rows, vocabulary = self.rows.values.shape
        most = min(rows, _MAX_ROWS, max(1, budget // vocabulary))
        chosen = torch.tensor(SECRET.sample(range(rows), most), device=tokens.device)
        for part in torch.split(chosen, max(1, _CHUNK // vocabulary)):
            rows_with_choice, weights = self._sure_weights(part)
            if len(weights):
                labels = [f"output {self.name!r}: row {row}" for row in rows_with_choice.tolist()]
                tests.add(labels, weights, tokens[rows_with_choice].clamp(0, vocabulary - 1))

    def _sure_weights(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Those of some rows in which several tokens are allowed for certain, and the probabilities of these tokens."""
        weights = self.rows.values[rows].double()
        weights = weights.masked_fill(weights < self.cuts.sure[rows, None], 0.0)
        has_choice = (weights > 0).sum(dim=1) > 1
        weights = weights[has_choice]
        return rows[has_choice], weights / weights.sum(dim=1, keepdim=True)


def _draws(case: Case) -> Draws:
    rows, filters = find_rows(case)
    return Draws(
        name=next(iter(case.expected)),
        rows=rows,
        filters=tuple(filters),
        cuts=cut(rows, **filters),
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
    return len(calls) > 1 and all(
        torch.equal(a, b) for call in calls[1:] for a, b in zip(calls[0].values(), call.values(), strict=True)
    )


def _try_reference(case: Case, most: int) -> list[Mapping[str, torch.Tensor]]:
    """Further draws of the reference, `most` of them if there is time."""
    seen: list[Mapping[str, torch.Tensor]] = []
    begin = time.monotonic()
    while case.again is not None and len(seen) < most:
        if len(seen) >= min(_MIN_TRIES, most) and time.monotonic() - begin > _TRYING_SECONDS:
            break
        seen.append(case.again())
    return seen


# -- allowed sets of tokens --------------------------------------------------------------------

# Every filter keeps the most likely tokens, so a row is cut at one probability. Where that is a matter of rounding (a
# cumulative sum next to top-p) or of taste (equal probabilities at the top-k boundary), tokens lie between two cuts: a
# sampler may draw them or not.

_TIE = 2.0**-20
"""Probabilities nearer to each other than this, relative, count as equal."""
_LOGIT_TIE = 1e-5
"""For those of logits, times the largest logit or 1: an exponential is rounded, and often a division before it."""
_SUM_ERROR = 2e-5
"""The error of a cumulative sum over a vocabulary in float32."""
_HEAD = 2048
"""The tokens to look at first: sorting all takes ten times as long, and is seldom needed."""
_MIN_PROBABILITY = 2.0**-150


@attrs.frozen(eq=False)
class Rows:
    """The probabilities that tokens are drawn from."""

    values: torch.Tensor
    """``[rows, vocabulary]``"""
    tie: torch.Tensor
    """``[rows]``, float64: the relative difference up to which two of them count as equal."""


@attrs.frozen(eq=False)
class Cuts:
    """The probabilities at which rows are cut; both ``[rows]`` in float64."""

    sure: torch.Tensor
    """Tokens of at least this probability are kept for certain."""
    least: torch.Tensor
    """No token below this one is."""


def cut(rows: Rows, top_k: torch.Tensor | None = None, top_p: torch.Tensor | None = None) -> Cuts:
    """Cut rows by top-k, and what that leaves by top-p.

    Shapes:
        top_k: ``[rows]``; values outside of 1 to the vocabulary size disable the filter.
        top_p: ``[rows]``; 1 filters nothing, 0 leaves the most likely token.
    """
    count, vocabulary = rows.values.shape
    floor = torch.full_like(rows.tie, _MIN_PROBABILITY)
    if top_k is None and top_p is None:
        return Cuts(floor, floor)
    k = torch.full_like(rows.tie, vocabulary) if top_k is None else top_k
    p = torch.ones_like(rows.tie) if top_p is None else top_p
    step = max(1, _CHUNK // max(vocabulary, 1))
    chunks = [slice(start, start + step) for start in range(0, count, step)]
    parts = [_cut_chunk(rows.values[chunk].double(), rows.tie[chunk], k[chunk].long(), p[chunk]) for chunk in chunks]
    return Cuts(torch.cat([part.sure for part in parts]), torch.cat([part.least for part in parts]))


def _cut_chunk(values: torch.Tensor, tie: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor) -> Cuts:
    count = min(_HEAD, values.shape[1])
    while True:
        best = values.topk(count, dim=1).values
        fewest, most = _counts(best, top_k, top_p, values.shape[1])
        last = best.gather(1, (most - 1).clamp(max=count - 1)[:, None])[:, 0]
        is_enough = bool((best[:, -1] < last * (1 - tie)).all())  # neither kept nor equal to what is
        if is_enough or count == values.shape[1]:
            return _between(best, tie, fewest.clamp(max=count), most.clamp(max=count))
        count = values.shape[1]


def _counts(
    best: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, vocabulary: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The number of the most likely tokens that are kept: at least, and at most."""
    sums = best.cumsum(dim=1)
    is_cut = (top_k > 0) & (top_k < vocabulary)
    kept = torch.where(is_cut, top_k, vocabulary)
    ends = (kept - 1).clamp(max=best.shape[1] - 1)
    whole = torch.where(is_cut, sums.gather(1, ends[:, None])[:, 0], 1.0)
    fewest, most = (
        torch.where(top_p < 1, torch.minimum(kept, _nucleus(sums - best, top_p, whole, error)), kept)
        for error in (-_SUM_ERROR, _SUM_ERROR)
    )
    return fewest, most


def _nucleus(before: torch.Tensor, top_p: torch.Tensor, whole: torch.Tensor, error: float) -> torch.Tensor:
    """The tokens before which the sum does not exceed top-p: the one that crosses it is kept."""
    reach = torch.where(top_p > 0, (top_p + error) * whole, -1.0)
    return (before <= reach[:, None]).sum(dim=1).clamp(min=1)


def _between(best: torch.Tensor, tie: torch.Tensor, fewest: torch.Tensor, most: torch.Tensor) -> Cuts:
    """Cuts from counts: where a group of equals is cut in two, all of them lie between the cuts."""
    last_sure, last = (best.gather(1, counts[:, None] - 1)[:, 0] for counts in (fewest, most))
    least = (last * (1 - tie)).clamp(min=_MIN_PROBABILITY)
    following = best.gather(1, fewest.clamp(max=best.shape[1] - 1)[:, None])[:, 0]
    is_split = (fewest < best.shape[1]) & (following >= last_sure * (1 - tie)) & (following >= least)
    above = (last_sure * (1 + tie)).nextafter(torch.full_like(last_sure, torch.inf))
    return Cuts(torch.maximum(torch.where(is_split, above, last_sure), least), least)


_IGNORED = re.compile(r".*(seed|offset|philox|generator|deterministic).*")
_FILTERS = {"top_k": r"top_?ks?(_arr|_values)?", "top_p": r"top_?ps?(_arr|_values)?"}


def _roles(case: Case) -> dict[str, str]:
    """The inputs by role: a filter, or ``rows``; `ValueError` if that of one is unknown, or two have the same."""
    found: dict[str, str] = {}
    for name, value in case.inputs.items():
        role = next((role for role, pattern in _FILTERS.items() if re.fullmatch(pattern, name)), None)
        if role is None and isinstance(value, torch.Tensor) and value.dim() == 2 and value.dtype.is_floating_point:
            role = "rows"
        if role in found or (role is None and value is not None and not _IGNORED.fullmatch(name)):
            raise ValueError(f"input {name!r} of {case.definition.name!r} is no known filter of tokens; {_REMEDY}")
        if role is not None and value is not None:
            found[role] = name
    return found


def find_rows(case: Case) -> tuple[Rows, dict[str, torch.Tensor]]:
    """The rows of probabilities, and a number of each filter for each; `ValueError` if inputs do not fit the output."""
    roles = _roles(case)
    source = roles.pop("rows", "")
    rows, filters = case.inputs.get(source), {role: case.inputs[name] for role, name in roles.items()}
    if not isinstance(rows, torch.Tensor) or not _fits(rows, filters, case.expected):
        raise ValueError(
            f"the draws of {case.definition.name!r} are not one or more for each row of an input; {_REMEDY}"
        )
    return _probabilities(source, rows), {name: _per_row(value, rows) for name, value in filters.items()}


def _fits(rows: torch.Tensor, filters: Mapping[str, Value], expected: Tensors) -> bool:
    samples = next(iter(expected.values()))
    has_samples = len(expected) == 1 and samples.dim() in {1, 2} and len(samples) == len(rows) > 0
    return has_samples and all(
        not isinstance(value, torch.Tensor) or value.numel() in {1, len(rows)} for value in filters.values()
    )


def _probabilities(name: str, rows: torch.Tensor) -> Rows:
    if _are_probabilities(name, rows):
        return Rows(rows, torch.full((len(rows),), _TIE, dtype=torch.float64, device=rows.device))
    largest = rows.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).abs().amax(dim=1)
    return Rows(torch.softmax(rows, dim=1, dtype=torch.float32), largest.double().clamp_(min=1.0) * _LOGIT_TIE)


def _are_probabilities(name: str, rows: torch.Tensor) -> bool:
    if "prob" in name or "logit" in name:
        return "prob" in name
    return bool((rows >= 0).all()) and bool((rows.sum(dim=1, dtype=torch.float64) - 1).abs().max() < 1e-2)


def _per_row(value: Value, rows: torch.Tensor) -> torch.Tensor:
    """One number per row in float64, from a scalar, one for all, or one for each."""
    numbers = value if isinstance(value, torch.Tensor) else torch.tensor(value, device=rows.device)
    return numbers.double().reshape(-1).expand(len(rows))


# -- statistical tests of draws ----------------------------------------------------------------

# Timed calls have inputs of their own, so there are few draws from each distribution. The judge draws as well, once for
# each draw of the solution. Then
#
# - the mean log-probability shows wrong temperatures, stale distributions and samplers that read a part of a row: the
#   product over all draws of p**t / (sum of p**(1 + t) over the row) has the expectation 1 for each t with a right
#   sampler, also where one token has nearly all of the probability and the number of standard errors says nothing;
# - in pairs of draws from one distribution neither is larger more often than the other, and neither has a bit of the
#   token id more often, which shows samplers that read a part of the vocabulary or skip every other token or tile;
# - rows with many draws are compared one by one, by the total variation distance.
#
# Source: Markov's, Hoeffding's and McDiarmid's inequalities.

FALSE_ALARM = 1e-10
"""Probability of a false alarm of each test."""
_LOG_ALARM = -math.log(FALSE_ALARM)
_TILTS = torch.tensor([sign * 2.0**-power for power in range(1, 8) for sign in (-1, 1)], dtype=torch.float64)
"""Powers of probabilities, -1/2, 1/2, -1/4 and so on: large ones show what few draws do, small ones what many do."""


@attrs.define
class DrawTests:
    """The tests of draws, which are added row by row.

    A row with many draws may be further from its distribution than those of the judge are, by `threshold`.
    """

    threshold: float
    _excess: float = 0.0
    _evidence: torch.Tensor = attrs.field(factory=lambda: torch.zeros_like(_TILTS))
    """Logarithms of products over all draws whose expectation is 1, by tilt."""
    _pairs: list[tuple[torch.Tensor, torch.Tensor]] = attrs.field(factory=list)
    _broken_rows: list[str] = attrs.field(factory=list)
    _distances: tuple[float, float] = (0.0, 0.0)
    """Sums over the draws of rows with many: of the solution, and of the judge."""
    _draws_of_rows: int = 0

    @property
    def draws(self) -> int:
        """The number of tested draws."""
        return sum(len(found) for found, _ in self._pairs)

    def add(self, labels: Sequence[str], weights: torch.Tensor, tokens: torch.Tensor) -> None:
        """Add draws of independent rows; tokens of weight 0 are not tested.

        Shapes:
            weights: ``[rows, vocabulary]``, float64, the probabilities; rows sum to 1.
            tokens: ``[rows, draws]``, int64.
        """
        own, counts = _drawn(weights, tokens.shape[1]), weights.gather(1, tokens) > 0
        root, draws, sums = weights.clamp(min=1e-300), counts.sum(dim=1).double(), list[torch.Tensor]()
        log = root.log()
        for _ in range(len(_TILTS) // 2):
            root = root.sqrt()
            sums += [(weights / root).sum(dim=1), (weights * root).sum(dim=1)]
        seen = (log.gather(1, tokens) * counts).sum()
        self._excess += float(seen - (weights * log).sum(dim=1) @ draws)
        self._evidence += _TILTS * float(seen) - (torch.stack(sums).log() @ draws).cpu()
        self._pairs.append((tokens[counts].cpu(), own[counts].cpu()))
        if tokens.shape[1] >= _MIN_TRIES:
            tables = [table.cpu() for table in (weights, tokens, own, counts)]
            for label, p, found, ours, is_tested in zip(labels, *tables, strict=True):
                self._add_row(label, p, found[is_tested], ours[is_tested])

    def _add_row(self, label: str, probabilities: torch.Tensor, found: torch.Tensor, own: torch.Tensor) -> None:
        count = len(found)
        if not count:
            return
        distance, usual = (_distance(draws, probabilities) for draws in (found, own))
        self._draws_of_rows += count
        self._distances = (self._distances[0] + distance * count, self._distances[1] + usual * count)
        if distance - usual > self._allowed(count):
            self._broken_rows.append(
                f"{label} is drawn from another distribution: its total variation distance over {count} "
                f"draws is {distance:.3f}, of a right sampler {usual:.3f}, at most "
                f"{self._allowed(count):.3f} more is allowed"
            )

    def _allowed(self, draws: int) -> float:
        return max(self.threshold, math.sqrt(_LOG_ALARM / draws))

    def problems(self) -> list[str]:
        """The problems, a line each: over all rows first, then in single ones."""
        if not self.draws:
            return []
        found, own = (torch.cat(parts) for parts in zip(*self._pairs, strict=True))
        pooled = [*self._temperature(), *_problems_of_pairs(found, own)]
        return [*(f"{problem} ({self.draws} draws)" for problem in pooled), *self._mean_distance(), *self._broken_rows]

    def _temperature(self) -> list[str]:
        strength = float(self._evidence.logsumexp(dim=0)) - math.log(len(_TILTS))
        if strength < _LOG_ALARM:
            return []
        kind = "too often" if self._excess > 0 else "too seldom"
        off = f"{self._excess / self.draws:+.3f}, which chance explains once in 1e{strength / math.log(10):.0f} times"
        return [f"likely tokens are drawn {kind}: the mean log-probability is off by {off}"]

    def _mean_distance(self) -> list[str]:
        if not self._draws_of_rows:
            return []
        found, usual = (distance / self._draws_of_rows for distance in self._distances)
        if found - usual <= self._allowed(self._draws_of_rows):
            return []
        return [f"the total variation distance is {found:.3f} on average, of a right sampler {usual:.3f}"]

    def to_extra(self) -> dict[str, Any]:
        """The fields of a trace; no distances where no row had enough draws."""
        names = ("total_variation", "total_variation_of_a_right_sampler") if self._draws_of_rows else ()
        means = (round(sum_ / self._draws_of_rows, 4) for sum_ in self._distances[: len(names)])
        return {"draws": self.draws, **dict(zip(names, means, strict=True))}


def _drawn(weights: torch.Tensor, count: int) -> torch.Tensor:
    """Draw from rows of weights ``[rows, vocabulary]``, none of which is all zero; ``[rows, count]``."""
    generator = torch.Generator(weights.device).manual_seed(SECRET.getrandbits(62))
    return torch.multinomial(weights, count, replacement=True, generator=generator)


def _distance(draws: torch.Tensor, probabilities: torch.Tensor) -> float:
    shares = torch.bincount(draws, minlength=len(probabilities)).double() / len(draws)
    return float((shares - probabilities).abs().sum()) / 2


def _problems_of_pairs(found: torch.Tensor, own: torch.Tensor) -> list[str]:
    """Compare draws, ``[pairs]``, with draws of the judge from the same distributions.

    A right sampler is the larger in half of the pairs that differ, and has a bit alone in half of those that differ
    in it.
    """
    problems = []
    if _is_uneven(found > own, found < own):
        side = "higher" if int((found > own).sum()) * 2 > int((found != own).sum()) else "lower"
        problems.append(f"the draws have {side} numbers than those of a right sampler over {len(found)} pairs")
    for bit in range(int(torch.maximum(found, own).max()).bit_length()):
        a, b = ((tokens >> bit) & 1 for tokens in (found, own))
        if _is_uneven(a > b, a < b):
            problems.append(f"the draws have bit {bit} set too often or too seldom over {len(found)} pairs")
    return problems


def _is_uneven(more: torch.Tensor, less: torch.Tensor) -> bool:
    """Whether two counts that should be alike differ by more than chance explains (Hoeffding's inequality)."""
    a, b = int(more.sum()), int(less.sum())
    return abs(a - b) > math.sqrt(2 * (a + b) * _LOG_ALARM)
