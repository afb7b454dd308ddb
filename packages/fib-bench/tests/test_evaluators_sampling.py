"""Tests of the sampling evaluator: allowed sets, distributions, and evaluations of right and wrong samplers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from fib_bench import ResolvedEvalConfig
from fib_bench.evaluators.protocol import Case, Observation, Verdict
from fib_bench.evaluators.sampling import Draws, Filters, Rows, Sampling, UnknownDraws, cut
from fib_schema import Definition, Evaluation, RandomInput, Solution, Workload

Evaluate = Callable[..., list[Evaluation]]
Make = Callable[..., Definition]
MakeSolution = Callable[..., Solution]
Tensors = Mapping[str, torch.Tensor]
Sampler = Callable[[torch.Tensor, int], torch.Tensor]

FILTER = """
import torch

def cut(probs, top_k, top_p):
    top_k, top_p = top_k[:, None], top_p[:, None]
    values, order = probs.sort(dim=1, descending=True)
    count = probs.shape[1]
    is_filtered = (top_k > 0) & (top_k < count)
    values = torch.where(is_filtered & (torch.arange(count) >= top_k), 0, values)
    values = torch.where(is_filtered, values / values.sum(dim=1, keepdim=True), values)
    before = values.cumsum(dim=1).roll(1, 1)
    before[:, 0] = -1
    values = torch.where((top_p < 1) & (before > top_p), 0, values)
    values = torch.where(top_p < 1, values / values.sum(dim=1, keepdim=True), values)
    return torch.zeros_like(probs).scatter(1, order, values)
"""
REFERENCE = (
    FILTER + "\ndef run(probs, top_k, top_p):\n    return torch.multinomial(cut(probs, top_k, top_p), 1)[:, 0]\n"
)
VOCABULARY = 200


def config(**extra: object) -> ResolvedEvalConfig:
    return ResolvedEvalConfig(extra=extra)


@pytest.fixture
def definition(make_definition: Make) -> Definition:
    """Top-k and top-p sampling from probabilities, as the public definitions have it."""
    return make_definition(
        {"probs": f"float32[n,{VOCABULARY}]", "top_k": "int32[n]", "top_p": "float32[n]"},
        {"samples": "int64[n]"},
        REFERENCE,
        op_type="sampling",
        constants={"vocab_size": VOCABULARY},
    )


def cut_by_reference(probs: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    names: dict[str, Callable[..., torch.Tensor]] = {}
    exec(FILTER, names)
    return names["cut"](probs, top_k, top_p)


def random_inputs(rows: int, vocabulary: int = VOCABULARY, *, filters: str = "kp", sharpness: float = 2.0) -> Tensors:
    probs = torch.softmax(sharpness * torch.randn(rows, vocabulary), dim=-1)
    top_k = torch.randint(1, 65, (rows,)) if "k" in filters else torch.zeros(rows, dtype=torch.int64)
    top_p = torch.rand(rows) * 0.85 + 0.1 if "p" in filters else torch.ones(rows)
    return {"probs": probs, "top_k": top_k.int(), "top_p": top_p}


def draws_check(definition: Definition, inputs: Tensors, **extra: object) -> Draws:
    samples = {"samples": multinomial(cut_by_reference(*inputs.values()), 1)[0]}
    check = Sampling().check(Case(definition=definition, inputs=inputs, expected=samples, config=config(**extra)))
    assert isinstance(check, Draws)
    return check


def together(check: Draws, calls: torch.Tensor) -> Verdict:
    """Judge calls ``[calls, rows]``."""
    return Sampling().judge_together([Observation(check, {"samples": call}) for call in calls])


def multinomial(kept: torch.Tensor, calls: int) -> torch.Tensor:
    return torch.multinomial(kept, calls, replacement=True).T


def gumbel(kept: torch.Tensor, calls: int) -> torch.Tensor:
    noise = torch.empty(calls, *kept.shape).exponential_()
    return (kept.log() - noise.log()).argmax(dim=-1)


def inverse_cdf(kept: torch.Tensor, calls: int) -> torch.Tensor:
    sums = kept.double().cumsum(dim=-1)
    uniform = 1 - torch.rand(len(kept), calls).double()  # never 0, which would select a token of probability 0
    return torch.searchsorted(sums, uniform * sums[:, -1:]).T


RIGHT = {"multinomial": multinomial, "gumbel": gumbel, "inverse_cdf": inverse_cdf}


def of_temperature(temperature: float) -> Sampler:
    def sampler(kept: torch.Tensor, calls: int) -> torch.Tensor:
        return multinomial(kept ** (1 / temperature), calls)

    return sampler


WRONG: dict[str, Sampler] = {
    "argmax": lambda kept, calls: kept.argmax(dim=-1).expand(calls, -1),
    "uniform": lambda kept, calls: multinomial((kept > 0).float(), calls),
    "always the same": lambda kept, calls: multinomial(kept, 1).expand(calls, -1),
    "too hot": of_temperature(1.2),
    "too cold": of_temperature(0.8),
    "the first half of the tokens": lambda kept, calls: multinomial(
        kept * (torch.arange(kept.shape[1]) % 2 == 0) + 1e-9 * kept, calls
    ),
}


class TestAllowedSet:
    def allowed(self, definition: Definition, inputs: Tensors) -> torch.Tensor:
        check = draws_check(definition, inputs)
        levels = check.source.levels(slice(None))
        return levels >= check.cuts.least[:, None]

    @pytest.mark.parametrize("filters", ["k", "p", "kp", ""])
    def test_is_that_of_the_reference(self, definition: Definition, filters: str) -> None:
        torch.manual_seed(0)
        for _ in range(20):
            inputs = random_inputs(8, filters=filters)
            allowed, kept = self.allowed(definition, inputs), cut_by_reference(*inputs.values()) > 0
            assert torch.equal(allowed & ~kept, torch.zeros_like(kept))
            assert torch.equal(kept & ~allowed, torch.zeros_like(kept))

    def test_takes_rows_that_are_longer_than_their_head(self) -> None:
        torch.manual_seed(0)
        probs = torch.softmax(torch.randn(2, 20_000), dim=-1)
        cuts = cut(Rows(probs, is_logits=False), Filters(top_p=torch.tensor([0.9, 0.001], dtype=torch.float64)))
        kept = (probs >= cuts.least[:, None]).sum(dim=1)
        ordered = probs.double().sort(dim=1, descending=True).values.cumsum(dim=1)
        assert abs(int(kept[0]) - int((ordered[0] < 0.9).sum())) <= 3
        assert int(kept[1]) == int((ordered[1] < 0.001).sum()) + 1

    @pytest.mark.parametrize("k", [0, -1, VOCABULARY, VOCABULARY + 1])
    def test_extremes_of_filters(self, definition: Definition, k: int) -> None:
        inputs = {**random_inputs(3, filters=""), "top_k": torch.full((3,), k, dtype=torch.int32)}
        assert self.allowed(definition, inputs).all()
        found = self.allowed(definition, {**inputs, "top_p": torch.zeros(3)})
        assert torch.equal(found.nonzero()[:, 1], inputs["probs"].argmax(dim=1))

    def test_equal_tokens_at_the_boundary_are_all_allowed(self, definition: Definition) -> None:
        probs = torch.tensor([[0.5, *[0.5 / (VOCABULARY - 1)] * (VOCABULARY - 1)]])
        inputs = {"probs": probs, "top_k": torch.tensor([3]), "top_p": torch.ones(1)}
        check = draws_check(definition, inputs)
        assert (check.source.levels(slice(None)) >= check.cuts.least).all()
        assert not together(check, multinomial(cut_by_reference(*inputs.values()), 4000)).problems
        assert not together(check, multinomial(probs, 4000)).problems  # a kernel that keeps all equals

    def test_a_sum_rounded_the_other_way_is_right(self, definition: Definition) -> None:
        """Four equal tokens and top-p of a half: the sum is just that, or just not."""
        probs = torch.zeros(1, VOCABULARY)
        probs[0, :4] = 0.25
        inputs = {"probs": probs, "top_k": torch.zeros(1), "top_p": torch.tensor([0.5])}
        check = draws_check(definition, inputs)
        for count in (2, 3, 4):
            kept = probs * (torch.arange(VOCABULARY) < count)
            calls = multinomial(kept, 500)
            assert not any(check.compare({"samples": call}, {}).problems for call in calls)
            assert not together(check, calls).problems

    @pytest.mark.parametrize("token", [-1, VOCABULARY, 2**40])
    def test_tokens_that_do_not_exist_are_told(self, definition: Definition, token: int) -> None:
        check = draws_check(definition, random_inputs(3))
        samples = check.source.values.argmax(dim=1)
        samples[1] = token
        (problem,) = check.compare({"samples": samples}, {}).problems
        expected = f"1 of 3 tokens are outside the allowed set; in row 1 token {token}, which does not exist"
        assert problem == f"output 'samples': {expected}"


class TestDistribution:
    @pytest.mark.slow
    @pytest.mark.parametrize("sampler", RIGHT)
    def test_right_samplers_pass_again_and_again(self, definition: Definition, sampler: str) -> None:
        torch.manual_seed(1001)
        for repetition in range(60):
            rows, calls = ((1, 400), (8, 100), (40, 25))[repetition % 3]
            inputs = random_inputs(rows, filters=("k", "p", "kp", "")[repetition % 4])
            check = draws_check(definition, inputs)
            drawn = RIGHT[sampler](cut_by_reference(*inputs.values()), calls)
            assert not any(check.compare({"samples": call}, {}).problems for call in drawn)
            assert not together(check, drawn).problems

    @pytest.mark.parametrize("sampler", WRONG)
    @pytest.mark.parametrize(("rows", "calls"), [(1, 10_000), (64, 200)])
    @pytest.mark.parametrize("filters", ["k", ""])
    def test_wrong_samplers_fail(
        self, definition: Definition, sampler: str, rows: int, calls: int, filters: str
    ) -> None:
        torch.manual_seed(rows)
        inputs = random_inputs(rows, filters=filters)
        if filters:
            inputs = {**inputs, "top_k": inputs["top_k"].clamp(min=20)}
        drawn = WRONG[sampler](cut_by_reference(*inputs.values()), calls)
        assert together(draws_check(definition, inputs), drawn).problems

    def test_one_broken_row_is_named(self, definition: Definition) -> None:
        torch.manual_seed(0)
        inputs = random_inputs(32, filters="", sharpness=1.0)
        drawn = multinomial(inputs["probs"], 200)
        drawn[:, 7] = drawn[0, 7]
        (problem,) = together(draws_check(definition, inputs), drawn).problems
        assert "row 7 is drawn from another distribution" in problem

    def test_the_distance_threshold_is_a_setting(self, definition: Definition) -> None:
        """A right sampler is far from the distribution when it draws little; that much is expected."""
        torch.manual_seed(0)
        inputs = random_inputs(4, filters="", sharpness=0.0)
        check = draws_check(definition, inputs, sampling_tvd_threshold=0.01)
        verdict = together(check, multinomial(inputs["probs"], 100))
        assert not verdict.problems
        assert verdict.extra["sampling"]["total_variation"] > 0.3


class TestModels:
    """Kind of model that the evaluator infers from a reference."""

    def check(
        self, definition: Definition, inputs: Mapping[str, object], reference: Callable[[], torch.Tensor]
    ) -> object:
        def again() -> Tensors:
            return {"samples": reference()}

        case = Case(definition=definition, inputs=inputs, expected=again(), config=config(), again=again)  # type: ignore[arg-type]
        return Sampling().check(case)

    def test_top_p_of_what_top_k_leaves_or_of_the_whole(self, definition: Definition) -> None:
        torch.manual_seed(0)
        inputs = random_inputs(32, sharpness=1.0)
        one, two = cut_by_reference(*inputs.values()), None
        by_p = cut_by_reference(inputs["probs"], torch.zeros(32), inputs["top_p"])
        two = by_p * (cut_by_reference(inputs["probs"], inputs["top_k"], torch.ones(32)) > 0)
        for kept, is_joint in ((one, False), (two, True)):
            check = self.check(definition, inputs, lambda kept=kept: multinomial(kept, 1)[0])
            assert isinstance(check, Draws)
            assert check.filters.is_joint is is_joint

    @pytest.mark.parametrize("is_scalar", [False, True])
    def test_logits_with_temperature_and_min_p(self, make_definition: Make, is_scalar: bool) -> None:
        torch.manual_seed(0)
        shape = "float32" if is_scalar else "float32[n]"
        definition = make_definition(
            {"logits": "float32[n,v]", "temperature": shape, "min_p": shape},
            {"samples": "int32[n]"},
            "def run(logits, temperature, min_p):\n    return torch.multinomial(logits, 1)\n",
        )
        assert Sampling().applies(definition)
        logits, temperature, min_p = torch.randn(8, 300) * 4, torch.full((8,), 0.7), torch.full((8,), 0.1)
        probs = torch.softmax(logits / temperature[:, None], dim=-1)
        kept = probs * (probs >= min_p[:, None] * probs.amax(dim=1, keepdim=True))
        values = (0.7, 0.1) if is_scalar else (temperature, min_p)
        inputs = {"logits": logits, "temperature": values[0], "min_p": values[1]}
        check = self.check(definition, inputs, lambda: multinomial(kept, 1)[0])
        assert isinstance(check, Draws)
        assert check.source.is_logits
        assert not together(check, multinomial(kept, 400)).problems
        assert together(check, multinomial(torch.softmax(logits, dim=-1) * (kept > 0), 400)).problems

    def test_what_no_filter_explains_is_taken_by_its_draws(self, definition: Definition) -> None:
        torch.manual_seed(0)
        inputs = random_inputs(6)
        kept = torch.softmax(torch.randn(6, VOCABULARY), dim=-1) * (torch.arange(VOCABULARY) < 12)
        check = self.check(definition, inputs, lambda: multinomial(kept, 1)[0])
        assert isinstance(check, UnknownDraws)
        for sampler, is_right in ((multinomial, True), (WRONG["argmax"], False)):
            calls = [Observation(check, {"samples": call}) for call in sampler(kept, 100)]
            verdict = Sampling().judge_together(calls)
            assert bool(verdict.problems) != is_right, verdict
        assert check.compare({"samples": torch.full((6,), VOCABULARY)}, {"samples": kept}).problems

    def test_a_reference_with_a_fixed_seed_is_judged_call_by_call(self, definition: Definition) -> None:
        torch.manual_seed(0)
        inputs = random_inputs(64)
        once = multinomial(cut_by_reference(*inputs.values()), 1)[0]
        check = self.check(definition, inputs, lambda: once)
        assert isinstance(check, Draws)
        assert (check.trials, check.most_trials) == (0, 0)

    @pytest.mark.parametrize("value", [0, -1, True, "many"])
    def test_settings_that_cannot_be_are_told(self, definition: Definition, value: object) -> None:
        case = Case(
            definition=definition,
            inputs=random_inputs(1),
            expected={"samples": torch.zeros(1, dtype=torch.int64)},
            config=config(sampling_validation_trials=value),
        )
        with pytest.raises(ValueError, match=r"extra\.sampling_validation_trials must be a number greater than 0"):
            Sampling().check(case)


DRAW = "torch.multinomial(cut(probs, top_k, top_p), 1)[:, 0]"
SOLUTIONS = {
    DRAW: "",
    "torch.multinomial(cut(probs, 0 * top_k, top_p), 1)[:, 0]": "tokens are outside the allowed set",
    DRAW.replace(", 1)", ", 1, generator=torch.Generator().manual_seed(0))"): "many calls on the same inputs: ",
    f"probs.argmax(dim=-1) if next(calls) > 300 else {DRAW}": "timed calls: likely tokens are drawn too often",
}
"""Returned values of solutions, and texts of their logs; no text for one that is right."""


@pytest.mark.slow
@pytest.mark.parametrize("code", SOLUTIONS)
def test_solutions_are_judged(
    evaluate: Evaluate, definition: Definition, make_solution: MakeSolution, code: str
) -> None:
    """On one workload of 32 rows, of which neither filter is trivial."""
    source = (
        f"{FILTER}\nimport itertools\ncalls = itertools.count()\ndef run(probs, top_k, top_p):\n    return {code}\n"
    )
    workloads = [Workload({"n": 32}, {name: RandomInput() for name in definition.inputs}, "w")]
    fields: dict[str, object] = {}
    if "calls" in code:
        fields = {"iterations": 2000, "measure_seconds": 8.0, "extra": {"sampling_validation_samples": 1000}}
    solution = make_solution(source, definition="made")
    (evaluation,) = evaluate(solution, definition=definition, workloads=workloads, **fields)
    assert evaluation.status == ("INCORRECT_NUMERICAL" if SOLUTIONS[code] else "PASSED"), evaluation.log
    assert SOLUTIONS[code] in evaluation.log
    if not SOLUTIONS[code]:
        assert evaluation.extra is not None
        assert evaluation.extra["evaluator"] == "sampling"
        assert evaluation.extra["outputs"]["samples"]["filters"] == ["top_k", "top_p"]
        assert evaluation.correctness is not None
        assert evaluation.correctness.extra is not None
        seen = evaluation.correctness.extra["together"]["many calls on the same inputs"]["sampling"]
        assert seen["draws"] > 1000
        assert seen["total_variation"] < seen["total_variation_of_a_right_sampler"] + 0.1


def calls_of(
    definition: Definition, sampler: Sampler, *, calls: int = 40, rows: int = 32, filters: str = "k"
) -> Verdict:
    """Judge one draw per row of many calls with inputs of their own, as of timed calls."""
    observations = []
    for _ in range(calls):
        inputs = random_inputs(rows, filters=filters)
        if filters:
            inputs = {**inputs, "top_k": inputs["top_k"].clamp(min=20)}
        check = draws_check(definition, inputs)
        drawn = sampler(cut_by_reference(*inputs.values()), 1)[0]
        assert not check.compare({"samples": drawn}, {}).problems
        observations.append(Observation(check, {"samples": drawn}))
    return Sampling().judge_together(observations)


def only(part: Callable[[torch.Tensor], torch.Tensor]) -> Sampler:
    """Draw from the tokens whose numbers are in a part, if there are any."""

    def sampler(kept: torch.Tensor, calls: int) -> torch.Tensor:
        return multinomial(torch.where(part(torch.arange(kept.shape[1])), kept, 1e-9 * kept), calls)

    return sampler


def stale(make: Sampler) -> Sampler:
    """Draw from the distribution of the first call, as far as its tokens are allowed now."""
    first: list[torch.Tensor] = []

    def sampler(kept: torch.Tensor, calls: int) -> torch.Tensor:
        first.append(kept)
        return make((first[0] + 1e-9) * (kept > 0), calls)

    return sampler


def tighter(kept: torch.Tensor, calls: int) -> torch.Tensor:
    """Draw from the ten best tokens of each row, whatever top-k is: the tightest threshold of all calls."""
    least = kept.topk(10, dim=1).values[:, -1:]
    return multinomial(kept * (kept >= least), calls)


WHEN_TIMED: dict[str, tuple[Sampler, str]] = {
    "the first half of the vocabulary": (only(lambda i: i < 100), "the draws have lower numbers"),
    "every other token": (only(lambda i: i % 2 == 0), "have bit 0 set too often or too seldom"),
    "every other tile": (only(lambda i: i // 16 % 2 == 1), "have bit 4 set too often or too seldom"),
    "a stale distribution": (stale(multinomial), "likely tokens are drawn too seldom"),
    "a stale threshold": (tighter, "likely tokens are drawn too often"),
    "argmax": (WRONG["argmax"], "likely tokens are drawn too often"),
}


class TestCallsWithDifferentInputs:
    """One draw per row from distributions that differ from call to call."""

    @pytest.mark.parametrize("sampler", RIGHT)
    @pytest.mark.parametrize("filters", ["", "kp"])
    def test_right_samplers_pass(self, definition: Definition, sampler: str, filters: str) -> None:
        torch.manual_seed(0)
        verdict = calls_of(definition, RIGHT[sampler], filters=filters)
        assert not verdict.problems
        assert verdict.extra["sampling"]["draws"] > 1000

    @pytest.mark.parametrize("name", WHEN_TIMED)
    @pytest.mark.parametrize("filters", ["", "k"])
    def test_wrong_samplers_fail(self, definition: Definition, name: str, filters: str) -> None:
        torch.manual_seed(0)
        sampler, said = WHEN_TIMED[name]
        (problem,) = calls_of(definition, sampler, filters=filters).problems
        assert said in problem or filters

    @pytest.mark.parametrize(
        ("sampler", "is_right"),
        [(multinomial, True), (only(lambda i: i < 100), False), (only(lambda i: i % 2 == 0), False)],
        ids=["right", "first half", "every other"],
    )
    def test_those_of_an_unknown_reference_are_judged_by_pairs(
        self, definition: Definition, sampler: Sampler, is_right: bool
    ) -> None:
        torch.manual_seed(0)
        seen = {"samples": torch.tensor([[1, 2], [2, 2]])}
        first = UnknownDraws(bounds=None, seen=seen, trials=100)
        observations = []
        for _ in range(20):
            kept = torch.softmax(torch.randn(32, VOCABULARY), dim=-1)
            case = Case(
                definition=definition,
                inputs=random_inputs(32),
                expected={"samples": multinomial(kept, 1)[0]},
                config=config(),
                first=first,
            )
            check = Sampling().check(case)
            assert check.is_observed
            observations.append(Observation(check, {"samples": sampler(kept, 1)[0]}))
        assert bool(Sampling().judge_together(observations).problems) != is_right
