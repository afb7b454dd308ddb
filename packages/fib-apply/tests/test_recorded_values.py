"""Values of recorded workloads, with which calls are made in compiled graphs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from fib_apply import ApplyKey
from fib_apply.recorded_values import NoValues, recorded_values
from fib_schema import Definition, RandomInput, SafetensorsInput, ScalarInput, TensorSpec, Trace, TraceSet, Workload

KEY = ApplyKey({"M": 2})


@pytest.fixture
def paged(definition: Definition) -> Definition:
    inputs = {
        **definition.inputs,
        "pages": TensorSpec(["M"], "int32"),
        "weights": TensorSpec(["N"], "float8_e4m3fn"),
        "factor": TensorSpec(None, "float32"),
        "mask": TensorSpec(["M"], "bool", optional=True),
    }
    return attrs.evolve(
        definition, inputs=inputs, reference="def run(x, pages, weights, factor, mask):\n    return x\n"
    )


@pytest.fixture
def trace_set(tmp_path: Path, paged: Definition) -> TraceSet:
    pytest.importorskip("safetensors")
    made = TraceSet.from_path(tmp_path)
    made.add_definitions([paged])
    path = made.add_workload_blob_tensor("scale", "w2", {"pages": torch.tensor([7, 5], dtype=torch.int32)})
    recorded = SafetensorsInput(path, "pages")
    made.add_traces([trace(3, RandomInput()), trace(2, RandomInput(), "w1"), trace(2, recorded)])
    return TraceSet.from_path(tmp_path)


def trace(rows: int, pages: Any, uuid: str = "") -> Trace:
    inputs = {"x": RandomInput(), "pages": pages, "weights": RandomInput(), "factor": ScalarInput(0.25)}
    return Trace("scale", Workload({"M": rows}, inputs, uuid or f"w{rows}"))


def test_definitions_of_floats_need_no_workload(definition: Definition) -> None:
    assert recorded_values(None, definition, KEY) == {}


def test_integers_and_scalars_are_those_of_a_workload_of_the_same_sizes(paged: Definition, trace_set: TraceSet) -> None:
    assert recorded_values(trace_set, paged, KEY) == {"pages": [7, 5], "factor": 0.25}


def test_values_that_no_workload_records_are_not_made_up(paged: Definition, trace_set: TraceSet) -> None:
    problem = "pages is int32, and no workload of these sizes records its values"
    for values_of, key in ((trace_set, ApplyKey({"M": 3})), (trace_set, ApplyKey({"M": 4})), (None, KEY)):
        with pytest.raises(NoValues, match=problem):
            recorded_values(values_of, paged, key)


def test_keys_that_say_more_than_sizes_have_no_workload(paged: Definition, trace_set: TraceSet) -> None:
    for key in (ApplyKey({}), ApplyKey({"M": 2}, {"longest": 4})):
        with pytest.raises(NoValues, match="more or fewer parts than the variable axes"):
            recorded_values(trace_set, paged, key)


def test_a_missing_file_is_stated(paged: Definition, trace_set: TraceSet, tmp_path: Path) -> None:
    for file in tmp_path.rglob("*.safetensors"):
        file.unlink()
    with pytest.raises(NoValues, match="the file does not exist"):
        recorded_values(trace_set, paged, KEY)


def test_without_safetensors_that_is_the_reason(
    paged: Definition, trace_set: TraceSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(NoValues, match="safetensors"):
        recorded_values(trace_set, paged, KEY)
