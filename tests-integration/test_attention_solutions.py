"""Attention and CUDA solutions, compared with their definitions' references on tiny workloads."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import attrs
import pytest
from fib_compile.device import is_cuda_available
from public_data_set import definition_names, needs_data_set
from solution_cases import Case, Check, children
from solution_table import entry_of

GQA_DECODE = "gqa_paged_decode_triton.py"
GQA_DECODE_TORCH = "gqa_paged_decode_torch.py"
GQA_DECODE_CUDA = "gqa_paged_decode.cu"
GQA_PAGED = "gqa_paged_prefill_triton.py"
GQA_RAGGED = "gqa_ragged_prefill_triton.py"
MLA_DECODE = "mla_paged_decode_triton.py"
MLA_PAGED = "mla_paged_prefill_triton.py"
MLA_RAGGED = "mla_ragged_prefill_triton.py"
DSA = "dsa_paged_triton.py"
FAMILIES = (GQA_DECODE, GQA_PAGED, GQA_RAGGED, MLA_DECODE, MLA_PAGED, MLA_RAGGED, DSA)


def _paged(
    solution: str,
    definition: str,
    kv_indptr: list[int],
    last: list[int] | None = None,
    qo_indptr: list[int] | None = None,
) -> Case:
    """A case of attention over these pages; with ragged keys, a page is one key.

    Args:
        solution: The file of the solution.
        definition: The name of the definition.
        kv_indptr: Offsets of pages.
        last: Lengths of the last pages, where pages have more than one token.
        qo_indptr: Offsets of queries, for a prefill.
    """
    total = kv_indptr[-1]
    axes = {"batch_size": len(kv_indptr) - 1, "len_indptr": len(kv_indptr), "num_pages": total + 3}
    axes |= {"num_kv_indices": total, "total_kv": total, "total_q": qo_indptr[-1] if qo_indptr else 0}
    given = {"kv_indptr": kv_indptr, "kv_last_page_len": last, "qo_indptr": qo_indptr}
    return Case(solution, definition, axes, {name: values for name, values in given.items() if values})


HARD_CASES = (
    _paged(GQA_DECODE, "gqa_paged_decode_h5_kv1_d128_ps1", [0, 0, 3, 73, 74]),
    _paged(GQA_DECODE, "gqa_paged_decode_h24_kv8_d128_ps1", [0, 2, 2]),
    _paged(GQA_DECODE, "gqa_paged_decode_h6_kv1_d128_ps64", [0, 5, 5, 6], [17, 1, 9]),
    _paged(GQA_DECODE, "gqa_paged_decode_h16_kv2_d128_ps64", [0, 20, 20, 21], [17, 1, 9]),
    _paged(GQA_DECODE, "gqa_paged_decode_h32_kv4_d128_ps64", [0, 1, 3], [64, 1]),
    _paged(GQA_PAGED, "gqa_paged_prefill_causal_h24_kv8_d128_ps1", [0, 90, 90, 95], None, [0, 9, 11, 11]),
    _paged(GQA_PAGED, "gqa_paged_prefill_causal_h6_kv1_d128_ps1", [0, 20, 95], None, [0, 20, 24]),
    _paged(GQA_PAGED, "gqa_paged_prefill_causal_h5_kv1_d128_ps64", [0, 1, 2, 4, 6], [7, 64, 9, 30], [0, 3, 3, 4, 34]),
    _paged(GQA_PAGED, "gqa_paged_prefill_causal_h16_kv1_d128_ps64", [0, 2], [64, 0], [0, 12]),
    _paged(GQA_RAGGED, "gqa_ragged_prefill_causal_h24_kv8_d128", [0, 90, 90, 95], None, [0, 9, 11, 11]),
    _paged(GQA_RAGGED, "gqa_ragged_prefill_causal_h5_kv1_d128", [0, 0, 30, 103], None, [0, 0, 30, 34]),
    _paged(GQA_RAGGED, "gqa_ragged_prefill_causal_h32_kv4_d128", [0, 70, 71], None, [0, 70, 71]),
    _paged(MLA_DECODE, "mla_paged_decode_h8_ckv512_kpe64_ps1", [0, 0, 3, 40]),
    _paged(MLA_DECODE, "mla_paged_decode_h16_ckv512_kpe64_ps64", [0, 4, 4, 5], [17, 1, 64]),
    _paged(MLA_PAGED, "mla_paged_prefill_causal_h8_ckv512_kpe64_ps1", [0, 50, 50, 52], None, [0, 9, 11, 11]),
    _paged(MLA_PAGED, "mla_paged_prefill_causal_h16_ckv512_kpe64_ps64", [0, 1, 2, 4], [30, 64, 9], [0, 2, 2, 9]),
    _paged(MLA_RAGGED, "mla_ragged_prefill_causal_h8_qk192_vo128", [0, 90, 90, 95], None, [0, 9, 11, 11]),
    _paged(MLA_RAGGED, "mla_ragged_prefill_causal_h16_qk192_vo128", [0, 20, 93], None, [0, 20, 21]),
    Case(DSA, "dsa_sparse_attention_h16_ckv512_kpe64_topk2048_ps1", {"num_tokens": 3, "num_pages": 150}),
    Case(DSA, "dsa_sparse_attention_h16_ckv512_kpe64_topk2048_ps64", {"num_tokens": 3, "num_pages": 3}),
)
"""Sequences without keys, without queries, shorter than a page, with fewer queries than keys; padding."""
PADDED_CASES = (
    attrs.evolve(
        _paged(GQA_DECODE, "gqa_paged_decode_h5_kv1_d128_ps1", [0, 0, 3, 73, 74]),
        replays=[
            {"kv_indptr": [0, 40, 41, 300, 300]},
            {"kv_indptr": [0, 1, 2, 3, 3]},
            {"kv_indptr": [0, 0, 0, 0, 400]},
        ],
        buffer=400,
        about="padded",
    ),
    attrs.evolve(
        _paged(GQA_DECODE, "gqa_paged_decode_h6_kv1_d128_ps64", [0, 5, 5, 6], [17, 1, 9]),
        replays=[
            {"kv_indptr": [0, 1, 9, 9], "kv_last_page_len": [64, 3, 1]},
            {"kv_indptr": [0, 1, 1, 2], "kv_last_page_len": [1, 1, 64]},
        ],
        buffer=20,
        about="padded",
    ),
    attrs.evolve(
        _paged(GQA_DECODE_TORCH, "gqa_paged_decode_h6_kv1_d128_ps64", [0, 5, 5, 6], [17, 1, 9]),
        replays=[{"kv_indptr": [0, 1, 9, 9], "kv_last_page_len": [64, 3, 1]}, {"kv_indptr": [0, 1, 4, 20]}],
        buffer=20,
        about="padded",
    ),
    attrs.evolve(
        _paged(MLA_DECODE, "mla_paged_decode_h8_ckv512_kpe64_ps1", [0, 0, 3, 40]),
        replays=[{"kv_indptr": [0, 20, 90, 91]}, {"kv_indptr": [0, 1, 2, 2]}],
        buffer=150,
        about="padded",
    ),
    attrs.evolve(
        _paged(MLA_DECODE, "mla_paged_decode_h16_ckv512_kpe64_ps64", [0, 4, 4, 5], [17, 1, 64]),
        replays=[{"kv_indptr": [0, 1, 6, 6], "kv_last_page_len": [64, 3, 1]}],
        buffer=11,
        about="padded",
    ),
)
"""Page numbers in a longer buffer whose rest is no pages, and other totals at the same addresses."""
PACKED_CASES = tuple(
    attrs.evolve(case, is_packed=True, about="packed")
    for case in HARD_CASES
    if case.solution in (GQA_DECODE, GQA_PAGED)
)
"""Queries cut out of the output of one product, and keys and values that lie in one tensor, as engines have them."""
CUDA_CASES = (
    Case("rmsnorm.cu", "rmsnorm_h128", {"batch_size": 5}),
    Case("rmsnorm.cu", "rmsnorm_h1536", {"batch_size": 1}),
    Case("rmsnorm.cu", "rmsnorm_h7168", {"batch_size": 5}),
    Case("fused_add_rmsnorm.cu", "fused_add_rmsnorm_h2048", {"batch_size": 5}),
    Case("fused_add_rmsnorm.cu", "fused_add_rmsnorm_h7168", {"batch_size": 1}),
    Case("gemm.cu", "gemm_n128_k2048", {"M": 1}),
    Case("gemm.cu", "gemm_n256_k7168", {"M": 70}),
    Case("gemm.cu", "gemm_n2048_k5376", {"M": 300}),
    *(
        attrs.evolve(case, solution=GQA_DECODE_CUDA)
        for case in HARD_CASES + PADDED_CASES + PACKED_CASES
        if case.solution == GQA_DECODE and entry_of(GQA_DECODE_CUDA).implements(case.definition)
    ),
)
FAMILY_CASES = [Case(file, name) for file in FAMILIES for name in definition_names() if entry_of(file).implements(name)]

pytestmark = needs_data_set
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="needs the extra 'triton'")


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Check]:
    """Checks a case on the CPU, through Triton's interpreter."""
    yield from children("cpu", tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def on_gpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Check]:
    """Checks a case on a CUDA device."""
    if not is_cuda_available():
        pytest.skip("there is no CUDA device")
    yield from children("cuda:0", tmp_path_factory.mktemp("cache"))


@needs_triton
@pytest.mark.parametrize("case", HARD_CASES + PADDED_CASES + PACKED_CASES, ids=str)
def test_solution_agrees_with_the_reference(case: Case, interpreted: Check) -> None:
    interpreted(case)


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("case", FAMILY_CASES, ids=str)
def test_solution_agrees_for_every_definition_of_its_family(case: Case, interpreted: Check) -> None:
    interpreted(case)


@pytest.mark.gpu
@pytest.mark.parametrize("case", HARD_CASES + PADDED_CASES + PACKED_CASES + CUDA_CASES, ids=str)
def test_solution_agrees_on_a_device_and_from_a_cuda_graph(case: Case, on_gpu: Check) -> None:
    on_gpu(case)


@pytest.mark.gpu
@pytest.mark.parametrize("case", FAMILY_CASES, ids=str)
def test_solution_agrees_for_its_family_on_a_device(case: Case, on_gpu: Check) -> None:
    on_gpu(case)
