"""Solutions of recurrent ops and of rotary embedding, compared with the references on small workloads."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest
from fib_compile.device import is_cuda_available
from public_data_set import needs_data_set
from solution_cases import Case, Check, children

GDN = "gdn_triton.py"
SSU = "mamba_ssu_decode_triton.py"
ROPE = "rope_triton.py"
HEADS = {"num_q_heads": 2, "num_k_heads": 2, "num_v_heads": 4}
"""Fewer heads than in the data set; every solution reads them from the tensors."""


def _decode(about: str, batch: int, **options: Any) -> Case:
    axes = {"batch_size": batch}
    return Case(GDN, "gdn_decode_qk8_v16_d128_k_last", axes, constants=HEADS, about=about, **options)


def _several(about: str, slots: list[int], tokens: int) -> Case:
    """A case of several tokens per sequence; the reference writes to the optional buffer, which is no output."""
    axes, absent = {"batch_size": len(slots), "seq_len": tokens, "pool_size": 5}, ("intermediate_states_buffer",)
    tensors = {"initial_state_indices": slots}
    return Case(GDN, "gdn_mtp_qk8_v16_d128_k_last", axes, tensors, HEADS, absent, about=about)


def _prefill(about: str, offsets: list[int], **options: Any) -> Case:
    axes = {"total_seq_len": offsets[-1], "num_seqs": len(offsets) - 1, "len_cu_seqlens": len(offsets)}
    tensors = {"cu_seqlens": offsets}
    return Case(GDN, "gdn_prefill_qk8_v16_d128_k_last", axes, tensors, HEADS, about=about, **options)


def _update(about: str, slots: list[int], **options: Any) -> Case:
    axes, tensors = {"batch_size": len(slots), "state_cache_size": 6}, {"state_batch_indices": slots}
    constants = {"nheads": 8, "ngroups": 2}
    return Case(SSU, "mamba_ssu_decode_h64_d64_s128_ng4", axes, tensors, constants, about=about, **options)


def _rotation(about: str, positions: list[int], query_heads: int, key_heads: int) -> Case:
    axes = {"num_tokens": len(positions), "num_qo_heads": query_heads, "num_kv_heads": key_heads, "max_seq_len": 40}
    return Case(ROPE, "rope_with_cos_sin_cache_neox_style_d128_rd64", axes, {"positions": positions}, about=about)


CASES = (
    _decode("one sequence", 1),
    _decode("three sequences", 3, seed=1),
    _decode("five sequences", 5, seed=2),
    _decode("no state", 2, absent=("state",)),
    _decode("default scale", 2, tensors={"scale": 0.0}),
    Case(GDN, "gdn_decode_qk4_v8_d128_k_last", {"batch_size": 2}),
    _several("three tokens", [4, 0, 2], tokens=3),
    _several("shared state", [1, 1], tokens=2),
    _prefill("one sequence", [0, 7]),
    _prefill("empty sequences", [0, 0, 1, 6, 6], seed=3),
    _prefill("no state", [0, 4, 9], absent=("state",)),
    _update("one sequence", [5]),
    _update("padding", [-1, 3, -1, 0], seed=1),
    _update("shared states", [2, 1, 2, -1], seed=2),
    _update("padding only", [-1, -1]),
    Case(SSU, "mamba_ssu_decode_h128_d64_s128_ng8", {"batch_size": 2, "state_cache_size": 4}),
    _rotation("one token", [39], 8, 8),
    _rotation("odd heads", [3, 0, 0, 39, 7], 17, 1),
    _rotation("one head", [1, 2], 1, 1),
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
