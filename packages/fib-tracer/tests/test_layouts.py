"""Layouts: workloads state the strides of inputs that were not contiguous, and of no others."""

import pytest
import torch
from fib_apply import apply
from fib_schema import validate
from fib_schema.strides import workload_strides
from fib_schema.traffic import load_traffic
from fib_tracer import FilterPolicy, TracingConfig, enable_tracing
from fib_tracer.records import workload_digest

from .conftest import GATHER, tensors, workloads


def padded(rows):
    """Rows that lie in a wider matrix."""
    return torch.arange(rows * 12.0).view(rows, 12)[:, :8]


def test_the_strides_of_a_view_are_recorded_with_its_values(root, gather):
    table, rows = padded(6), torch.arange(6).view(3, 2)[:, 1]
    with enable_tracing(root, TracingConfig("dump_all")):
        gather(table, rows)
    (workload,) = workloads(root, "gather_h8")
    assert workload.extra == {"layout": {"table": [12, 1], "rows": [2]}}
    assert workload_strides(GATHER, workload) == {"table": (12, 1), "rows": (2,)}
    stored = tensors(root, workload)
    assert torch.equal(stored["table"], table)
    assert torch.equal(stored["rows"], rows)
    assert not [problem for problem in validate(root).problems if problem.severity == "error"]


def test_contiguous_inputs_leave_no_field(root, gather):
    with enable_tracing(root, TracingConfig("dump_all")):
        gather(torch.ones(4, 8), torch.tensor([1, 2]))
        gather(padded(1), torch.tensor([0]))  # the stride of one row means nothing
    assert [workload.extra for workload in workloads(root, "gather_h8")] == [None, None]


OVERLAPPING = {
    "expanded": torch.ones(1, 8).expand(3, 8),
    "overlapping": torch.ones(20).as_strided((3, 8), (1, 1)),
    "woven": torch.ones(99).as_strided((3, 8), (2, 3)),
}


@pytest.mark.parametrize("dumped", ["dump_none", "dump_all"])
@pytest.mark.parametrize("x", OVERLAPPING.values(), ids=OVERLAPPING)
def test_calls_whose_layout_no_workload_can_have_are_only_counted(root, silu, x, dumped):
    with enable_tracing(root, TracingConfig(dumped)) as runtime:
        for _ in range(2):
            silu(torch.ones(3, 8))
            silu(x)
    (record,) = workloads(root, "silu_h8")
    assert record.extra is None
    assert runtime.stats()["silu_h8"].dropped == {"layout": 2}
    counted = load_traffic(root).definitions["silu_h8"]
    assert counted.calls == 4
    of_any_layout = dumped == "dump_all"
    assert counted.calls_by_workload([record]) == {record.uuid: 4 if of_any_layout else 2}


@pytest.mark.parametrize("dumped", ["dump_none", "dump_all"])
def test_calls_that_differ_in_their_layout_are_workloads_of_their_own(root, silu, dumped):
    layouts = torch.zeros(3, 8), torch.zeros(3, 12)[:, :8], torch.zeros(8, 3).T, torch.zeros(3, 16)[:, :8]
    with enable_tracing(root, TracingConfig(dumped, filter_policy="keep_all")):
        for _ in range(3):
            for x in layouts:
                silu(x)
    found = workloads(root, "silu_h8")
    assert [workload.extra and workload.extra["layout"]["x"] for workload in found] == [None, [12, 1], [1, 3], [16, 1]]
    assert len({workload.uuid for workload in found}) == 4


def test_a_policy_that_holds_entries_keeps_the_layout(root, silu):
    with enable_tracing(root, TracingConfig("dump_all", filter_policy=FilterPolicy)):
        silu(torch.zeros(2, 8))
        silu(padded(3))
    assert [workload.extra for workload in workloads(root, "silu_h8")] == [None, {"layout": {"x": [12, 1]}}]


def test_a_contiguous_workload_has_the_uuid_of_earlier_releases():
    inputs = {"x": torch.ones(2, 4)}
    assert workload_digest("d", {"M": 2}, inputs, {}) == workload_digest("d", {"M": 2}, inputs)
    assert workload_digest("d", {"M": 2}, inputs, {"x": (8, 1)}) != workload_digest("d", {"M": 2}, inputs)


def test_the_layout_of_a_routed_call_is_recorded(root):
    with enable_tracing(root, TracingConfig("dump_all")):
        apply("silu_h8", args=(padded(2),), fallback=lambda x: x)
    (workload,) = workloads(root, "silu_h8")
    assert workload.extra == {"layout": {"x": [12, 1]}}
