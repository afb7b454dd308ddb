"""Tests of arenas: dedicated shared allocations and the places of tensors in them."""

import math
import os

import pytest
import torch
from fib_bench.transport.arenas import Arena, place, tensor_in
from fib_bench.transport.messages import TensorSlot
from fib_compile.device import torch_dtype
from fib_schema import DType
from hypothesis import given
from hypothesis import strategies as st

CPU = torch.device("cpu")
LAYOUTS = st.builds(
    TensorSlot,
    st.sampled_from([str(dtype) for dtype in DType if dtype is not DType.FLOAT4_E2M1]),  # torch 2.8 brought that
    st.lists(st.integers(0, 7), max_size=4).map(tuple),
)


@given(st.lists(LAYOUTS, max_size=8))
def test_tensors_are_aligned_and_do_not_overlap(layouts):
    slots, size_bytes = place(layouts)
    end = 0
    for layout, slot in zip(layouts, slots, strict=True):
        assert (slot.dtype, slot.shape) == (layout.dtype, layout.shape)
        assert slot.offset % 256 == 0
        assert slot.offset >= end
        end = slot.offset + math.prod(slot.shape) * torch_dtype(slot.dtype).itemsize
    assert size_bytes >= max(end, 256)


@given(st.lists(LAYOUTS, min_size=1, max_size=4))
def test_each_place_gives_a_contiguous_tensor_of_its_dtype_and_shape(layouts):
    slots, size_bytes = place(layouts)
    memory = torch.zeros(size_bytes, dtype=torch.uint8)
    for slot in slots:
        tensor = tensor_in(memory, slot)
        assert str(tensor.dtype) == f"torch.{slot.dtype}"
        assert tuple(tensor.shape) == slot.shape
        assert tensor.is_contiguous()
        if tensor.numel():
            assert tensor.data_ptr() == memory.data_ptr() + slot.offset


@given(st.integers(1, 5000), st.integers(1, 9))
def test_slots_are_equal_aligned_and_do_not_overlap(size_bytes, count):
    stride = -(-size_bytes // 256) * 256
    arena = Arena.allocate(stride * count, CPU)
    slots = arena.slots(count)
    assert slots.shape == (count, stride)
    assert [slot.data_ptr() - arena.memory.data_ptr() for slot in slots] == [i * stride for i in range(count)]
    arena.close()


def test_a_second_map_sees_the_same_memory():
    (slot,), size_bytes = place([TensorSlot("float32", (3,))])
    ours = Arena.allocate(size_bytes, CPU)
    theirs = Arena.attach(ours.handle, os.dup(ours.descriptor), CPU)
    tensor_in(theirs.memory, slot).copy_(torch.tensor([1.0, 2.0, 3.0]))
    assert tensor_in(ours.memory, slot).tolist() == [1.0, 2.0, 3.0]
    theirs.close()
    ours.close()


@pytest.mark.parametrize("size_bytes", [0, 128, 1024])
def test_the_size_of_an_arena_is_final(size_bytes):
    """A worker that cuts it off would have the judge die of a bus error."""
    arena = Arena.allocate(512, CPU)
    with pytest.raises(PermissionError):
        os.ftruncate(arena.descriptor, size_bytes)
    arena.close()


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() == 0, reason="needs a CUDA device")
class TestCuda:
    def test_an_arena_is_an_allocation_of_its_own_outside_of_torchs(self):
        device = torch.device("cuda:0")
        before = torch.cuda.memory_allocated(device)
        arena = Arena.allocate(1000, device)
        assert torch.cuda.memory_allocated(device) == before
        assert arena.memory.numel() % (2 << 20) == 0
        assert arena.memory.data_ptr() % (2 << 20) == 0
        assert len(arena.handle.ipc_handle) == 64
        assert arena.descriptors == ()
        for value, slot in enumerate(arena.slots(2)):
            slot.fill_(value)
        assert [slot.unique().tolist() for slot in arena.slots(2)] == [[0], [1]]
        arena.close()
        arena.close()

    def test_an_arena_that_does_not_fit_is_out_of_memory(self):
        with pytest.raises(torch.OutOfMemoryError):
            Arena.allocate(1 << 50, torch.device("cuda:0"))
