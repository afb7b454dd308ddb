"""Tests of inputs that are not contiguous: they have the workload's strides wherever a solution reads them."""

import json

import attrs
import pytest
import torch
from fib_bench import Benchmark, BenchmarkConfig, InputError, make_inputs
from fib_bench.config.model import ResolvedEvalConfig
from fib_bench.inputs.recipes import plan_recipes
from fib_bench.inputs.redrawing import Structure
from fib_bench.judge.prepare import needed_bytes
from fib_bench.judge.prepared import fill, other_values
from fib_bench.transport.arenas import GAP, Slots, layout_of
from fib_bench.transport.messages import TensorSlot
from fib_schema import Trace, TraceSet, format_json
from fib_schema.strides import stated_strides

from .samples import GOOD, make_definition, make_solution, make_workload

CPU = torch.device("cpu")
PACKED = (64, 16, 1)
"""Of keys ``[pages, heads, 8]`` that share a cache ``[pages, 4, 16]`` with the values."""


GATHER = make_definition(
    {"k": "float32[num_pages,4,8]", "kv_indices": "int32[n]", "weight": "float16[8,8]"},
    {"y": "float32[n,4,8]"},
    "def run(k, kv_indices, weight):\n    return k[kv_indices.long()] @ weight.float()\n",
    name="gather",
    op_type="made",
)
"""Sums the rows of the listed pages."""


WORKLOAD = attrs.evolve(
    make_workload(GATHER, {"num_pages": 6, "n": 5}), extra={"layout": {"k": list(PACKED), "weight": [1, 8]}}
)


LAYOUT = layout_of(GATHER, WORKLOAD.axes, make_inputs(GATHER, WORKLOAD, seed=0))


def packed(layout, values):
    return layout.pack(values, CPU)


def gaps(layout, memory):
    """The bytes between the elements of ``k``, of one slot."""
    slot = layout.inputs["k"]
    is_gap = torch.ones_like(memory, dtype=torch.bool)
    shown = torch.zeros_like(memory)
    layout.input_tensors(shown)["k"].view(torch.int32).fill_(-1)
    is_gap &= shown == 0
    end = slot.offset + 4 * (1 + 5 * 64 + 3 * 16 + 7)
    return memory[slot.offset : end][is_gap[slot.offset : end]]


class TestInputs:
    def test_they_have_the_strides_and_the_values_of_contiguous_ones(self):
        found = make_inputs(GATHER, WORKLOAD, seed=3)
        expected = make_inputs(GATHER, attrs.evolve(WORKLOAD, extra=None), seed=3)
        assert found["k"].stride() == PACKED
        assert found["weight"].stride() == (1, 8)
        assert found["kv_indices"].stride() == (1,)
        for name in GATHER.inputs:
            assert torch.equal(found[name], expected[name])

    def test_a_contiguous_layout_is_none(self):
        made = make_inputs(GATHER, attrs.evolve(WORKLOAD, extra={"layout": {"k": [32, 8, 1]}}), seed=3)
        assert made["k"].is_contiguous()
        assert layout_of(GATHER, WORKLOAD.axes, made).strides == {}

    @pytest.mark.parametrize(
        ("layout", "message"),
        [({"k": [1, 1, 1]}, "share memory"), ({"z": [1]}, "no such input"), ("packed", "must be an object")],
    )
    def test_an_invalid_layout_is_an_error(self, make_judge, layout, message):
        invalid = attrs.evolve(WORKLOAD, extra={"layout": layout})
        with pytest.raises(InputError, match=message):
            make_inputs(GATHER, invalid, seed=0)
        judge = make_judge()
        assert judge.workload_bytes(GATHER, invalid) == 0
        with pytest.raises(InputError, match=message):
            judge.prepare(GATHER, invalid)

    def test_memory_is_planned_for_the_gaps(self):
        wide = attrs.evolve(WORKLOAD, extra={"layout": {"k": [1 << 20, 16, 1]}})
        settings = ResolvedEvalConfig()
        assert needed_bytes(GATHER, wide, settings, CPU) > 100 * needed_bytes(GATHER, WORKLOAD, settings, CPU)


class TestSlots:
    def test_a_slot_states_the_strides(self):
        assert LAYOUT.inputs["k"] == TensorSlot("float32", (6, 4, 8), 0, PACKED)
        assert LAYOUT.strides == {"k": PACKED, "weight": (1, 8)}

    def test_between_the_elements_are_poisoned_bytes(self):
        values = make_inputs(GATHER, WORKLOAD, seed=0)
        memory = packed(LAYOUT, values)
        assert torch.equal(LAYOUT.input_tensors(memory)["k"], values["k"])
        assert len(gaps(LAYOUT, memory))
        assert (gaps(LAYOUT, memory) == GAP).all()

    def test_several_slots_are_views_of_the_same_memory(self):
        values = make_inputs(GATHER, WORKLOAD, seed=0)
        with Slots(LAYOUT, 3, CPU) as slots:
            slots.inputs[:] = packed(LAYOUT, values)
            tensors = LAYOUT.input_tensors(slots.inputs)["k"]
            assert tensors.shape == (3, 6, 4, 8)
            assert torch.equal(tensors[2], values["k"])
            tensors[1].zero_()
            assert torch.equal(LAYOUT.input_tensors(slots.inputs[0])["k"], values["k"])
            assert not LAYOUT.input_tensors(slots.inputs[1])["k"].any()
            assert (gaps(LAYOUT, slots.inputs[1]) == GAP).all()


class TestVariation:
    @pytest.mark.parametrize("recorded", [(), ("k", "weight")])
    def test_generated_values_keep_strides_and_gaps(self, recorded):
        values = make_inputs(GATHER, WORKLOAD, seed=1)
        distributions = ("normal", "wide")
        recipes, _ = plan_recipes(GATHER, WORKLOAD.axes, values, distributions=distributions, recorded=recorded)
        assert recipes.keys() == {"k", "weight"}
        memory = packed(LAYOUT, values).expand(2, -1).clone()
        for key, slot in enumerate(memory):
            fill(recipes, LAYOUT, slot, packed(LAYOUT, values), key)
            for name in recipes:
                found = LAYOUT.input_tensors(slot)[name]
                assert not torch.equal(found, values[name])
                assert not found.isnan().any()
            assert (gaps(LAYOUT, slot) == GAP).all()
        assert not torch.equal(*LAYOUT.input_tensors(memory)["k"])

    def test_setup_sees_other_floats_in_the_same_layout(self):
        first = make_inputs(GATHER, WORKLOAD, seed=1)
        memory = packed(LAYOUT, first)
        changed = LAYOUT.input_tensors(other_values({}, LAYOUT, memory))
        assert changed["k"].stride() == PACKED
        assert not torch.equal(changed["k"], first["k"])
        assert torch.equal(changed["kv_indices"], first["kv_indices"])

    def test_redrawn_integers_keep_their_strides(self):
        definition = make_definition(
            {"k": "float32[num_pages,4]", "kv_indices": "int32[n]"}, {"y": "float32[n]"}, "def run(k, kv_indices): ..."
        )
        values = {"k": torch.zeros(64, 4), "kv_indices": torch.arange(12, dtype=torch.int32)[::2]}
        found = Structure(definition, {"n": 6, "num_pages": 64}, values).redraw(torch.Generator().manual_seed(0))
        assert found.changed == ("kv_indices",)
        redrawn = found.values["kv_indices"]
        assert redrawn.stride() == (2,)


CHECKED = (
    "def run(k, kv_indices, weight):\n"
    "    assert k.stride() == (64, 16, 1) and weight.stride() == (1, 8) and kv_indices.is_contiguous()\n"
    "    return k[kv_indices.long()] @ weight.float()\n"
)
WITHOUT_STRIDES = (
    "import torch\n"
    "def run(k, kv_indices, weight):\n"
    "    k = torch.as_strided(k, k.shape, (32, 8, 1))\n"
    "    return k[kv_indices.long()] @ weight.float()\n"
)
WRITES = (
    "def run(k, kv_indices, weight):\n    y = k[kv_indices.long()] @ weight.float()\n    k[0].zero_()\n    return y\n"
)


class TestEvaluation:
    def test_every_stage_has_the_layout_and_the_trace_states_it(self, evaluate):
        (found,) = evaluate(
            make_solution(CHECKED, definition="gather"), definition=GATHER, workloads=[WORKLOAD], num_trials=2
        )
        assert found.status == "PASSED", found.log
        assert found.extra["layout"] == {"k": list(PACKED), "weight": [1, 8]}
        assert "fixed_inputs" not in found.flags

    def test_what_ignores_strides_is_wrong(self, evaluate):
        solutions = [
            make_solution(code, name=f"s{index}", definition="gather")
            for index, code in enumerate((WITHOUT_STRIDES, WRITES))
        ]
        wrong, changed = evaluate(*solutions, definition=GATHER, workloads=[WORKLOAD])
        assert wrong.status == "INCORRECT_NUMERICAL"
        assert stated_strides(wrong.extra)["k"] == PACKED  # a failure states it too
        assert "input k was changed" in changed.log

    def test_contiguous_inputs_leave_no_field(self, evaluate):
        (found,) = evaluate(make_solution(GOOD))
        assert "layout" not in found.extra

    def test_a_run_keeps_the_layout_in_files_that_others_can_read(self, make_data_set, shared_server):
        root = make_data_set(make_solution(CHECKED, definition="gather", name="one"), sizes=(), definitions=[GATHER])
        TraceSet.from_path(root).add_traces([Trace("gather", WORKLOAD)])
        config = BenchmarkConfig(measure_seconds=0.002, iterations=3, warmup_runs=1)
        Benchmark(TraceSet.from_path(root), config).run()
        (file,) = (root / "traces").rglob("*.jsonl")
        line = json.loads(file.read_text())
        assert line["evaluation"]["status"] == "PASSED", line["evaluation"]["log"]
        expected = {"k": list(PACKED), "weight": [1, 8]}
        assert line["workload"]["extra"]["layout"] == line["evaluation"]["extra"]["layout"] == expected
        del line["workload"]["extra"]  # all that stands beside it is public format
        assert line["workload"] == json.loads(format_json(attrs.evolve(WORKLOAD, extra=None)))
        (read,) = [trace for trace in TraceSet.from_path(root).traces["gather"] if trace.solution]
        assert read.workload == WORKLOAD
