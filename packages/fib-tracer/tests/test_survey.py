"""Tests of the survey: histograms, counts, missing blobs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fib_schema import RandomInput, SafetensorsInput, ScalarInput, Trace, TraceSet, UnknownName, Workload
from fib_tracer.survey import Bin, histogram, survey
from hypothesis import given
from hypothesis import strategies as st


def gather_workload(uuid: str, rows: int, path: str | None, scale: float = 0.5) -> Trace:
    """A workload of `GATHER` with stored or random rows."""
    source = RandomInput() if path is None else SafetensorsInput(path, "rows")
    inputs = {"table": RandomInput(), "rows": source, "scale": ScalarInput(scale)}
    return Trace("gather_h8", Workload({"N": 6, "M": rows}, inputs, uuid))


def stored(trace_set: TraceSet, uuid: str, rows: int, scale: float = 0.5) -> Trace:
    """A workload whose rows are written to a blob."""
    path = trace_set.add_workload_blob_tensor("gather_h8", uuid, {"rows": torch.arange(rows)})
    return gather_workload(uuid, rows, path, scale)


def test_a_survey_counts_sizes_input_types_and_blobs(root: Path) -> None:
    trace_set = TraceSet.from_path(root)
    trace_set.add_traces([stored(trace_set, "a", 3), stored(trace_set, "b", 3), gather_workload("c", 9, None)])
    gather, decode, silu = survey(TraceSet.from_path(root), {})
    assert [d.name for d in (gather, decode, silu)] == ["gather_h8", "gqa_paged_decode_h2", "silu_h8"]
    assert (gather.workloads, gather.distinct_axes, gather.blobs) == (3, 2, 2)
    assert gather.axes == {"N": [Bin(6, 6, 3)], "M": [Bin(3, 3, 2), Bin(9, 9, 1)]}
    assert gather.inputs == {"table": {"random": 3}, "rows": {"random": 1, "safetensors": 2}, "scale": {"scalar": 3}}
    assert gather.blob_bytes > 48
    assert gather.missing == []
    assert (silu.workloads, silu.axes, silu.inputs, silu.blobs) == (0, {}, {}, 0)


def test_a_survey_may_be_limited_to_definitions(root: Path) -> None:
    trace_set = TraceSet.from_path(root)
    trace_set.add_traces([stored(trace_set, "a", 3)])
    assert [d.name for d in survey(TraceSet.from_path(root), {}, ["silu_h8"])] == ["silu_h8"]
    with pytest.raises(UnknownName, match="silu_h9"):
        survey(trace_set, {}, ["silu_h9"])


def test_a_histogram_groups_many_sizes_by_powers_of_two() -> None:
    assert histogram([]) == []
    assert histogram([5, 1, 5]) == [Bin(1, 1, 1), Bin(5, 5, 2)]
    assert histogram([0, 1, 2, 3, 5, 6, 7, 9, 4096]) == [
        Bin(0, 0, 1),
        Bin(1, 1, 1),
        Bin(2, 3, 2),
        Bin(4, 7, 3),
        Bin(8, 15, 1),
        Bin(4096, 8191, 1),
    ]


@given(st.lists(st.integers(0, 1 << 40), max_size=200))
def test_every_size_is_in_one_bin(sizes: list[int]) -> None:
    found = histogram(sizes)
    assert sum(bar.workloads for bar in found) == len(sizes)
    for bar in found:
        assert bar.workloads == sum(bar.least <= size <= bar.most for size in sizes)
