"""Tests of the evaluators of experts, sparse attention and recurrences: scales of rows, ties, states."""

import math

import attrs
import pytest
import torch
from fib_bench import ResolvedEvalConfig
from fib_bench.evaluators.protocol import Case
from fib_bench.evaluators.scaled import MixtureOfExperts, ScaledPart, StateSpace, find_ties, scaled_part
from hypothesis import given, settings
from hypothesis import strategies as st

from .samples import judged, make_definition


def check_of(evaluator, definition, inputs, expected, config=None):
    config = evaluator.settings(config or ResolvedEvalConfig())
    return evaluator.check(Case(definition=definition, inputs=inputs, expected=expected, config=config))


def problems(check, found, expected):
    return check.compare({**expected, **found}, expected).problems


class TestScaledPart:
    def test_each_row_has_its_own_tolerance(self):
        expected = torch.tensor([[100.0, 1.0, -3.0], [0.1, 0.001, -0.003]])
        part = scaled_part("y", expected, ResolvedEvalConfig())
        assert part.rule.atol.tolist() == pytest.approx([1.0, 0.001])
        assert part.compare(expected + torch.tensor([[0.9], [0.0009]]), expected).wrong == 0
        assert part.compare(expected + torch.tensor([[1.1], [0.0]]), expected).wrong == 3
        assert part.compare(expected + torch.tensor([[0.0], [0.0011]]), expected).wrong == 3

    @pytest.mark.parametrize("odd", [math.inf, -math.inf])
    def test_infinity_must_be_the_same(self, odd):
        expected = torch.tensor([[1.0, odd, 3.0], [1.0, 2.0, 3.0]])
        part = scaled_part("y", expected, ResolvedEvalConfig())
        assert part.compare(expected.clone(), expected).wrong == 0
        assert part.compare(expected.nan_to_num(0.0, 0.0, 0.0), expected).wrong == 1
        found = expected.clone()
        found[1, 1] = odd
        comparison = part.compare(found, expected)
        assert comparison.wrong == 1
        assert "[1, 1] is" in comparison.worst
        assert not part.is_right(comparison)

    @given(st.integers(0, 2**20), st.integers(1, 40), st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
    @settings(max_examples=30, deadline=None)
    def test_rounding_to_its_own_dtype_is_right_at_any_scale(self, seed, width, dtype):
        torch.manual_seed(seed)
        exact = torch.randn(7, width, dtype=torch.float64) * 10 ** (2 * torch.randn(7, 1, dtype=torch.float64)).clamp(
            -3, 3
        )
        expected = exact.to(dtype)
        part = scaled_part("y", expected, ResolvedEvalConfig())
        neighbour = (exact * (1 + torch.finfo(dtype).eps / 2)).to(dtype)
        assert part.is_right(part.compare(neighbour, expected))
        assert width < 2 or not part.is_right(part.compare(expected * 1.2, expected))


class TestExperts:
    TOKENS, EXPERTS, WIDTH = 200, 16, 64

    @pytest.fixture
    def definition(self):
        inputs = {"routing_logits": "bfloat16[n,e]", "hidden_states": "bfloat16[n,h]"}
        return make_definition(
            inputs, {"output": "bfloat16[n,h]"}, "def run(*x): ...\n", op_type="moe", constants={"top_k": 4}
        )

    @pytest.fixture
    def expected(self):
        torch.manual_seed(0)
        return {"output": (torch.randn(self.TOKENS, self.WIDTH) * 10 ** torch.randn(self.TOKENS, 1)).bfloat16()}

    @pytest.fixture
    def logits(self):
        torch.manual_seed(1)
        values = torch.rand(self.TOKENS, self.EXPERTS).argsort(dim=1).bfloat16()  # no two alike
        values[:20] = values[:20].clamp(max=11.0)  # the fourth and the fifth are
        return values

    def check(self, definition, logits, expected, **fields):
        config = ResolvedEvalConfig(**fields)
        return check_of(MixtureOfExperts(), definition, {"routing_logits": logits}, expected, config)

    def test_other_experts_are_right_only_where_there_is_a_tie(self, definition, logits, expected):
        check = self.check(definition, logits, expected)
        part = check.parts["output"]
        assert isinstance(part, ScaledPart)
        assert part.to_extra()["rows_with_ties"] == 20
        found = expected["output"].clone()
        found[:20] += found[:20].flip(1)  # of other experts in part
        assert not problems(check, {"output": found}, expected)
        found[:20] *= 100
        assert problems(check, {"output": found}, expected)
        found = expected["output"].clone()
        found[50:55] = found[50:55].flip(1)
        (problem,) = problems(check, {"output": found}, expected)
        assert "in 5 rows more elements are wrong than may be" in problem
        found[51:55] = expected["output"][51:55]
        (problem,) = problems(check, {"output": found}, expected)
        assert "in 1 row more elements are wrong than may be; worst row 50" in problem

    @pytest.mark.parametrize(
        "change",
        [
            torch.zeros_like,
            lambda y: y * 1.1,
            lambda y: y.roll(1, 0),
            lambda y: torch.where(torch.arange(len(y))[:, None] % 30 == 29, 0.0, y),
            lambda y: torch.where(torch.rand_like(y) < 0.1, 0.0, y),
            lambda y: torch.where(torch.arange(y.numel()).view_as(y) == 9000, y.abs().max() * 3, y),
            lambda y: torch.where(torch.arange(y.numel()).view_as(y) == 9000, math.nan, y),
        ],
        ids=["zeros", "scaled", "other rows", "skipped tokens", "holes", "outlier", "NaN"],
    )
    def test_wrong_outputs_are_told(self, definition, logits, expected, change):
        found = change(expected["output"].float()).bfloat16()
        assert problems(self.check(definition, logits, expected), {"output": found}, expected)

    def test_rounded_activations_are_right_where_experts_are_quantised(self, definition, logits, expected):
        scales = expected["output"].float().abs().amax(dim=1, keepdim=True)
        found = {
            "output": (expected["output"].float() + 0.008 * scales * torch.randn(expected["output"].shape)).bfloat16()
        }
        assert problems(self.check(definition, logits, expected), found, expected)
        quantised = attrs.evolve(definition, tags=("quantization:float8_e4m3fn",))
        assert not problems(self.check(quantised, logits, expected), found, expected)
        assert problems(self.check(quantised, logits, expected, rtol=1e-3), found, expected)


class TestRoutingTies:
    """Tokens for which several choices of experts are right."""

    def case(self, name, inputs):
        definition = make_definition(
            {"routing_logits": "float32[n,e]"}, {"output": "bfloat16[n,e]"}, "def run(*x): ...\n"
        )
        config = ResolvedEvalConfig()
        return Case(definition=attrs.evolve(definition, name=name), inputs=inputs, expected={}, config=config)

    def test_the_share_of_certain_experts_is_told(self):
        logits = torch.tensor([[4.0, 3.0, 2.0, 1.0], [4.0, 3.0, 3.0, 1.0], [3.0, 3.0, 3.0, 1.0]])
        ties = find_ties(self.case("moe_topk2", {"routing_logits": logits}))
        assert ties.tied.tolist() == [False, True, True]
        assert ties.certain_share.tolist() == [1.0, 0.5, 0.0]

    def test_a_bias_changes_the_order(self):
        """Scores are sigmoids with a bias: equal logits are no tie then, and unequal ones may be."""
        logits = torch.tensor([[5.0, 0.0, 0.0, -5.0], [0.0, 2.0, -2.0, -9.0]])
        bias = torch.tensor([0.0, 0.1, 0.0, 0.0])
        ties = find_ties(self.case("moe_topk2", {"routing_logits": logits, "routing_bias": bias}))
        assert ties.tied.tolist() == [False, False]
        bias = torch.tensor([float(torch.tensor(2.0).sigmoid() - 0.5), 0.0, 9.0, 0.0])
        ties = find_ties(self.case("moe_topk2", {"routing_logits": logits, "routing_bias": bias}))
        assert ties.tied.tolist() == [False, True]
        assert ties.certain_share[1] == 0.5

    def test_groups_that_are_equal_make_a_tie(self):
        logits = torch.tensor([[3.0, 2.0, 2.0, 3.0, 0.0, 0.0], [3.0, 2.0, 2.0, 2.9, 0.0, 0.0]])
        inputs = {"routing_logits": logits, "bias": torch.zeros(6)}
        ties = find_ties(self.case("moe_topk1_ng3_kg1", inputs))
        assert (ties.tied.tolist(), ties.certain_share.tolist()) == ([True, False], [0.0, 1.0])

    def test_a_tied_token_must_be_similar(self):
        """Half of the experts are certain, so the row has a direction that no other token has."""
        torch.manual_seed(0)
        definition = make_definition(
            {"routing_logits": "float32[n,e]"}, {"output": "float32[n,h]"}, "def run(*x): ...\n", op_type="moe",
            constants={"top_k": 4},
        )  # fmt: skip
        logits = torch.tensor([[9.0, 8.0, 7.0, 3.0, 3.0, 1.0]]).expand(8, -1)
        experts = torch.randn(8, 5, 4096)
        expected = {"output": experts[:, :4].sum(1)}
        check = check_of(MixtureOfExperts(), definition, {"routing_logits": logits}, expected)
        assert not problems(check, {"output": experts[:, [0, 1, 2, 4]].sum(1)}, expected)
        assert problems(check, {"output": expected["output"].roll(1, 0)}, expected)
        assert problems(check, {"output": torch.randn(8, 4096) * 2}, expected)


MOE = """
import torch
def run(routing_logits, hidden_states, w1, w2):
    top, chosen = routing_logits.float().topk(2)
    weights = top.softmax(-1)
    output = torch.zeros_like(hidden_states, dtype=torch.float32)
    for expert in range(w1.shape[0]):
        token, place = (chosen == expert).nonzero(as_tuple=True)
        a, b = (hidden_states[token].float() @ w1[expert].float().T).chunk(2, -1)
        part = (torch.nn.functional.silu(a) * b) @ w2[expert].float().T
        output.index_add_(0, token, part * weights[token, place, None])
    return output.to(hidden_states.dtype)
"""
MOE_SOLUTIONS = {
    "all experts at once": (
        "    output = torch.zeros_like(hidden_states, dtype=torch.float32)\n",
        "    gate = torch.zeros(routing_logits.shape).scatter(1, chosen, weights)\n"
        "    a, b = torch.einsum('nh,ekh->nek', hidden_states.float(), w1.float()).chunk(2, -1)\n"
        "    parts = torch.einsum('nek,ehk->neh', torch.nn.functional.silu(a) * b, w2.float())\n"
        "    return (parts * gate[..., None]).sum(1).to(hidden_states.dtype)\n",
        True,
    ),
    "ties the other way": (
        "routing_logits.float().topk(2)",
        "(routing_logits.float() + 1e-4 * torch.arange(8)).topk(2)",
        True,
    ),
    "one expert": ("weights = top.softmax(-1)", "weights = torch.tensor([1.0, 0.0]).expand(len(top), 2)", False),
    "equal weights": ("weights = top.softmax(-1)", "weights = top * 0 + 0.5", False),
    "an expert less": ("range(w1.shape[0])", "range(w1.shape[0] - 1)", False),
    "gate and value exchanged": ("silu(a) * b", "silu(b) * a", False),
    "no gate": ("torch.nn.functional.silu(a) * b", "a * b", False),
}


@pytest.mark.parametrize("name", MOE_SOLUTIONS)
def test_experts_are_judged(name):
    specs = {"routing_logits": (96, 8), "hidden_states": (96, 32), "w1": (8, 64, 32), "w2": (8, 32, 32)}
    inputs = {one: f"bfloat16[{','.join(['n', *map(str, sizes[1:])])}]" for one, sizes in specs.items()}
    inputs |= {one: inputs[one].replace("n,", "8,") for one in ("w1", "w2")}
    definition = make_definition(inputs, {"output": "bfloat16[n,32]"}, MOE, op_type="moe", constants={"top_k": 2})
    torch.manual_seed(0)
    old, new, is_right = MOE_SOLUTIONS[name]
    assert old in MOE
    tensors = {one: torch.randn(sizes).bfloat16() for one, sizes in specs.items()}
    assert bool(judged(definition, tensors, MOE.replace(old, new))) != is_right


ATTENTION = """
import math, torch
def run(q, kv, sparse_indices, sm_scale):
    output = torch.zeros_like(q)
    lse = torch.full(q.shape[:2], -math.inf)
    for t, row in enumerate(sparse_indices):
        keys = kv[row[row != -1].long()].float()
        if len(keys):
            logits = q[t].float() @ keys.T * sm_scale
            lse[t] = logits.logsumexp(-1) / math.log(2)
            output[t] = (logits.softmax(-1) @ keys).to(q.dtype)
    return output, lse
"""
ATTENTION_SOLUTIONS = {
    "bfloat16 probabilities": ("logits.softmax(-1) @ keys", "logits.softmax(-1).bfloat16().float() @ keys", True),
    "natural logarithm": (" / math.log(2)", "", False),
    "padding is a key": ("row[row != -1]", "row", False),
    "half of the keys": ("row[row != -1]", "row[row != -1][::2]", False),
    "the last key is missing": ("row[row != -1]", "row[row != -1][:-1]", False),
    "no scale": (" * sm_scale", "", False),
    "empty rows are NaN": ("torch.zeros_like(q)", "torch.full_like(q, math.nan)", False),
    "zeros for lse": ("torch.full(q.shape[:2], -math.inf)", "torch.zeros(q.shape[:2])", False),
    "lse a little off": (" / math.log(2)", " / math.log(2) + 0.03", False),
}


@pytest.mark.parametrize("name", ATTENTION_SOLUTIONS)
def test_rows_of_attention_are_judged_by_their_scale(name):
    """Rows of many keys, of few and of none."""
    specs = {"q": "bfloat16[n,4,64]", "kv": "bfloat16[p,64]", "sparse_indices": "int32[n,k]", "sm_scale": "float32"}
    outputs = {"output": "bfloat16[n,4,64]", "lse": "float32[n,4]"}
    torch.manual_seed(0)
    indices = torch.stack([torch.randperm(4096)[:2048] for _ in range(4)])
    indices[1, 5:] = -1
    indices[2] = -1
    tensors = torch.randn(4, 4, 64).bfloat16(), torch.randn(4096, 64).bfloat16(), indices.int()
    inputs = dict(zip(specs, (*tensors, 0.125), strict=True))
    old, new, is_right = ATTENTION_SOLUTIONS[name]
    assert old in ATTENTION
    definition = make_definition(specs, outputs, ATTENTION, op_type="dsa_paged")
    assert bool(judged(definition, inputs, ATTENTION.replace(old, new))) != is_right


DELTA = """
import torch
def run(q, k, v, state, g, beta):
    old = state.float() * g[..., None, None].exp()
    seen = torch.einsum("nhvk,nhk->nhv", old, k.float())
    new = old + torch.einsum("nhv,nhk->nhvk", (v.float() - seen) * beta[..., None], k.float())
    return torch.einsum("nhvk,nhk->nhv", new, q.float()).to(q.dtype), new.to(state.dtype)
"""
DELTA_SOLUTIONS = {
    "other order": (
        "(v.float() - seen) * beta[..., None], k.float()",
        "v.float() - seen, k.float() * beta[..., None]",
        True,
    ),
    "state in bfloat16": ("return", "new = new.bfloat16().float(); return", True),
    "the old state": ("new.to(state.dtype)", "state", False),
    "state without decay": ("new.to(state.dtype)", "(new - old + state).to(state.dtype)", False),
    "state without update": ("new.to(state.dtype)", "old.to(state.dtype)", False),
    "no state": ("new.to(state.dtype)", "torch.zeros_like(state)", False),
    "output of the old state": ('"nhvk,nhk->nhv", new', '"nhvk,nhk->nhv", old', False),
    "no delta": ("v.float() - seen", "v.float()", False),
    "another state's": ("new.to(state.dtype)", "new.to(state.dtype).roll(1, 1)", False),
}


class TestStates:
    @pytest.fixture
    def definition(self):
        heads = "bfloat16[n,2,16]"
        inputs = {**dict.fromkeys("qkv", heads), "state": "float32[n,2,16,16]"}
        inputs |= {"g": "float32[n,2]", "beta": "float32[n,2]"}
        outputs = {"output": heads, "new_state": "float32[n,2,16,16]"}
        return make_definition(inputs, outputs, DELTA, op_type="gated_delta_rule")

    def inputs(self, *, decay=0.3, beta=0.5, dtype=torch.float32):
        torch.manual_seed(0)
        q, k, v = (torch.randn(8, 2, 16) for _ in range(3))
        state = torch.randn(8, 2, 16, 16) * 10 ** torch.randn(8, 2, 1, 1)
        keys = torch.nn.functional.normalize(k, dim=-1)
        return {
            "q": q.bfloat16(), "k": keys.bfloat16(), "v": v.bfloat16(), "state": state.to(dtype),
            "g": torch.full((8, 2), -decay), "beta": torch.full((8, 2), beta),
        }  # fmt: skip

    @pytest.mark.parametrize("name", DELTA_SOLUTIONS)
    def test_outputs_and_states_are_judged_together(self, definition, name):
        old, new, is_right = DELTA_SOLUTIONS[name]
        assert old in DELTA
        assert bool(judged(definition, self.inputs(), DELTA.replace(old, new))) != is_right

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
    @pytest.mark.parametrize(("decay", "beta"), [(0.3, 0.5), (1e-2, 1e-2), (1e-3, 1e-3), (0.0, 0.02)])
    def test_the_old_state_is_never_right_for_a_new_one(self, definition, decay, beta, dtype):
        inputs = self.inputs(decay=decay, beta=beta, dtype=dtype)
        names = {}
        exec(DELTA, names)
        expected = dict(zip(("output", "new_state"), names["run"](*inputs.values()), strict=True))
        check = check_of(StateSpace(), definition, inputs, expected)
        is_visible = not torch.equal(expected["new_state"], inputs["state"])
        part = check.parts["new_state"]
        steps = (expected["new_state"].float() - inputs["state"].float()).abs() / inputs["state"].float().abs()
        is_more_than_a_step = bool((steps > torch.finfo(dtype).eps).any())
        assert ("input state" in part.rejects) == (is_visible and is_more_than_a_step)

    def test_states_that_the_step_leaves_alone_are_left_alone(self):
        state = "float32[s,4,8]"
        definition = make_definition(
            {"state": state, "x": "float32[n]"},
            {"y": "float32[n]", "new_state": state},
            "def run(*x): ...\n",
            op_type="mamba_ssu",
        )
        torch.manual_seed(0)
        old = torch.randn(6, 4, 8)
        new = old.clone()
        new[2] = 0.5 * old[2] + 1
        expected = {"y": torch.randn(3), "new_state": new}
        check = check_of(StateSpace(), definition, {"state": old, "x": torch.randn(3)}, expected)
        assert not problems(check, {"new_state": new + 1e-4 * (new != old)}, expected)
        touched = new.clone()
        touched[4, 1, 1] += 1e-3
        (problem,) = problems(check, {"new_state": touched}, expected)
        assert "new_state: 1 of 192 wrong; first [4, 1, 1] is " in problem
