"""Tests of input synthesis: values that are valid for their op."""

import pytest
import torch
from fib_bench import InputError, make_inputs
from fib_bench.inputs.generation import make_input_values
from fib_bench.inputs.synthesis import split
from fib_schema import AxisVar, Definition, DType, RandomInput, SafetensorsInput, TensorSpec, Workload
from hypothesis import given
from hypothesis import strategies as st

from .samples import make_definition, make_workload


def synthesized(inputs, *, op_type="elementwise", constraints=(), uuid="w", **axes):
    """Make random inputs: ``synthesized({"x": "float32[n]"}, n=4)``."""
    extra = {"spare": f"float32[{','.join(axes)}]?"} if axes else {}  # so that every axis is known
    definition = make_definition(
        inputs | extra, {"y": "float32[]"}, "def run(*args): ...", op_type=op_type, constraints=constraints
    )
    workload = make_workload(definition, axes, uuid, spare=None)
    return make_inputs(definition, workload, seed=0)


@given(st.integers(0, 500), st.integers(0, 20), st.integers(0, 2**32))
def test_a_total_is_split_into_parts_of_at_least_one_if_there_is_enough(total, parts, seed):
    lengths = split(total, parts, torch.Generator().manual_seed(seed))
    assert len(lengths) == parts
    assert sum(lengths) == (total if parts else 0)
    assert all(length >= (1 if total >= parts else 0) for length in lengths)


@given(batch=st.integers(1, 12), pages=st.integers(0, 60), seed=st.integers(0, 99))
def test_index_pointers_begin_at_0_do_not_fall_and_end_at_the_total(batch, pages, seed):
    inputs = synthesized(
        {"kv_indptr": "int32[len_indptr]", "kv_indices": "int32[num_kv_indices]", "cache": "float32[num_pages]"},
        op_type="gqa_paged",
        constraints=("num_kv_indices == kv_indptr[-1].item()",),
        uuid=f"w{seed}",
        len_indptr=batch + 1,
        num_kv_indices=pages,
        num_pages=pages + 3,
    )
    pointer, indices = inputs["kv_indptr"], inputs["kv_indices"]
    assert (int(pointer[0]), int(pointer[-1])) == (0, pages)
    assert bool((pointer.diff() >= 0).all())
    assert len(indices.unique()) == pages
    assert all(0 <= index < pages + 3 for index in indices.tolist())


def test_queries_are_no_longer_than_their_keys_in_whatever_order_they_stand():
    paged = {"qo_indptr": "int32[len]", "kv_indptr": "int32[len]", "kv_last_page_len": "int32[batch]"}
    constraints = ("total_q == qo_indptr[-1].item()", "num_kv_indices == kv_indptr[-1].item()")
    ragged = {"cu_seqlens_q": "int32[len]", "cu_seqlens_k": "int32[len]"}
    totals = ("cu_seqlens_q[-1] == total_q", "total_k == cu_seqlens_k[-1]")
    for seed in range(20):
        axes = {"len": 6, "batch": 5, "total_q": 40, "num_kv_indices": 12, "page_size": 4}
        inputs = synthesized(paged, constraints=constraints, uuid=f"w{seed}", **axes)
        last = inputs["kv_last_page_len"]
        assert bool((inputs["qo_indptr"].diff() <= (inputs["kv_indptr"].diff() - 1) * 4 + last).all())
        assert bool(((last >= 1) & (last <= 4)).all())
        found = synthesized(ragged, constraints=totals, uuid=f"w{seed}", len=5, total_q=20, total_k=24)
        assert bool((found["cu_seqlens_q"].diff() <= found["cu_seqlens_k"].diff()).all())


@pytest.mark.parametrize(
    ("name", "recorded", "enlarged"),
    [
        ("causal_prefill", {"total_q": 9, "num_kv_indices": 1, "num_pages": 0}, {"num_kv_indices": 5, "num_pages": 1}),
        ("causal_prefill", {"total_q": 2, "num_kv_indices": 3, "num_pages": 7}, {"total_q": 3}),
        ("append", {"total_q": 9, "num_kv_indices": 1, "num_pages": 7}, {"num_kv_indices": 3}),
        ("causal_prefill", {"total_q": 5, "num_kv_indices": 4, "num_pages": 7}, {}),
    ],
)
def test_recorded_sizes_that_exclude_all_offsets_are_enlarged(name, recorded, enlarged):
    inputs = {"qo_indptr": "int32[len]", "kv_indptr": "int32[len]", "kv_indices": "int32[num_kv_indices]"}
    tensors = {"q": "float32[total_q]", "cache": "float32[num_pages,page_size]"}
    reference = "def run(*args): ..."
    definition = make_definition(
        inputs | tensors, {"y": "float32[]"}, reference, name=name, constants={"page_size": 2},
        constraints=("total_q == qo_indptr[-1].item()", "num_kv_indices == kv_indptr[-1].item()"),
    )  # fmt: skip
    sources = {each: SafetensorsInput("missing.safetensors", each) for each in inputs}
    workload = Workload({"len": 4, **recorded}, {**sources, "q": RandomInput(), "cache": RandomInput()}, "w")
    made = make_input_values(
        definition, workload, seed=0, root=None, synthesize_missing=True, device="cpu", distribution="normal"
    )
    assert made.axes == {"len": 4, **recorded, **enlarged, "page_size": 2}
    assert torch.as_tensor(made.values["kv_indices"]).numel() == made.axes["num_kv_indices"]


def test_page_indices_repeat_only_where_there_are_too_few_pages():
    few = synthesized({"kv_indices": "int32[n]"}, n=10, num_pages=4)["kv_indices"]
    assert set(few.tolist()) <= set(range(4))
    many = synthesized({"kv_indices": "int32[n]"}, n=10, num_pages=10)["kv_indices"]
    assert sorted(many.tolist()) == list(range(10))


def test_sparse_indices_are_padded_with_minus_one():
    indices = synthesized({"sparse_indices": "int32[n,topk]"}, n=3, topk=8, num_pages=3, page_size=2)["sparse_indices"]
    assert indices[:, 6:].eq(-1).all()
    assert all(sorted(row) == list(range(6)) for row in indices[:, :6].tolist())


def test_expert_ids_differ_within_a_token():
    ids = synthesized({"topk_ids": "int32[tokens,k]"}, tokens=9, k=4, num_experts=5)["topk_ids"]
    assert all(len(set(row)) == 4 and set(row) <= set(range(5)) for row in ids.tolist())


def test_packed_fp4_tensors_hold_all_numbers_two_to_a_byte():
    weights = synthesized({"w": "float4_e2m1[n,half]"}, n=100, half=64)["w"]
    assert tuple(weights.shape) == (100, 64)
    pairs = weights.view(torch.uint8)
    assert len(pairs.unique()) == 256


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, "int32") for name in ("batch_indices", "token_indices", "qo_indices")]
    + [("mystery", dtype) for dtype in ("int16", "int32", "int64")],
)
def test_integers_that_no_rule_knows_are_refused_and_not_made_up(name, dtype):
    """Numbers of requests are no page numbers."""
    with pytest.raises(InputError, match=f"integer input '{name}'; state their range as its description"):
        synthesized({name: f"{dtype}[n]"}, n=3, num_pages=9)


@pytest.mark.parametrize(
    ("inputs", "axes", "said"),
    [
        ({"w_scale": "float4_e2m1[n]"}, {"n": 4}, "no rule makes valid values for packed input"),
        ({"probs": "float4_e2m1[n]"}, {"n": 4}, "no rule makes valid values for packed input"),
        ({"cos_sin_cache": "float4_e2m1[n]"}, {"n": 4}, "no rule makes valid values for packed input"),
        ({"kv_indptr": "int32[n]"}, {"n": 3}, "no constraint states the last offset of 'kv_indptr'; add 'AXIS == kv"),
        ({"kv_indptr": "int32[n]", "indptr": "int32[n]"}, {"n": 3, "total": 4}, "no constraint .* of 'indptr'; add"),
        ({"kv_indptr": "int32[n]"}, {"n": 1, "total": 4}, "1 offsets cannot end at 4"),
        ({"kv_indptr": "int32[n]"}, {"n": 0, "total": 0}, "0 offsets cannot end at 0"),
        ({"kv_indices": "int32[n]"}, {"n": 3}, "states the number of pages"),
        ({"topk_ids": "int32[n,k]"}, {"n": 3, "k": 2}, r"no axis \(num_experts, num_local_experts\) states the number"),
        ({"seq_lens": "int32[n]"}, {"n": 3}, r"no axis \(max_seq_len, .*\) states the longest sequence for 'seq_lens'"),
        ({"positions": "int64[n]"}, {"n": 3}, "states the number of positions for 'positions'"),
        ({"positions": "int64[n]"}, {"n": 3, "max_seq_len": 0}, "the bounds are 0 and -1"),
        ({"input_ids": "int64[n]"}, {"n": 3}, r"no axis \(vocab_size, num_embeddings\) states the vocabulary size"),
    ],
)
def test_what_cannot_be_valid_is_refused_with_the_reason(inputs, axes, said):
    constraints = ("total == kv_indptr[-1].item()",) if "total" in axes else ()
    with pytest.raises(InputError, match=said):
        synthesized(inputs, constraints=constraints, **axes)


NAMES = (
    "x", "weight", "scale", "probs", "top_p", "temperature", "cos_sin_cache", "A_log", "output1_scales", "mask",
    "kv_indptr", "kv_last_page_len", "sparse_indices", "kv_indices", "topk_ids", "seq_lens", "positions", "top_k",
    "input_ids", "eps", "sm_scale",
)  # fmt: skip


@given(
    name=st.sampled_from(NAMES),
    dtype=st.sampled_from(DType),
    rank=st.integers(0, 4),
    is_scalar=st.booleans(),
    size=st.integers(0, 5),
)
def test_any_name_dtype_and_rank_gives_that_input_or_an_input_error(name, dtype, rank, is_scalar, size):
    """A rule meets inputs of shapes that its author has not thought of."""
    shape = None if is_scalar else ("n",) * rank
    spec = TensorSpec(shape, dtype)
    axes = dict.fromkeys(("n", "num_pages", "num_kv_indices", "num_experts", "vocab_size", "max_seq_len"), AxisVar())
    definition = Definition("any", "any", axes, {name: spec}, {"y": TensorSpec((), "float32")}, "def run(x): ...")
    workload = Workload(dict.fromkeys(axes, size), {name: RandomInput()}, "w")
    try:
        value = make_inputs(definition, workload, seed=0)[name]
    except InputError as refusal:
        value = refusal
    if isinstance(value, InputError):
        assert value.input == name
    elif is_scalar:
        assert type(value) in (int, float, bool)
    else:
        assert tuple(value.shape) == (size,) * rank
        assert value.dtype == definition.torch_input_dtypes[0]
