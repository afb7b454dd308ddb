"""Tests of arenas: dedicated shared allocations, the places of a call's tensors in them, and slots."""

import math
import os

import pytest
import torch
from fib_bench.transport.arenas import Arena, Slots, call_bytes, layout_of, place, tensor_in
from fib_bench.transport.messages import BASES, TensorSlot
from fib_compile.device import torch_dtype
from fib_schema import DType, Workload
from hypothesis import given
from hypothesis import strategies as st

from .samples import make_definition, make_solution

CPU = torch.device("cpu")
LAYOUTS = st.builds(
    TensorSlot,
    st.sampled_from([str(dtype) for dtype in DType if dtype is not DType.FLOAT4_E2M1]),  # torch 2.8 brought that
    st.lists(st.integers(0, 7), max_size=4).map(tuple),
)
MIXED = make_definition(
    {"x": "float32[n]", "b": "float32[n]?", "factor": "float32", "at": "int64[m]"},
    {"y": "bfloat16[n]", "total": "float32"},
    "def run(x, b, factor, at): ...",
)
"""Tensors of several dtypes, an optional one, a scalar; a tensor and a scalar come out."""
VALUES = {"x": torch.arange(3.0), "b": None, "factor": 0.5, "at": torch.tensor([7, 8])}
LAYOUT = layout_of(MIXED, {"n": 3, "m": 2}, VALUES)


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
class TestLayout:
    def test_tensors_have_places_and_other_values_travel_in_the_message(self):
        x, at = TensorSlot("float32", (3,), 0), TensorSlot("int64", (2,), 256)
        assert LAYOUT.message.inputs == (x, None, 0.5, at)
        assert dict(LAYOUT.inputs) == {"x": x, "at": at}

    def test_tells_how_many_bytes_a_call_takes(self):
        assert (LAYOUT.input_bytes, LAYOUT.output_bytes, LAYOUT.size_bytes) == (512, 512, 1024)
        with_the_optional_one = call_bytes(MIXED, Workload({"n": 3, "m": 2}, {}, "w"))
        assert with_the_optional_one == 1024 + 256

    def test_what_was_packed_is_found_again(self):
        found = LAYOUT.input_tensors(LAYOUT.pack(VALUES, CPU))
        assert {name: tensor.tolist() for name, tensor in found.items()} == {"x": [0.0, 1.0, 2.0], "at": [7, 8]}

    def test_the_tensors_of_all_slots_at_once_share_their_memory(self):
        memory = torch.zeros(4, LAYOUT.input_bytes, dtype=torch.uint8)
        everywhere = LAYOUT.input_tensors(memory)
        assert {name: tuple(tensor.shape) for name, tensor in everywhere.items()} == {"x": (4, 3), "at": (4, 2)}
        everywhere["at"][2] = torch.tensor([5, 6])
        assert [LAYOUT.input_tensors(slot)["at"].tolist() for slot in memory] == [[0, 0], [0, 0], [5, 6], [0, 0]]


class TestSlots:
    def test_a_loaded_set_is_in_its_slots_only(self):
        with Slots(LAYOUT, 4, CPU) as slots:
            slots.inputs[:] = torch.full((LAYOUT.input_bytes,), 1, dtype=torch.uint8)
            slots.inputs[2] = torch.full((LAYOUT.input_bytes,), 2, dtype=torch.uint8)
            assert [slot.unique().tolist() for slot in slots.inputs] == [[1], [1], [2], [1]]
            assert slots.inputs.shape == (4, LAYOUT.input_bytes)

    def test_the_message_maps_the_same_memory(self):
        with Slots(LAYOUT, 3, CPU) as slots:
            message = slots.message
            assert (message.layout, message.slots) == (LAYOUT.message, 3)
            descriptors = [os.dup(descriptor) for descriptor in slots.descriptors]
            theirs = [
                Arena.attach(handle, descriptor, CPU)
                for handle, descriptor in zip((message.inputs, message.outputs), descriptors, strict=True)
            ]
            slots.inputs[1] = torch.full((LAYOUT.input_bytes,), 9, dtype=torch.uint8)
            assert theirs[0].slots(3 + BASES)[1].unique().tolist() == [9]
            tensor_in(theirs[1].slots(3)[2], message.layout.outputs[1]).fill_(1.5)
            assert LAYOUT.output_tensors(slots.outputs[2])["total"].item() == 1.5
            for arena in theirs:
                arena.close()

    def test_slots_beside_others_share_their_inputs_and_never_their_outputs(self):
        with Slots(LAYOUT, 3, CPU) as first:
            with Slots(LAYOUT, 3, CPU, first) as second:
                assert second.inputs.data_ptr() == first.inputs.data_ptr()
                assert second.message.inputs == first.message.inputs
                assert second.descriptors[0] == first.descriptors[0]
                assert second.outputs.data_ptr() != first.outputs.data_ptr()
                assert second.descriptors[1] != first.descriptors[1]
                first.outputs.fill_(1)
                second.outputs.fill_(2)
                assert (first.outputs.unique().tolist(), second.outputs.unique().tolist()) == ([1], [2])
            os.fstat(first.descriptors[0])
            first.inputs[0] = torch.full((LAYOUT.input_bytes,), 5, dtype=torch.uint8)


def test_inputs_of_float4_have_the_dtype_by_the_name_that_definitions_use(evaluate):
    """The worker that maps the slots finds the dtype by that name."""
    code = "import torch\ndef run(w):\n    return (w.view(torch.uint8) & 7).float().sum(-1)\n"
    definition = make_definition({"w": "float4_e2m1[n,c4]"}, {"y": "float32[n]"}, code)
    (evaluation,) = evaluate(make_solution(code, definition="made"), definition=definition)
    assert evaluation.status == "PASSED", evaluation.log


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
