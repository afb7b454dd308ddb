"""Tests of inputs that are not contiguous: they have the workload's strides wherever a solution reads them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from fib_bench import Benchmark, BenchmarkConfig, InputError, make_inputs
from fib_bench.config.model import ResolvedEvalConfig
from fib_bench.inputs.generator import plan_recipes
from fib_bench.inputs.redrawing import Structure
from fib_bench.judge.evaluate import Judge
from fib_bench.judge.prepare import needed_bytes
from fib_bench.judge.prepared import fill, other_values
from fib_bench.transport.messages import TensorSlot
from fib_bench.transport.slots import GAP, CallLayout, Slots, layout_of
from fib_schema import Definition, Evaluation, Solution, Trace, TraceSet, Workload, format_json
from fib_schema.strides import stated_strides

CPU = torch.device("cpu")
PACKED = (64, 16, 1)
"""Of keys ``[pages, heads, 8]`` that share a cache ``[pages, 4, 16]`` with the values."""

Make = Callable[..., Definition]
MakeDataSet = Callable[..., Path]
MakeSolution = Callable[..., Solution]
MakeWorkload = Callable[..., Workload]
Evaluate = Callable[..., list[Evaluation]]


@pytest.fixture
def cache(make_definition: Make) -> Definition:
    """Sums the rows of the listed pages."""
    return make_definition(
        {"k": "float32[num_pages,4,8]", "kv_indices": "int32[n]", "weight": "float16[8,8]"},
        {"y": "float32[n,4,8]"},
        "def run(k, kv_indices, weight):\n    return k[kv_indices.long()] @ weight.float()\n",
        name="gather",
        op_type="made",
    )


@pytest.fixture
def workload(cache: Definition, make_workload: MakeWorkload) -> Workload:
    made = make_workload(cache, {"num_pages": 6, "n": 5})
    return attrs.evolve(made, extra={"layout": {"k": list(PACKED), "weight": [1, 8]}})


@pytest.fixture
def layout(cache: Definition, workload: Workload) -> CallLayout:
    return layout_of(cache, workload.axes, make_inputs(cache, workload, seed=0))


def packed(layout: CallLayout, values: Mapping[str, Any]) -> torch.Tensor:
    memory = torch.zeros(layout.input_bytes, dtype=torch.uint8)
    layout.pack(values, memory)
    return memory


def gaps(layout: CallLayout, memory: torch.Tensor) -> torch.Tensor:
    """The bytes between the elements of ``k``, of one slot."""
    slot = layout.inputs["k"]
    is_gap = torch.ones_like(memory, dtype=torch.bool)
    shown = torch.zeros_like(memory)
    layout.input_tensors(shown)["k"].view(torch.int32).fill_(-1)
    is_gap &= shown == 0
    end = slot.offset + 4 * (1 + 5 * 64 + 3 * 16 + 7)
    return memory[slot.offset : end][is_gap[slot.offset : end]]


class TestInputs:
    def test_they_have_the_strides_and_the_values_of_contiguous_ones(
        self, cache: Definition, workload: Workload
    ) -> None:
        found = make_inputs(cache, workload, seed=3)
        expected = make_inputs(cache, attrs.evolve(workload, extra=None), seed=3)
        assert found["k"].stride() == PACKED
        assert found["weight"].stride() == (1, 8)
        assert found["kv_indices"].stride() == (1,)
        for name in cache.inputs:
            assert torch.equal(found[name], expected[name])

    def test_a_contiguous_layout_is_none(self, cache: Definition, workload: Workload) -> None:
        made = make_inputs(cache, attrs.evolve(workload, extra={"layout": {"k": [32, 8, 1]}}), seed=3)
        assert made["k"].is_contiguous()
        assert layout_of(cache, workload.axes, made).strides == {}

    @pytest.mark.parametrize(
        ("layout", "message"),
        [({"k": [1, 1, 1]}, "share memory"), ({"z": [1]}, "no such input"), ("packed", "must be an object")],
    )
    def test_an_invalid_layout_is_an_error(
        self, cache: Definition, workload: Workload, make_judge: Callable[..., Judge], layout: Any, message: str
    ) -> None:
        invalid = attrs.evolve(workload, extra={"layout": layout})
        with pytest.raises(InputError, match=message):
            make_inputs(cache, invalid, seed=0)
        judge = make_judge()
        assert judge.workload_bytes(cache, invalid) == 0
        with pytest.raises(InputError, match=message):
            judge.prepare(cache, invalid)

    def test_memory_is_planned_for_the_gaps(self, cache: Definition, workload: Workload) -> None:
        wide = attrs.evolve(workload, extra={"layout": {"k": [1 << 20, 16, 1]}})
        settings = ResolvedEvalConfig()
        assert needed_bytes(cache, wide, settings, CPU) > 100 * needed_bytes(cache, workload, settings, CPU)


class TestSlots:
    def test_a_slot_states_the_strides(self, layout: CallLayout) -> None:
        assert layout.inputs["k"] == TensorSlot("float32", (6, 4, 8), 0, PACKED)
        assert layout.strides == {"k": PACKED, "weight": (1, 8)}

    def test_between_the_elements_are_poisoned_bytes(self, cache: Definition, workload: Workload) -> None:
        values = make_inputs(cache, workload, seed=0)
        layout = layout_of(cache, workload.axes, values)
        memory = packed(layout, values)
        assert torch.equal(layout.input_tensors(memory)["k"], values["k"])
        assert len(gaps(layout, memory))
        assert (gaps(layout, memory) == GAP).all()

    def test_several_slots_are_views_of_the_same_memory(self, cache: Definition, workload: Workload) -> None:
        values = make_inputs(cache, workload, seed=0)
        layout = layout_of(cache, workload.axes, values)
        with Slots(layout, 3, CPU) as slots:
            slots.load(slice(None), packed(layout, values))
            tensors = layout.input_tensors(slots.inputs)["k"]
            assert tensors.shape == (3, 6, 4, 8)
            assert torch.equal(tensors[2], values["k"])
            tensors[1].zero_()
            assert torch.equal(layout.input_tensors(slots.inputs[0])["k"], values["k"])
            assert not layout.input_tensors(slots.inputs[1])["k"].any()
            assert (gaps(layout, slots.inputs[1]) == GAP).all()


class TestVariation:
    @pytest.mark.parametrize("recorded", [(), ("k", "weight")])
    def test_generated_values_keep_strides_and_gaps(
        self, cache: Definition, workload: Workload, recorded: tuple[str, ...]
    ) -> None:
        values = make_inputs(cache, workload, seed=1)
        layout = layout_of(cache, workload.axes, values)
        distributions = ("normal", "wide")
        recipes, _ = plan_recipes(cache, workload.axes, values, distributions=distributions, recorded=recorded)
        assert recipes.keys() == {"k", "weight"}
        memory = packed(layout, values).expand(2, -1).clone()
        for key, slot in enumerate(memory):
            fill(recipes, layout, slot, packed(layout, values), key)
            for name in recipes:
                found = layout.input_tensors(slot)[name]
                assert not torch.equal(found, values[name])
                assert not found.isnan().any()
            assert (gaps(layout, slot) == GAP).all()
        assert not torch.equal(*layout.input_tensors(memory)["k"])

    def test_setup_sees_other_floats_in_the_same_layout(self, cache: Definition, workload: Workload) -> None:
        first = make_inputs(cache, workload, seed=1)
        layout = layout_of(cache, workload.axes, first)
        memory = packed(layout, first)
        changed = layout.input_tensors(other_values({}, layout, memory))
        assert changed["k"].stride() == PACKED
        assert not torch.equal(changed["k"], first["k"])
        assert torch.equal(changed["kv_indices"], first["kv_indices"])

    def test_redrawn_integers_keep_their_strides(self, make_definition: Make) -> None:
        definition = make_definition(
            {"k": "float32[num_pages,4]", "kv_indices": "int32[n]"}, {"y": "float32[n]"}, "def run(k, kv_indices): ..."
        )
        values = {"k": torch.zeros(64, 4), "kv_indices": torch.arange(12, dtype=torch.int32)[::2]}
        found = Structure(definition, {"n": 6, "num_pages": 64}, values).redraw(torch.Generator().manual_seed(0))
        assert found.changed == ("kv_indices",)
        redrawn = found.values["kv_indices"]
        assert isinstance(redrawn, torch.Tensor)
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
    def test_every_stage_has_the_layout_and_the_trace_states_it(
        self, cache: Definition, workload: Workload, evaluate: Evaluate, make_solution: MakeSolution
    ) -> None:
        (found,) = evaluate(
            make_solution(CHECKED, definition="gather"), definition=cache, workloads=[workload], num_trials=2
        )
        assert found.status == "PASSED", found.log
        assert found.extra is not None
        assert found.extra["layout"] == {"k": list(PACKED), "weight": [1, 8]}
        assert "fixed_inputs" not in found.flags

    def test_what_ignores_strides_is_wrong(
        self, cache: Definition, workload: Workload, evaluate: Evaluate, make_solution: MakeSolution
    ) -> None:
        solutions = [
            make_solution(code, name=f"s{index}", definition="gather")
            for index, code in enumerate((WITHOUT_STRIDES, WRITES))
        ]
        wrong, changed = evaluate(*solutions, definition=cache, workloads=[workload])
        assert wrong.status == "INCORRECT_NUMERICAL"
        assert wrong.extra is not None
        assert stated_strides(wrong.extra)["k"] == PACKED  # a failure states it too
        assert "input tensor was changed" in changed.log

    def test_contiguous_inputs_leave_no_field(self, evaluate: Evaluate, make_solution: MakeSolution) -> None:
        (found,) = evaluate(make_solution("def run(x):\n    return x * 2\n"))
        assert found.extra is not None
        assert "layout" not in found.extra

    def test_a_run_keeps_the_layout_in_files_that_others_can_read(
        self,
        cache: Definition,
        workload: Workload,
        make_data_set: MakeDataSet,
        make_solution: MakeSolution,
        shared_server: object,
    ) -> None:
        root = make_data_set(make_solution(CHECKED, definition="gather", name="one"), sizes=(), definitions=[cache])
        TraceSet.from_path(root).add_traces([Trace("gather", workload)])
        config = BenchmarkConfig(measure_seconds=0.002, iterations=3, warmup_runs=1)
        Benchmark(TraceSet.from_path(root), config).run()
        (file,) = (root / "traces").rglob("*.jsonl")
        line = json.loads(file.read_text())
        assert line["evaluation"]["status"] == "PASSED", line["evaluation"]["log"]
        expected = {"k": list(PACKED), "weight": [1, 8]}
        assert line["workload"]["extra"]["layout"] == line["evaluation"]["extra"]["layout"] == expected
        del line["workload"]["extra"]  # all that stands beside it is public format
        assert line["workload"] == json.loads(format_json(attrs.evolve(workload, extra=None)))
        (read,) = [trace for trace in TraceSet.from_path(root).traces["gather"] if trace.solution]
        assert read.workload == workload
