"""Tests with CUDA tensors: copies have no race, do not wait, and do not run while a graph is captured."""

import pytest
import torch
from fib_apply import apply
from fib_schema import AxisConst, AxisVar, Definition, TensorSpec, TraceSet
from fib_tracer import TracingConfig, enable_tracing
from fib_tracer.copies import RING_BYTES

from .conftest import in_threads, tensors, workloads

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(torch.cuda.device_count() == 0, reason="needs a CUDA device")]
EVERYTHING = TracingConfig("dump_all")


def spin(milliseconds):
    """Keep the current stream busy."""
    torch.cuda._sleep(int(milliseconds * 1.5e6))


@pytest.mark.parametrize("rows", [2, 1 << 18, (RING_BYTES >> 5) + 100])
def test_values_are_those_of_the_call_although_they_are_overwritten_at_once(root, silu, rows):
    """The caller's stream still has work queued at the call, and overwrites the tensor right after."""
    x = torch.zeros(rows, 8, device="cuda")
    count = 20 if rows < 1000 else 3
    with enable_tracing(root, EVERYTHING, max_bytes=1 << 30) as runtime:
        spin(5)
        for value in range(1, count + 1):
            x.fill_(value)
            silu(x)
            x.fill_(-1)
        stats = runtime.flush()["silu_h8"]
    assert (stats.stored, stats.dropped) == (count, {})
    for value, workload in enumerate(workloads(root, "silu_h8"), 1):
        assert torch.equal(tensors(root, workload)["x"], torch.full((rows, 8), float(value)))


def test_streams_of_several_threads_do_not_mix(root, silu):
    def work(offset):
        with torch.cuda.stream(torch.cuda.Stream()):
            x = torch.zeros(64, 8, device="cuda")
            for index in range(25):
                spin(0.05)
                x.fill_(offset + index)
                silu(x)
                x.fill_(-1)
            torch.cuda.current_stream().synchronize()

    with enable_tracing(root, EVERYTHING):
        in_threads(work, range(1000, 5000, 1000))
    found = [tensors(root, workload)["x"] for workload in workloads(root, "silu_h8")]
    assert all(bool((x == x[0, 0]).all()) for x in found)
    assert sorted(int(x[0, 0]) for x in found) == [1000 * n + i for n in range(1, 5) for i in range(25)]


def test_views_and_small_dtypes_are_copied_as_what_they_show(tmp_path):
    spec = {"mask": TensorSpec(("N",), "bool"), "weight": TensorSpec(("M", "N"), "float8_e4m3fn")}
    definition = Definition(
        "mask", "mask", {"N": AxisVar(), "M": AxisConst(4)}, spec, {"y": TensorSpec(("N",), "bool")},
        "def run(mask, weight):\n    return mask\n",
    )  # fmt: skip
    TraceSet(tmp_path).add_definitions([definition])
    masked = apply("mask")(lambda mask, weight: mask)
    mask = torch.tensor([[True, False], [False, False], [True, True]], device="cuda")[:, 0]
    weight = torch.arange(12, device="cuda").reshape(3, 4).to(torch.float8_e4m3fn).T
    with enable_tracing(tmp_path, EVERYTHING):
        masked(mask, weight)
    (workload,) = workloads(tmp_path, "mask")
    found = tensors(tmp_path, workload)
    assert torch.equal(found["mask"], mask.cpu())
    assert torch.equal(found["weight"].view(torch.uint8), weight.cpu().contiguous().view(torch.uint8))


def test_probed_values_are_read_asynchronously(root, decode):
    """By average length, of tensors on the device that are overwritten at once."""
    indptr = torch.zeros(3, dtype=torch.int32, device="cuda")
    q = torch.ones(2, 2, device="cuda")
    with enable_tracing(root) as runtime:
        spin(5)
        for lengths in ([4, 4], [2, 6], [8, 8]):
            wanted = torch.tensor([0, lengths[0], sum(lengths)], dtype=torch.int32)
            indices = torch.arange(sum(lengths), dtype=torch.int32, device="cuda")
            indptr.copy_(wanted)
            decode(q, indptr, indices, 0.5)
            indptr.zero_()
        stats = runtime.flush()["gqa_paged_decode_h2"]
    assert (stats.kept, stats.stored, stats.dropped) == (2, 2, {})
    kept = [tensors(root, w)["kv_indptr"].tolist() for w in workloads(root, "gqa_paged_decode_h2")]
    assert kept == [[0, 4, 8], [0, 8, 16]]


def test_a_graph_is_captured_while_others_are_traced(root, silu):
    static, other = torch.zeros(4, 8, device="cuda"), torch.zeros(3, 8, device="cuda")
    silu(static)
    torch.cuda.synchronize()
    with enable_tracing(root, EVERYTHING) as runtime:
        for value in range(50):
            other.fill_(value)
            silu(other)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):  # global mode: others' mistakes would end it
            result = silu(static)
        static.fill_(2.0)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.allclose(result, torch.full_like(result, 2 * torch.sigmoid(torch.tensor(2.0)).item()))
    found = [tensors(root, w)["x"] for w in workloads(root, "silu_h8")]
    assert [len(x) for x in found] == [3] * 50
    assert runtime.stats()["silu_h8"].dropped == {"captured in a graph": 1}
