"""Rules and policies of the first release."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from fib_compat.errors import NotOfferedArgument
from fib_tracer import RANDOM, TracingConfig, TracingConfigRegistry
from flashinfer_bench import AxisVar, Definition, TensorSpec, TraceSet
from flashinfer_bench.tracer import Tracer, TracingRule, disable_tracing, enable_tracing, get_tracer, presets, rule
from flashinfer_bench.tracer.types import TraceEntry

DEFINITION = Definition(
    name="paged",
    op_type="gqa_paged",
    axes={"n": AxisVar(), "m": AxisVar()},
    inputs={"x": TensorSpec(shape=["n"], dtype="float32"), "kv_indptr": TensorSpec(shape=["m"], dtype="int32")},
    outputs={"y": TensorSpec(shape=["n"], dtype="float32")},
    reference="def run(x, kv_indptr):\n    return x\n",
)


def entries(*totals: int) -> list[TraceEntry]:
    """Entries with two sequences each, of `totals` tokens together."""
    return [
        TraceEntry(
            DEFINITION,
            {"n": 4, "m": 3},
            {"x": RANDOM, "kv_indptr": torch.tensor([0, 1, total], dtype=torch.int32)},
            order,
        )
        for order, total in enumerate(totals)
    ]


def orders(selected: Sequence[TraceEntry]) -> list[int]:
    return [entry.order for entry in selected]


def test_policies_select_entries_in_their_order() -> None:
    given = entries(10, 11, 30, 10)
    assert orders(presets.KEEP_ALL(given)) == [0, 1, 2, 3]
    assert orders(presets.policy_keep_first_k(2)(given)) == [0, 1]
    assert orders(presets.DEDUP_BY_AXES(given)) == [0]
    assert orders(presets.policy_dedup_by_axes(3)(given)) == [0, 1, 2]
    assert orders(presets.DEDUP_BY_AVG_SEQ_LEN(given)) == [0, 1, 2]
    assert orders(presets.policy_dedup_by_avg_seq_len(2)(given)) == [0, 1, 2, 3]
    assert len(presets.KEEP_RANDOM_ONE(given)) == 1


def test_a_seed_makes_a_random_selection_repeatable() -> None:
    given = entries(*range(2, 42))
    state = random.getstate()
    chosen = [orders(presets.policy_keep_random_k(5, seed=7)(given)) for _ in range(2)]
    assert chosen[0] == chosen[1] == sorted(chosen[0])
    assert orders(presets.policy_keep_random_k(99)(given)) == list(range(40))
    assert random.getstate() == state, "the global generator is unchanged"


def test_entries_have_their_legacy_members() -> None:
    (entry,) = entries(5)
    assert entry.picked.keys() == {"kv_indptr"}  # type: ignore[attr-defined]
    assert entry.definition_input_names == {"x", "kv_indptr"}  # type: ignore[attr-defined]
    assert presets.KEY_AXES(entry) == (("m", 3), ("n", 4))


def test_dump_int32_selects_int32_tensors() -> None:
    inputs = {
        "x": torch.ones(1),
        "i": torch.ones(1, dtype=torch.int32),
        "l": torch.ones(1, dtype=torch.int64),
        "s": 1.0,
    }
    assert presets.DUMP_INT32(inputs) == ["i"]


def test_a_rule_applies_its_policy_to_each_group(tmp_path: Path) -> None:
    data = TraceSet(tmp_path)
    data.add_definitions([DEFINITION])
    made = TracingRule(presets.DUMP_ALL, presets.policy_keep_first_k(1), lambda entry: entry.axes["n"])
    assert isinstance(made, TracingConfig)
    assert (made.tensors_to_dump, made.dedup_keys is not None) == ("dump_all", True)
    runtime = Tracer(data, {"paged": made})
    for size in (4, 4, 6, 4):
        runtime.collect("paged", {"x": torch.ones(size), "kv_indptr": torch.tensor([0, size], dtype=torch.int32)})  # type: ignore[arg-type]
    runtime.flush()
    runtime.stop()
    assert [t.workload.axes["n"] for t in TraceSet.from_path(tmp_path).workloads["paged"]] == [4, 6]


def test_enabling_again_replaces_the_tracer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    TraceSet(tmp_path).add_definitions([DEFINITION])
    monkeypatch.setenv("FIB_DATASET_PATH", str(tmp_path))
    first = enable_tracing()
    second = enable_tracing(rules={"paged": presets.axes_only_rule})
    assert get_tracer() is second is not first
    disable_tracing()
    assert get_tracer() is None
    with pytest.raises(NotOfferedArgument, match="pass dataset_path="):
        enable_tracing(out_dir=tmp_path)


@pytest.mark.parametrize("name", [name for name in presets.__all__ if name.endswith("_rule")])
def test_rules_are_settings(name: str) -> None:
    config: Any = getattr(presets, name)
    assert attrs.evolve(config) == config
    assert isinstance(config, TracingConfig)
    assert isinstance(rule.fib_full_tracing, TracingConfigRegistry)
