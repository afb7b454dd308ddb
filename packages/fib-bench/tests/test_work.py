"""Tests of the work of attention and experts, against loops over sequences, queries and tokens."""

import pytest
import torch
from fib_bench.timing.work import Work, work_of
from hypothesis import given, settings
from hypothesis import strategies as st

from .samples import make_definition

HEADS, KV_HEADS, DIM = 4, 2, 8
REFERENCE = "def run(*inputs):\n    raise AssertionError('not called')\n"


def paged(name, size, *, has_last, is_prefill):
    rows = "total_q" if is_prefill else "batch"
    inputs = {
        "q": f"bfloat16[{rows},h,d]",
        "k_cache": "bfloat16[pages,page_size,kv,d]",
        "v_cache": "bfloat16[pages,page_size,kv,d]",
        **({"qo_indptr": "int32[ends]"} if is_prefill else {}),
        "kv_indptr": "int32[ends]",
        "kv_indices": "int32[entries]",
        **({"kv_last_page_len": "int32[batch]"} if has_last else {}),
        "sm_scale": "float32",
    }
    outputs = {"output": f"bfloat16[{rows},h,d]", "lse": f"float32[{rows},h]"}
    axes = {"h": HEADS, "kv": KV_HEADS, "d": DIM, "page_size": size, "head_dim": DIM}
    return make_definition(inputs, outputs, REFERENCE, op_type="gqa_paged", name=name, constants=axes)


SEQUENCES = st.lists(st.tuples(st.integers(0, 4), st.lists(st.integers(0, 9), max_size=5)), min_size=1, max_size=5)


@settings(max_examples=200)
@given(SEQUENCES, st.sampled_from([1, 3]), st.booleans(), st.data())
def test_pages_are_read_once_and_only_by_queries_that_see_them(sequences, size, is_prefill, data):
    last = [data.draw(st.integers(1, size)) for _ in sequences]
    definition = paged("prefill_causal" if is_prefill else "decode", size, has_last=size > 1, is_prefill=is_prefill)
    read, rows, visible = set(), 0, 0
    for (queries, pages), used in zip(sequences, last, strict=True):
        tokens = [(page, place) for page in pages for place in range(size)]
        tokens = tokens[: len(tokens) - (size - used if size > 1 and pages else 0)]
        count = queries if is_prefill else 1
        for query in range(count):
            seen = len(tokens) - count + query + 1 if is_prefill else len(tokens)
            if seen > 0:
                rows, visible = rows + 1, visible + seen
                read.update(tokens[:seen])
    indices = [page for _, pages in sequences for page in pages]
    values = {
        "qo_indptr": ends([queries for queries, _ in sequences]),
        "kv_indptr": ends([len(pages) for _, pages in sequences]),
        "kv_indices": torch.tensor(indices, dtype=torch.int32),
        "kv_last_page_len": torch.tensor(last, dtype=torch.int32),
    }
    total = sum(queries for queries, _ in sequences)
    axes = {"batch": len(sequences), "total_q": total, "ends": len(sequences) + 1, "pages": 10, "entries": len(indices)}
    found = work_of(definition, axes, values)
    ends_and_last = (2 if is_prefill else 1) * (len(sequences) + 1) + (len(sequences) if size > 1 else 0)
    integers = 4 * (len(indices) + ends_and_last)
    assert found == Work(
        read_bytes=rows * HEADS * DIM * 2 + len(read) * 2 * KV_HEADS * DIM * 2 + integers,
        written_bytes=rows * (HEADS * DIM * 2 + HEADS * 4),
        operations=2 * HEADS * 2 * DIM * visible,
        operand_bytes=2.0,
        is_certain=False,
    )


def ends(lengths):
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)


def test_ragged_keys_without_queries_are_not_read():
    definition = make_definition(
        {
            "q": "bfloat16[total_q,h,d]",
            "k": "bfloat16[total_kv,kv,d]",
            "v": "bfloat16[total_kv,kv,d]",
            "qo_indptr": "int32[ends]",
            "kv_indptr": "int32[ends]",
        },
        {"output": "bfloat16[total_q,h,d]"},
        REFERENCE,
        op_type="gqa_ragged",
        name="ragged_causal",
        constants={"h": HEADS, "kv": KV_HEADS, "d": DIM, "head_dim": DIM},
    )
    values = {"qo_indptr": ends([2, 0]), "kv_indptr": ends([3, 7])}
    found = work_of(definition, {"total_q": 2, "total_kv": 10, "ends": 3}, values)
    assert found.read_bytes == 2 * HEADS * DIM * 2 + 3 * 2 * KV_HEADS * DIM * 2 + 2 * 3 * 4
    assert found.operations == 2 * HEADS * 2 * DIM * (2 + 3)


def test_sparse_attention_reads_the_tokens_that_are_named():
    definition = make_definition(
        {
            "q_nope": "bfloat16[n,h,c]",
            "q_pe": "bfloat16[n,h,p]",
            "ckv_cache": "bfloat16[pages,page_size,c]",
            "kpe_cache": "bfloat16[pages,page_size,p]",
            "sparse_indices": "int32[n,topk]",
        },
        {"output": "bfloat16[n,h,c]"},
        REFERENCE,
        op_type="dsa_paged",
        constants={"h": 2, "c": 8, "p": 4, "page_size": 1, "topk": 3, "head_dim_ckv": 8, "head_dim_kpe": 4},
    )
    indices = torch.tensor([[5, 6, -1], [6, 7, 5], [-1, -1, -1]], dtype=torch.int32)
    found = work_of(definition, {"n": 3, "pages": 10}, {"sparse_indices": indices})
    read_bytes = 2 * 2 * 12 * 2 + 3 * 12 * 2 + 9 * 4
    assert found == Work(read_bytes, 2 * 2 * 8 * 2, 2 * 2 * (12 + 8) * 5, 2.0, is_certain=False)


@pytest.mark.parametrize("offset", [None, 0, 2])
def test_only_local_experts_that_were_chosen_are_read(offset):
    scalars = {} if offset is None else {"local_expert_offset": "int32"}
    definition = make_definition(
        {
            "routing_logits": "float32[n,all]",
            "hidden_states": "float16[n,d]",
            "gemm1_weights": "float8_e4m3fn[e,g,d]",
            "gemm1_weights_scale": "float32[e,1]",
            "gemm2_weights": "float8_e4m3fn[e,d,i]",
            **scalars,
        },
        {"output": "bfloat16[n,d]"},
        REFERENCE,
        op_type="moe",
        constants={"all": 6, "e": 3, "g": 8, "d": 16, "i": 4, "top_k": 2},
    )
    logits = torch.full((4, 6), -1.0)
    for token, experts in enumerate([(0, 1), (1, 2), (1, 5), (4, 5)]):
        logits[token, list(experts)] = 1.0
    found = work_of(definition, {"n": 4}, {"routing_logits": logits, "local_expert_offset": offset})
    chosen = [0, 1, 1, 2, 1] if offset != 2 else [2 - 2, 4 - 2]
    weights = 8 * 16 + 16 * 4
    assert found.read_bytes == len(set(chosen)) * (weights + 4) + 4 * 6 * 4 + 4 * 16 * 2
    assert found.operations == 2 * len(chosen) * weights
    assert found.operand_bytes == 1.0


def test_inputs_of_other_names_or_no_values_give_no_work():
    definition = paged("decode", 1, has_last=False, is_prefill=False)
    assert work_of(definition, {"batch": 1, "ends": 2, "pages": 1, "entries": 1}) is None
    other = make_definition({"x": "float32[n]"}, {"y": "float32[n]"}, REFERENCE, op_type="moe")
    assert work_of(other, {"n": 1}, {"x": torch.ones(1)}) is None
