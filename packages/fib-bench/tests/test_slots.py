"""Tests of slots: the places of a call's tensors in shared memory, and the detection of missing outputs."""

import os

import pytest
import torch
from fib_bench.transport.arenas import Arena, tensor_in
from fib_bench.transport.messages import BASES, TensorSlot
from fib_bench.transport.slots import Slots, call_bytes, layout_of
from fib_schema import Workload

from .samples import make_definition, make_solution

CPU = torch.device("cpu")


MIXED = make_definition(
    {"x": "float32[n]", "b": "float32[n]?", "factor": "float32", "at": "int64[m]"},
    {"y": "bfloat16[n]", "total": "float32"},
    "def run(x, b, factor, at): ...",
)
"""Tensors of several dtypes, an optional one, a scalar; a tensor and a scalar come out."""


VALUES = {"x": torch.arange(3.0), "b": None, "factor": 0.5, "at": torch.tensor([7, 8])}


LAYOUT = layout_of(MIXED, {"n": 3, "m": 2}, VALUES)


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


@pytest.mark.skipif(not hasattr(torch, "float4_e2m1fn_x2"), reason="this version of torch has no float4")
def test_inputs_of_float4_have_the_dtype_by_the_name_that_definitions_use(evaluate):
    """Whoever maps the slots looks the dtype up by that name."""
    code = "import torch\ndef run(w):\n    return (w.view(torch.uint8) & 7).float().sum(-1)\n"
    definition = make_definition({"w": "float4_e2m1[n,c4]"}, {"y": "float32[n]"}, code)
    (evaluation,) = evaluate(make_solution(code, definition="made"), definition=definition)
    assert evaluation.status == "PASSED", evaluation.log
