"""Evaluator of sampling. Each token must be an allowed one, and many together must follow the reference.

The allowed set and the probabilities are computed from the inputs: probabilities or logits, cut by
top-k, top-p and min-p. Whether the reference does the same is tested on its own draws; a reference that
does something else is taken by its draws alone.

A solution has random numbers of its own, so it is called many times on the same inputs. In timed calls
each token is checked, and the draws of all checked timed calls, which have different inputs, are tested
together (`sampling_tests`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import torch
from fib_schema import Definition

from ..checking.comparison import Comparison
from ..config.model import ResolvedEvalConfig
from ..secure_random import SECRET
from .protocol import Case, Check, Evaluator, Observation, Tensors, Verdict, calls_of
from .sampling_filters import Cuts, Filters, Rows, cut, find_rows
from .sampling_tests import PooledDraws, RowDistances, draw, problem_of_samples, problems_of_pairs

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
