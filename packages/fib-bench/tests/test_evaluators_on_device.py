"""Tests that every check gives the same result on a CUDA device as on the CPU."""

import attrs
import pytest
import torch
from fib_bench import ResolvedEvalConfig
from fib_bench.evaluators import evaluator_for
from fib_bench.evaluators.protocol import Case, Observation
from fib_bench.evaluators.sampling import Sampling

from .samples import make_definition

NOTHING = "def run(*tensors): ...\n"

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def on_device(tensors):
    return {name: value.cuda() if isinstance(value, torch.Tensor) else value for name, value in tensors.items()}


def indices():
    scores = torch.randn(8, 512)
    expected = scores.topk(16)
    return {"scores": scores}, {"ids": expected.indices}, {"ids": (scores + 0.3 * torch.randn(8, 512)).topk(16).indices}


def quantised():
    x, scale = torch.randn(32, 64), torch.rand(32, 1) + 0.5
    expected = {"y": x.to(torch.float8_e4m3fn), "y_scale": scale}
    return {"x": x}, expected, {"y": (x * 1.3).to(torch.float8_e4m3fn), "y_scale": scale}


def experts():
    y = torch.randn(64, 128).bfloat16()
    logits = torch.randint(0, 20, (64, 16)).bfloat16()
    return (
        {"routing_logits": logits},
        {"output": y},
        {"output": torch.where(torch.arange(64)[:, None] % 8 == 0, 0.0, y)},
    )


def attention():
    y, lse = torch.randn(6, 4, 64).bfloat16(), torch.randn(6, 4)
    y[2], lse[2] = 0, -torch.inf
    return {"q": y}, {"output": y, "lse": lse}, {"output": y * 1.05, "lse": lse.nan_to_num(neginf=0.0)}


def states():
    old = torch.randn(6, 2, 16, 16)
    new = torch.cat([old[:3] * 0.9 + 0.1, old[3:]])
    y = torch.randn(6, 2, 16).bfloat16()
    return {"state": old}, {"output": y, "new_state": new}, {"output": y, "new_state": old}


KINDS = {
    "top_k": (indices, {"scores": "float32[n,v]"}, {"ids": "int64[n,k]"}),
    "low_precision": (quantised, {"x": "float32[n,m]"}, {"y": "float8_e4m3fn[n,m]", "y_scale": "float32[n,1]"}),
    "moe": (experts, {"routing_logits": "bfloat16[n,e]"}, {"output": "bfloat16[n,h]"}),
    "sparse_attention": (attention, {"q": "bfloat16[n,h,d]"}, {"output": "bfloat16[n,h,d]", "lse": "float32[n,h]"}),
    "state_space": (
        states,
        {"state": "float32[n,h,d,d]"},
        {"output": "bfloat16[n,h,d]", "new_state": "float32[n,h,d,d]"},
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_verdicts_are_those_of_the_cpu(kind):
    torch.manual_seed(0)
    make, inputs, outputs = KINDS[kind]
    constants = {"top_k": 4} if kind == "moe" else {}
    definition = make_definition(inputs, outputs, NOTHING, op_type=kind, constants=constants)
    config = attrs.evolve(ResolvedEvalConfig(), evaluator=kind)
    evaluator = evaluator_for(definition, config)
    config = evaluator.settings(config)
    given, expected, wrong = make()
    verdicts = []
    for move in (dict, on_device):
        case = Case(definition=definition, inputs=move(given), expected=move(expected), config=config)
        check = evaluator.check(case)
        right = check.compare(case.expected, case.expected)
        assert not right.problems
        verdicts.append((check.to_extra(), right.comparisons, check.compare(move(wrong), case.expected)))
    assert verdicts[0] == verdicts[1]
    assert verdicts[0][2].problems


@pytest.mark.parametrize("is_right", [True, False])
def test_draws_are_judged(is_right):
    torch.manual_seed(0)
    definition = make_definition(
        {"probs": "float32[n,v]", "top_k": "int32[n]", "top_p": "float32[n]"},
        {"samples": "int64[n]"},
        "def run(p, k, t): return torch.multinomial(p, 1)\n",
        op_type="sampling",
    )
    probs = torch.softmax(3 * torch.randn(16, 20_000, device="cuda"), dim=-1)
    inputs = {"probs": probs, "top_k": torch.full((16,), 40, device="cuda"), "top_p": torch.ones(16, device="cuda")}
    best = probs.topk(40)
    weights = best.values if is_right else torch.ones_like(best.values)
    calls = [best.indices.gather(1, torch.multinomial(weights, 1))[:, 0] for _ in range(200)]
    expected = {"samples": calls[0]}
    check = Sampling().check(Case(definition=definition, inputs=inputs, expected=expected, config=ResolvedEvalConfig()))
    assert not any(check.compare({"samples": call}, expected).problems for call in calls)
    verdict = Sampling().judge_together([Observation(check, {"samples": call}) for call in calls])
    assert bool(verdict.problems) != is_right
