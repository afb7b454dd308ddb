"""Solutions of mixtures of experts, judged by their evaluator on few small experts."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest
from fib_compile.device import is_cuda_available
from public_data_set import needs_data_set
from solution_cases import Case, Check, children

MOE = "moe_triton.py"
FP8_GROUPED = "moe_fp8_block_scale_ds_routing_topk8_ng8_kg4_e32_h7168_i2048"
FP8_BIASED = "moe_fp8_block_scale_ds_routing_topk8_ng1_kg1_e384_h7168_i2048"
FP8_RENORM = "moe_fp8_block_scale_renorm_topk8_e128_h2048_i768"
FP8_TENSOR = "trtllm_fp8_per_tensor_scale_moe_topk8_e128_h2048_i768"
FP8_TENSOR_SINGLE = "trtllm_fp8_per_tensor_scale_moe_topk1_e16_h5120_i8192"
FP4 = "trtllm_fp4_block_scale_moe_topk8_e128_h2048_i768"
FP4_SINGLE = "trtllm_fp4_block_scale_moe_topk1_e16_h5120_i8192"
FP4_ROUTED = "trtllm_fp4_block_scale_routed_moe_topk8_e64_h4096_i1536"
FP4_ROUTED_SINGLE = "trtllm_fp4_block_scale_routed_moe_topk1_e16_h5120_i8192"
SMALL = {"hidden_size": 256, "intermediate_size": 128}
EXPERTS = 12
_EXPERT_AXES = {
    FP8_GROUPED: {"num_local_experts": 64},  # the groups depend on the number of all experts, which stays
    FP8_BIASED: {"num_experts": EXPERTS, "num_local_experts": EXPERTS},
    FP8_RENORM: {"num_local_experts": EXPERTS},
}
_BFLOAT16_HALF = 0x3F00
"""The bits of 0.5."""


def _case(definition: str, about: str, tokens: int, **options: Any) -> Case:
    constants = SMALL | _EXPERT_AXES.get(definition, {"num_experts": EXPERTS})
    return Case(MOE, definition, {"seq_len": tokens}, constants=constants, about=about, **options)


def _logits(definition: str, about: str, rows: list[list[float]], **tensors: Any) -> Case:
    return _case(definition, about, len(rows), tensors={"routing_logits": rows, **tensors})


def _routed(definition: str, about: str, experts: list[list[int]]) -> Case:
    """A case of packed experts, each with the weight 0.5."""
    packed = [[expert << 16 | _BFLOAT16_HALF for expert in row] for row in experts]
    return _case(definition, about, len(experts), tensors={"topk_ids": packed})


LOGIT_DEFINITIONS = (FP8_RENORM, FP8_TENSOR, FP8_TENSOR_SINGLE, FP4, FP4_SINGLE)
ONE_EXPERT = [[float(expert == 7) * 9 - 0.125 * expert for expert in range(EXPERTS)]] * 40
TIES = [[0.0] * EXPERTS] * 3
CASES = (
    *(_case(name, "one token", 1) for name in (*LOGIT_DEFINITIONS, FP8_BIASED, FP4_ROUTED, FP4_ROUTED_SINGLE)),
    *(_case(name, f"{tokens} tokens", tokens, seed=tokens) for name in LOGIT_DEFINITIONS for tokens in (5, 33)),
    *(_logits(name, "all tokens to one expert", ONE_EXPERT) for name in LOGIT_DEFINITIONS),
    *(_logits(name, "ties", TIES) for name in LOGIT_DEFINITIONS),
    *(_case(name, "large tiles", 50) for name in (FP8_RENORM, FP4)),
    _case(FP8_BIASED, "more tokens", 21, seed=1, tensors={"routed_scaling_factor": 1.5}),
    *(
        _case(FP8_GROUPED, f"offset {offset}", 9, seed=offset, tensors={"local_expert_offset": offset})
        for offset in (0, 64, 192, 224)
    ),
    _routed(FP4_ROUTED, "repeated experts", [[3] * 8, [0, 1, 2, 3, 3, 2, 1, 0], [11] * 8]),
    _routed(FP4_ROUTED, "experts elsewhere", [[-1, 12, 99, 0, 5, 12, -1, 11], [4, 5, 6, 7, 8, 9, 10, 11]]),
    _routed(FP4_ROUTED_SINGLE, "one expert", [[7]] * 20),
)

pytestmark = needs_data_set


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Check]:
    """Checks a case on the CPU, through Triton's interpreter."""
    if find_spec("triton") is None:
        pytest.skip("needs the extra 'triton'")
    yield from children("cpu", tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def on_gpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Check]:
    """Checks a case on a CUDA device."""
    if not is_cuda_available():
        pytest.skip("there is no CUDA device")
    yield from children("cuda:0", tmp_path_factory.mktemp("cache"))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_solution_agrees_with_the_reference(case: Case, interpreted: Check) -> None:
    interpreted(case)


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=str)
def test_solution_agrees_on_a_device_and_from_a_cuda_graph(case: Case, on_gpu: Check) -> None:
    on_gpu(case)
