"""Padded indices: which index inputs of a definition may lie in a longer buffer."""

import attrs
import pytest
from fib_schema import AxisConst, AxisVar, Definition, TensorSpec
from fib_schema.padded_indices import PaddedIndices, padded_indices_of

DECODE = Definition(
    "paged_decode",
    "gqa_paged",
    {
        "batch_size": AxisVar(),
        "len_indptr": AxisVar(),
        "num_pages": AxisVar(),
        "num_kv_indices": AxisVar(),
        "head_dim": AxisConst(64),
    },
    {
        "q": TensorSpec(("batch_size", "head_dim"), "bfloat16"),
        "cache": TensorSpec(("num_pages", "head_dim"), "bfloat16"),
        "kv_indptr": TensorSpec(("len_indptr",), "int32"),
        "kv_indices": TensorSpec(("num_kv_indices",), "int32"),
    },
    {"output": TensorSpec(("batch_size", "head_dim"), "bfloat16")},
    "def run(q, cache, kv_indptr, kv_indices): ...",
    constraints=("len_indptr == batch_size + 1", "num_kv_indices == kv_indptr[-1].item()"),
)


def test_the_constraint_names_the_axis_and_the_offsets():
    assert padded_indices_of(DECODE) == PaddedIndices("num_kv_indices", "kv_indptr", ("kv_indices",))


def test_either_side_of_the_constraint_may_come_first():
    swapped = attrs.evolve(DECODE, constraints=("kv_indptr[-1].item() == num_kv_indices",))
    assert padded_indices_of(swapped) == padded_indices_of(DECODE)


def _with_input(name, shape, dtype):
    return {"inputs": {**DECODE.inputs, name: TensorSpec(shape, dtype)}}


@pytest.mark.parametrize(
    "change",
    [
        {"constraints": ()},
        {"constraints": ("num_kv_indices >= kv_indptr[-1].item()",)},
        {"constraints": ("num_kv_indices == kv_indptr[0].item()",)},
        {"constraints": ("num_kv_indices == kv_indptr[-1].item() + 1",)},
        {"constraints": (*DECODE.constraints, "num_kv_indices <= num_pages")},
        {"constraints": (*DECODE.constraints, "batch_size == kv_indices[-1].item()")},
        {"axes": {**DECODE.axes, "num_kv_indices": AxisConst(8)}},
        _with_input("weights", ("num_kv_indices",), "float32"),
        _with_input("tables", ("num_kv_indices", "head_dim"), "int32"),
        {"outputs": {"output": TensorSpec(("num_kv_indices",), "float32")}},
    ],
    ids=str,
)
def test_other_definitions_have_none(change):
    assert padded_indices_of(attrs.evolve(DECODE, **change)) is None


def test_offsets_of_queries_rule_them_out():
    """A later replay could have other queries than those that the graph was captured with."""
    prefill = attrs.evolve(
        DECODE,
        axes={**DECODE.axes, "total_q": AxisVar()},
        inputs={**DECODE.inputs, "qo_indptr": TensorSpec(("len_indptr",), "int32")},
        constraints=(*DECODE.constraints, "total_q == qo_indptr[-1].item()"),
    )
    assert padded_indices_of(prefill) is None
