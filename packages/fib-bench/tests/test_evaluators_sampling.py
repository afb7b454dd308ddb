"""Tests of the sampling evaluator: allowed sets, distributions, and evaluations of right and wrong samplers."""

import re

import pytest
import torch
from fib_bench import ResolvedEvalConfig
from fib_bench.evaluators.protocol import Case, Observation
from fib_bench.evaluators.sampling import Draws, Rows, Sampling, cut
from fib_schema import RandomInput, Workload

from .samples import make_definition, make_solution

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
REFERENCE = FILTER + "\ndef run(probs, top_k, top_p):\n    return torch.multinomial(cut(probs, top_k, top_p), 1)[:, 0]"
VOCABULARY = 200


def config(**extra):
    return ResolvedEvalConfig(extra=extra)


SAMPLER = make_definition(
    {"probs": f"float32[n,{VOCABULARY}]", "top_k": "int32[n]", "top_p": "float32[n]"},
    {"samples": "int64[n]"},
    REFERENCE,
    op_type="sampling",
    constants={"vocab_size": VOCABULARY},
)
"""Top-k and top-p sampling from probabilities, as the public definitions have it."""


def cut_by_reference(probs, top_k, top_p):
    names = {}
    exec(FILTER, names)
    return names["cut"](probs, top_k, top_p)


def random_inputs(rows, vocabulary=VOCABULARY, *, filters="kp", sharpness=2.0):
    probs = torch.softmax(sharpness * torch.randn(rows, vocabulary), dim=-1)
    top_k = torch.randint(1, 65, (rows,)) if "k" in filters else torch.zeros(rows, dtype=torch.int64)
    top_p = torch.rand(rows) * 0.85 + 0.1 if "p" in filters else torch.ones(rows)
    return {"probs": probs, "top_k": top_k.int(), "top_p": top_p}


def draws_check(inputs, **extra):
    samples = {"samples": multinomial(cut_by_reference(*inputs.values()), 1)[0]}
    check = Sampling().check(Case(definition=SAMPLER, inputs=inputs, expected=samples, config=config(**extra)))
    assert isinstance(check, Draws)
    return check


def together(check, calls):
    """Judge calls ``[calls, rows]``."""
    return Sampling().judge_together([Observation(check, {"samples": call}) for call in calls])


def multinomial(kept, calls):
    return torch.multinomial(kept, calls, replacement=True).T


def gumbel(kept, calls):
    noise = torch.empty(calls, *kept.shape).exponential_()
    return (kept.log() - noise.log()).argmax(dim=-1)


def inverse_cdf(kept, calls):
    sums = kept.double().cumsum(dim=-1)
    uniform = 1 - torch.rand(len(kept), calls).double()  # never 0, which would select a token of probability 0
    return torch.searchsorted(sums, uniform * sums[:, -1:]).T


RIGHT = {"multinomial": multinomial, "gumbel": gumbel, "inverse_cdf": inverse_cdf}


def only(part):
    """Draw from the tokens whose numbers are in a part, if there are any."""

    def sampler(kept, calls):
        return multinomial(torch.where(part(torch.arange(kept.shape[1])), kept, 1e-9 * kept), calls)

    return sampler


WRONG = {
    "argmax": lambda kept, calls: kept.argmax(dim=-1).expand(calls, -1),
    "uniform": lambda kept, calls: multinomial((kept > 0).float(), calls),
    "always the same": lambda kept, calls: multinomial(kept, 1).expand(calls, -1),
    "too hot": lambda kept, calls: multinomial(kept ** (1 / 1.2), calls),
    "too cold": lambda kept, calls: multinomial(kept ** (1 / 0.8), calls),
    "every other token": only(lambda i: i % 2 == 0),
}


class TestAllowedSet:
    def allowed(self, inputs):
        check = draws_check(inputs)
        return check.rows.values.double() >= check.cuts.least[:, None]

    @pytest.mark.parametrize("filters", ["k", "p", "kp", ""])
    def test_is_that_of_the_reference(self, filters):
        torch.manual_seed(0)
        for _ in range(20):
            inputs = random_inputs(8, filters=filters)
            allowed, kept = self.allowed(inputs), cut_by_reference(*inputs.values()) > 0
            assert torch.equal(allowed & ~kept, torch.zeros_like(kept))
            assert torch.equal(kept & ~allowed, torch.zeros_like(kept))

    def test_takes_rows_that_are_longer_than_their_head(self):
        torch.manual_seed(0)
        probs = torch.softmax(torch.randn(2, 20_000), dim=-1)
        cuts = cut(Rows(probs, torch.zeros(2).double()), top_p=torch.tensor([0.9, 0.001], dtype=torch.float64))
        kept = (probs >= cuts.least[:, None]).sum(dim=1)
        ordered = probs.double().sort(dim=1, descending=True).values.cumsum(dim=1)
        assert abs(int(kept[0]) - int((ordered[0] < 0.9).sum())) <= 3
        assert int(kept[1]) == int((ordered[1] < 0.001).sum()) + 1

    @pytest.mark.parametrize("k", [0, -1, VOCABULARY, VOCABULARY + 1])
    def test_extremes_of_filters(self, k):
        inputs = {**random_inputs(3, filters=""), "top_k": torch.full((3,), k, dtype=torch.int32)}
        assert self.allowed(inputs).all()
        found = self.allowed({**inputs, "top_p": torch.zeros(3)})
        assert torch.equal(found.nonzero()[:, 1], inputs["probs"].argmax(dim=1))

    def test_equal_tokens_at_the_boundary_are_all_allowed(self):
        probs = torch.tensor([[0.5, *[0.5 / (VOCABULARY - 1)] * (VOCABULARY - 1)]])
        inputs = {"probs": probs, "top_k": torch.tensor([3]), "top_p": torch.ones(1)}
        check = draws_check(inputs)
        assert (check.rows.values.double() >= check.cuts.least).all()
        assert not together(check, multinomial(cut_by_reference(*inputs.values()), 4000)).problems
        assert not together(check, multinomial(probs, 4000)).problems  # a kernel that keeps all equals

    def test_a_sum_rounded_the_other_way_is_right(self):
        """Four equal tokens and top-p of a half: the sum is just that, or just not."""
        probs = torch.zeros(1, VOCABULARY)
        probs[0, :4] = 0.25
        inputs = {"probs": probs, "top_k": torch.zeros(1), "top_p": torch.tensor([0.5])}
        check = draws_check(inputs)
        for count in (2, 3, 4):
            kept = probs * (torch.arange(VOCABULARY) < count)
            calls = multinomial(kept, 500)
            assert not any(check.compare({"samples": call}, {}).problems for call in calls)
            assert not together(check, calls).problems

    @pytest.mark.parametrize("token", [-1, VOCABULARY, 2**40])
    def test_tokens_that_do_not_exist_are_told(self, token):
        check = draws_check(random_inputs(3))
        samples = check.rows.values.argmax(dim=1)
        samples[1] = token
        (problem,) = check.compare({"samples": samples}, {}).problems
        expected = f"1 of 3 tokens are outside the allowed set; in row 1 token {token}, which does not exist"
        assert problem == f"output 'samples': {expected}"


class TestDistribution:
    @pytest.mark.slow
    @pytest.mark.parametrize("sampler", RIGHT)
    def test_right_samplers_pass_again_and_again(self, sampler):
        torch.manual_seed(1001)
        for repetition in range(60):
            rows, calls = ((1, 400), (8, 100), (40, 25))[repetition % 3]
            sharpness = 9.0 if repetition % 5 < 2 else 2.0  # of the former, most rows have a token of nearly 1
            inputs = random_inputs(rows, filters=("k", "p", "kp", "")[repetition % 4], sharpness=sharpness)
            check = draws_check(inputs)
            drawn = RIGHT[sampler](cut_by_reference(*inputs.values()), calls)
            assert not any(check.compare({"samples": call}, {}).problems for call in drawn)
            assert not together(check, drawn).problems

    @pytest.mark.parametrize("sampler", WRONG)
    @pytest.mark.parametrize(("rows", "calls"), [(1, 10_000), (64, 200)])
    @pytest.mark.parametrize("filters", ["k", ""])
    def test_wrong_samplers_fail(self, sampler, rows, calls, filters):
        torch.manual_seed(rows)
        inputs = random_inputs(rows, filters=filters)
        if filters:
            inputs = {**inputs, "top_k": inputs["top_k"].clamp(min=20)}
        drawn = WRONG[sampler](cut_by_reference(*inputs.values()), calls)
        assert together(draws_check(inputs), drawn).problems

    def test_one_broken_row_is_named(self):
        torch.manual_seed(0)
        inputs = random_inputs(32, filters="", sharpness=1.0)
        drawn = multinomial(inputs["probs"], 200)
        drawn[:, 7] = drawn[0, 7]
        (problem,) = together(draws_check(inputs), drawn).problems
        assert "row 7 is drawn from another distribution" in problem

    def test_the_distance_threshold_is_a_setting(self):
        """A right sampler is far from the distribution when it draws little; that much is expected."""
        torch.manual_seed(0)
        inputs = random_inputs(4, filters="", sharpness=0.0)
        check = draws_check(inputs, sampling_tvd_threshold=0.01)
        verdict = together(check, multinomial(inputs["probs"], 100))
        assert not verdict.problems
        assert verdict.extra["sampling"]["total_variation"] > 0.3


class TestModels:
    """Kind of model that the evaluator infers from a reference."""

    def check(self, definition, inputs, reference):
        def again():
            return {"samples": reference()}

        case = Case(definition=definition, inputs=inputs, expected=again(), config=config(), again=again)
        return Sampling().check(case)

    @pytest.mark.parametrize("is_scalar", [False, True])
    def test_logits(self, is_scalar):
        torch.manual_seed(0)
        definition = make_definition(
            {"logits": "float32[n,v]", "top_k": "int32" if is_scalar else "int32[n]"},
            {"samples": "int32[n]"},
            "def run(logits, top_k):\n    return torch.multinomial(logits, 1)\n",
        )
        assert Sampling().applies(definition)
        logits = torch.randn(8, 300) * 4
        probs = torch.softmax(logits, dim=-1)
        kept = probs * (probs >= probs.topk(20).values[:, -1:])
        inputs = {"logits": logits, "top_k": 20 if is_scalar else torch.full((8,), 20)}
        check = self.check(definition, inputs, lambda: multinomial(kept, 1)[0])
        assert isinstance(check, Draws)
        assert not together(check, multinomial(kept, 400)).problems
        assert together(check, multinomial(torch.softmax(logits / 2, dim=-1) * (kept > 0), 400)).problems
        assert check.compare({"samples": logits.argmin(dim=1)}, {}).problems

    def test_draws_that_the_filters_do_not_explain_need_another_evaluator(self):
        """Others than these tokens, and top-p of all probabilities instead of those that top-k leaves."""
        torch.manual_seed(0)
        inputs = random_inputs(32, sharpness=1.0)
        probs, top_k, top_p = inputs.values()
        by_p = cut_by_reference(probs, torch.zeros(32), top_p)
        for kept in (
            probs * (torch.arange(VOCABULARY) < 12),
            by_p * (cut_by_reference(probs, top_k, torch.ones(32)) > 0),
        ):
            with pytest.raises(ValueError, match=r"do not explain the draws of its reference; write an evaluator"):
                self.check(SAMPLER, inputs, lambda kept=kept: multinomial(kept, 1)[0])

    @pytest.mark.parametrize(
        ("inputs", "said"),
        [
            ({"min_p": torch.ones(6)}, "input 'min_p' of 'made' is no known filter of tokens; write an evaluator"),
            ({"probs": torch.ones(5, VOCABULARY)}, "are not one or more for each row of an input; write an evaluator"),
            ({"probs": None}, "are not one or more for each row of an input; write an evaluator"),
        ],
    )
    def test_inputs_that_are_no_rows_with_filters_need_another_evaluator(self, inputs, said):
        with pytest.raises(ValueError, match=said):
            self.check(SAMPLER, {**random_inputs(6), **inputs}, lambda: torch.zeros(6, dtype=torch.int64))

    def test_a_reference_with_a_fixed_seed_is_judged_call_by_call(self):
        torch.manual_seed(0)
        inputs = random_inputs(64)
        once = multinomial(cut_by_reference(*inputs.values()), 1)[0]
        check = self.check(SAMPLER, inputs, lambda: once)
        assert isinstance(check, Draws)
        assert (check.trials, check.most_trials) == (0, 0)

    @pytest.mark.parametrize("value", [0, -1, True, "many"])
    def test_settings_that_cannot_be_are_told(self, value):
        with pytest.raises(ValueError, match=r"extra\.sampling_validation_trials must be a number greater than 0"):
            draws_check(random_inputs(1), sampling_validation_trials=value)


DRAW = "torch.multinomial(cut(probs, top_k, top_p), 1)[:, 0]"
SOLUTIONS = {
    DRAW: "",
    "torch.multinomial(cut(probs, 0 * top_k, top_p), 1)[:, 0]": "tokens are outside the allowed set",
    DRAW.replace(", 1)", ", 1, generator=torch.Generator().manual_seed(0))"): "; many calls on the same inputs",
    f"probs.argmax(dim=-1) if next(calls) > 130 else {DRAW}": "likely tokens are drawn too often",
}
"""Returned values of solutions, and patterns of their logs; none for one that is right."""


@pytest.mark.slow
@pytest.mark.parametrize("code", SOLUTIONS)
def test_solutions_are_judged(evaluate, code):
    """On one workload of 32 rows, of which neither filter is trivial."""
    source = f"{FILTER}\nimport itertools\ncalls = itertools.count()\ndef run(probs, top_k, top_p):\n    return {code}"
    workloads = [Workload({"n": 32}, {name: RandomInput() for name in SAMPLER.inputs}, "w")]
    fields = {}
    if "calls" in code:
        extra = {"sampling_validation_trials": 50, "sampling_validation_samples": 1000}  # 103 calls before timed ones
        fields = {"iterations": 2000, "measure_seconds": 8.0, "extra": extra}
    solution = make_solution(source, definition="made")
    (evaluation,) = evaluate(solution, definition=SAMPLER, workloads=workloads, **fields)
    assert evaluation.status == ("INCORRECT_NUMERICAL" if SOLUTIONS[code] else "PASSED"), evaluation.log
    assert re.search(SOLUTIONS[code], evaluation.log)
    if not SOLUTIONS[code]:
        assert evaluation.extra["evaluator"] == "sampling"
        assert evaluation.extra["outputs"]["samples"]["filters"] == ["top_k", "top_p"]
        seen = evaluation.correctness.extra["together"]["many calls on the same inputs"]["sampling"]
        assert seen["draws"] > 1000
        assert seen["total_variation"] < seen["total_variation_of_a_right_sampler"] + 0.1


def calls_of(sampler, *, calls=40, rows=32, filters="k"):
    """Judge one draw per row of many calls with inputs of their own, as of timed calls."""
    observations = []
    for _ in range(calls):
        inputs = random_inputs(rows, filters=filters)
        if filters:
            inputs = {**inputs, "top_k": inputs["top_k"].clamp(min=20)}
        check = draws_check(inputs)
        drawn = sampler(cut_by_reference(*inputs.values()), 1)[0]
        assert not check.compare({"samples": drawn}, {}).problems
        observations.append(Observation(check, {"samples": drawn}))
    return Sampling().judge_together(observations)


def stale(make):
    """Draw from the distribution of the first call, as far as its tokens are allowed now."""
    first = []

    def sampler(kept, calls):
        first.append(kept)
        return make((first[0] + 1e-9) * (kept > 0), calls)

    return sampler


def tighter(kept, calls):
    """Draw from the ten best tokens of each row, whatever top-k is: the tightest threshold of all calls."""
    least = kept.topk(10, dim=1).values[:, -1:]
    return multinomial(kept * (kept >= least), calls)


def eighth(kept, calls):
    """Draw from a random eighth of each row, which is another one in each call."""
    first = torch.randint(VOCABULARY, (len(kept), 1))
    return only(lambda i: (i - first) % VOCABULARY < VOCABULARY // 8)(kept, calls)


WHEN_TIMED = {
    "a random eighth": (eighth, "likely tokens are drawn too seldom"),
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
    def test_right_samplers_pass(self, sampler, filters):
        torch.manual_seed(0)
        verdict = calls_of(RIGHT[sampler], filters=filters)
        assert not verdict.problems
        assert verdict.extra["sampling"]["draws"] > 1000

    @pytest.mark.parametrize("name", WHEN_TIMED)
    @pytest.mark.parametrize("filters", ["", "k"])
    def test_wrong_samplers_fail(self, name, filters):
        torch.manual_seed(0)
        sampler, said = WHEN_TIMED[name]
        (problem,) = calls_of(sampler, filters=filters).problems
        assert said in problem or filters
