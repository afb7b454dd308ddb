"""Arenas: tensors in one shared allocation."""

from __future__ import annotations

import os

import pytest
import torch
from fib_bench.buffers import Arena, TensorLayout, place
from fib_schema import DType
from hypothesis import given
from hypothesis import strategies as st

LAYOUTS = st.builds(
    TensorLayout,
    st.sampled_from([str(dtype) for dtype in DType if dtype is not DType.FLOAT4_E2M1]),  # torch 2.8 brought that
    st.lists(st.integers(0, 7), max_size=4).map(tuple),
)


@given(st.lists(LAYOUTS, max_size=8))
def test_tensors_are_aligned_and_do_not_overlap(layouts: list[TensorLayout]) -> None:
    slots, size_bytes = place(layouts)
    end = 0
    for layout, slot in zip(layouts, slots, strict=True):
        assert (slot.dtype, slot.shape) == (layout.dtype, layout.shape)
        assert slot.offset % 256 == 0
        assert slot.offset >= end
        end = slot.offset + layout.size_bytes
    assert end <= size_bytes


@given(st.lists(LAYOUTS, min_size=1, max_size=4))
def test_each_slot_gives_a_contiguous_tensor_of_its_dtype_and_shape(layouts: list[TensorLayout]) -> None:
    slots, size_bytes = place(layouts)
    arena = Arena.allocate(size_bytes)
    for slot in slots:
        tensor = arena.tensor(slot)
        assert tuple(tensor.shape) == slot.shape
        assert tensor.is_contiguous()
    arena.close()


def test_a_second_map_sees_the_same_memory() -> None:
    (slot,), size_bytes = place([TensorLayout("float32", (3,))])
    ours = Arena.allocate(size_bytes)
    theirs = Arena.attach(os.dup(ours.descriptor))
    theirs.tensor(slot).copy_(torch.tensor([1.0, 2.0, 3.0]))
    assert ours.tensor(slot).tolist() == [1.0, 2.0, 3.0]
    theirs.close()
    ours.close()


def test_tensors_live_on_when_the_descriptor_is_closed() -> None:
    (slot,), size_bytes = place([TensorLayout("int64", (2,))])
    arena = Arena.allocate(size_bytes)
    tensor = arena.tensor(slot)
    arena.close()
    arena.close()
    assert tensor.tolist() == [0, 0]


def test_a_checksum_notices_a_write_anywhere_even_between_tensors() -> None:
    (_, second), size_bytes = place([TensorLayout("int8", (1,)), TensorLayout("int8", (1,))])
    arena, clean = Arena.allocate(size_bytes), Arena.allocate(size_bytes)
    before = arena.checksum()
    arena.tensor(second).as_strided((1,), (1,), 100).fill_(1)
    assert arena.checksum() != before
    arena.overwrite(clean)
    assert arena.checksum() == before
    arena.close()
    clean.close()


def test_fill_sets_every_byte() -> None:
    (slot,), size_bytes = place([TensorLayout("int8", (5,))])
    arena = Arena.allocate(size_bytes)
    arena.fill(0xC3)
    assert arena.tensor(slot).tolist() == [0xC3 - 256] * 5
    arena.close()


@pytest.mark.parametrize("size_bytes", [0, 128, 1024])
def test_the_size_of_an_arena_is_final(size_bytes: int) -> None:
    """A worker that cuts it off would have the judge die of a bus error."""
    arena = Arena.allocate(512)
    with pytest.raises(PermissionError):
        os.ftruncate(arena.descriptor, size_bytes)
    arena.close()
