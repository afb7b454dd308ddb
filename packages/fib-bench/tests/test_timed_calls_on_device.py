"""Tests of timed calls on a CUDA device: captured and eager calls, and what may not be beside them."""

import attrs
import pytest
import torch
from fib_bench import BenchmarkConfig
from fib_bench.judge.evaluate import Judge
from fib_bench.judge.functions import BoundFunction
from fib_bench.measuring import measure
from fib_bench.timing.handshake.native import CannotCapture, Native, open_native
from fib_schema import BuildSpec, Evaluation, EvaluationStatus

from .samples import DOUBLE, make_definition, make_solution, make_workload, timing_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: calls are captured there only"),
]
ON_A_SIDE_STREAM = """
import torch
side = torch.cuda.Stream()
def run(x):
    if not torch.cuda.is_current_stream_capturing():
        with torch.cuda.stream(side):
            torch.cuda._sleep(2_000_000)
    elif {refuses}:
        torch.cuda.synchronize()
    return x * 2
"""


@pytest.fixture
def judged():
    """Evaluates a solution of ``double``, or of another definition, on the first device."""
    double, judge = DOUBLE, Judge(BenchmarkConfig(device="cuda:0", num_trials=2, measure_seconds=1.0))

    def run(code, definition=double, layout=None, **axes):
        workload = attrs.evolve(make_workload(definition, axes or {"n": 1 << 20}), extra=layout)
        spec = BuildSpec("python", ("cuda",), "k.py::run", destination_passing_style=False)
        solution = attrs.evolve(make_solution(code, definition=definition.name), spec=spec)
        ((_, found),) = judge.evaluate(definition, solution, [judge.prepare(definition, workload)])
        assert isinstance(found, Evaluation)
        return found

    yield run
    judge.close()


def test_captured_calls_have_both_latencies_in_both_orders(judged):
    found = judged("def run(x):\n    return x * 2\n")
    timing = timing_of(found)
    assert timing["method"] == "handshake", timing.get("not_captured")
    assert 0.001 < found.performance.latency_ms < timing["call_ms"] < 1
    cold, fresh = timing["orders_ms"]["cold"], timing["orders_ms"]["fresh"]
    assert fresh < 1.2 * cold
    assert timing["nodes"] == 1
    assert timing["verified_calls"] >= 10
    assert timing["uncertainty_ms"] < 0.05 * found.performance.latency_ms
    assert "disturbed_passes" not in timing or timing["disturbed_passes"] < 5


def test_calls_that_wait_for_the_device_are_captured_without_their_waits(judged):
    found = judged("import torch\ndef run(x):\n    y = x * 2\n    torch.cuda.synchronize()\n    return y\n")
    timing = timing_of(found)
    assert timing["method"] == "handshake", timing.get("not_captured")
    assert timing["nodes"] == 1
    assert timing["waits"] == ["k.py:4 (synchronize)"]
    assert "host_reads" not in timing
    assert timing["graph_unsafe_reason"] == "it waits for the device in k.py:4 (synchronize)"


@pytest.mark.parametrize(("function", "nodes", "calls"), [("neg", 2048, 7), ("clone", 128, 3)])
def test_a_pass_has_fewer_calls_if_these_have_many_nodes_or_copies(judged, function, nodes, calls):
    source = f"def run(x):\n    for _ in range({nodes}):\n        x = x.{function}()\n    return x * 2\n"
    timing = timing_of(judged(source, n=1024))
    assert timing["method"] == "handshake", timing.get("not_captured")
    assert timing["nodes"] == nodes + 1
    assert timing["samples"] % calls == 0


def test_calls_read_what_the_judge_has_put_into_their_slots_however_busy_the_device_is(judged, monkeypatch):
    load = BoundFunction.load_all

    def load_late(self, inputs):
        self.slots.inputs.zero_()
        torch.cuda.synchronize()
        torch.cuda._sleep(200_000_000)
        load(self, inputs)

    monkeypatch.setattr(BoundFunction, "load_all", load_late)
    found = judged("def run(x):\n    if not x.any():\n        raise ValueError('zeros')\n    return x * 2\n")
    assert found.status is EvaluationStatus.PASSED, found.log


def test_calls_that_read_generated_values_are_eager(judged):
    found = judged("def run(x):\n    m = x[0].item()\n    return x * 2 + (x[0] - m)\n")
    timing = timing_of(found)
    assert timing["method"] == "eager"
    assert timing["call_ms"] == pytest.approx(found.performance.latency_ms)
    assert timing["not_captured"] == "waits for the device in k.py:2 (.item()) of computed values"


@pytest.mark.parametrize("refuses", [False, True])
def test_a_kernel_that_outlasts_its_call_is_found(judged, refuses):
    found = judged(ON_A_SIDE_STREAM.format(refuses=refuses))
    assert found.status is EvaluationStatus.REWARD_HACK
    assert "background activity" in found.log


LAST_PAGES = """
import torch
def run(table, kv_indptr, kv_indices, kv_last_page_len):
    pages = table[kv_indices[kv_indptr[1:].long() - 1].long()]
    places = torch.arange(table.shape[1], device=table.device)
    return torch.where(places < kv_last_page_len[:, None], pages, 0.0)
"""


@pytest.mark.parametrize(("batch", "setup"), [(1, ""), (3, ""), (9, ""), (3, "def setup(*inputs):\n    return {}\n")])
def test_redrawn_structure_shows_what_is_safe_in_graphs(judged, batch, setup):
    """A single request or page is no reason against it, and neither are other strides."""
    inputs = {
        "table": "float32[num_pages,page_size]", "kv_indptr": "int32[len_indptr]", "kv_indices": "int32[n]",
        "kv_last_page_len": "int32[batch_size]",
    }  # fmt: skip
    constraints = ("len_indptr == batch_size + 1", "n == kv_indptr[-1].item()")
    output = {"y": "float32[batch_size,page_size]"}
    definition = make_definition(inputs, output, LAST_PAGES, constraints=constraints)
    sizes = {"num_pages": 64, "page_size": 16, "len_indptr": batch + 1, "n": 9, "batch_size": batch}
    timing = timing_of(judged(setup + LAST_PAGES, definition, {"layout": {"table": [32, 1]}}, **sizes))
    assert timing["graph_safe"] is (not setup), timing.get("graph_unsafe_reason")


SUMS = """
import torch
def run(table, scale, kv_indptr, kv_indices):
    rows = torch.repeat_interleave(torch.diff(kv_indptr))
    out = torch.zeros(len(kv_indptr) - 1, table.shape[1], device=table.device)
    return out.index_add_(0, rows, table[kv_indices.long()]) * scale[:, None]
"""
READERS = {
    "numbers": """
    sums = [table[kv_indices[int(a) : int(b)].long()].sum(0) for a, b in zip(kv_indptr[:-1], kv_indptr[1:])]
    return torch.stack(sums) * scale[:, None]
""",
    "data of the host": """
    ends = kv_indptr.tolist()
    rows = torch.tensor([i for i in range(len(ends) - 1) for _ in range(ends[i + 1] - ends[i])], device=table.device)
    out = torch.zeros(len(ends) - 1, table.shape[1], device=table.device)
    return out.index_add_(0, rows, table[kv_indices.long()]) * scale[:, None]
""",
    "copies": """
    lengths = torch.diff(kv_indptr.cpu())
    rows = torch.repeat_interleave(lengths).to(table.device)
    out = torch.zeros(len(lengths), table.shape[1], device=table.device)
    return out.index_add_(0, rows, table[kv_indices.long()]) * scale[:, None]
""",
    "sizes": """
    place = torch.arange(len(kv_indices), device=table.device)
    out = []
    for a, b in zip(kv_indptr[:-1], kv_indptr[1:]):
        inside = (place >= a) & (place < b)
        out.append(table[kv_indices[inside].long()].sum(0) + 0 * len(inside.nonzero()))
    return torch.stack(out) * scale[:, None]
""",
}


@pytest.mark.parametrize("reader", READERS)
def test_calls_that_read_structure_are_captured_with_what_they_read(judged, reader):
    inputs = {
        "table": "float32[num_pages,page_size]", "scale": "float32[batch_size]", "kv_indptr": "int32[len_indptr]",
        "kv_indices": "int32[n]",
    }  # fmt: skip
    constraints = ("len_indptr == batch_size + 1", "n == kv_indptr[-1].item()")
    output = {"y": "float32[batch_size,page_size]"}
    definition = make_definition(inputs, output, SUMS, constraints=constraints)
    sizes = {"num_pages": 256, "page_size": 64, "len_indptr": 6, "n": 40, "batch_size": 5}
    code = "import torch\ndef run(table, scale, kv_indptr, kv_indices):" + READERS[reader]
    timing = timing_of(judged(code, definition, **sizes))
    assert timing["method"] == "handshake", timing.get("not_captured")
    assert timing["host_reads"]
    assert timing["verified_calls"] >= 10
    assert timing["graph_unsafe_reason"].startswith("it waits for the device in k.py:")
    reference = timing_of(judged(SUMS, definition, **sizes))
    assert timing["orders_ms"]["cold"] > 0.3 * reference["orders_ms"]["cold"]


class TestNodes:
    @pytest.fixture
    def module(self):
        torch.zeros(1, device="cuda:0")
        found = open_native(torch.device("cuda:0"))
        assert isinstance(found, Native)
        return found

    def captured(self, function):
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            function()
        return graph

    def test_kernels_copies_and_fills_are_counted(self, module):
        from cuda.bindings import driver

        x, y = torch.ones(2, 1 << 16, device="cuda:0")

        def call():
            y.copy_(x)
            x.mul_(2)
            (status,) = driver.cuMemsetD8Async(y.data_ptr(), 0, y.nbytes, torch.cuda.current_stream().cuda_stream)
            assert status == driver.CUresult.CUDA_SUCCESS

        graph = self.captured(call)
        assert module.inspect(graph.raw_cuda_graph()) == (3, 2)

    def test_kernels_of_a_handshake_are_refused_by_name(self, module):
        compiled = torch.cuda._compile_kernel('extern "C" __global__ void fib_digest() {}', "fib_digest")
        graph = self.captured(lambda: compiled((1, 1, 1), (1, 1, 1), ()))
        with pytest.raises(CannotCapture, match="a kernel of the harness"):
            module.inspect(graph.raw_cuda_graph())

    def test_host_functions_are_refused(self, module):
        from cuda.bindings import driver

        def call_host():
            stream = torch.cuda.current_stream().cuda_stream
            (status,) = driver.cuLaunchHostFunc(stream, driver.CUhostFn(0x1), 0)  # it is never run
            assert status == driver.CUresult.CUDA_SUCCESS

        graph = self.captured(call_host)
        with pytest.raises(CannotCapture, match="a host function"):
            module.inspect(graph.raw_cuda_graph())


def test_a_trusted_function_is_measured_by_the_same_clock():
    x = torch.ones(1 << 20, device="cuda:0")
    found = measure(lambda given: given * 2, x)
    assert 0.001 < found.latency_ms < found.call_ms < 1
    reader = measure(lambda given: given * (given * 2).sum().item(), x, rounds=2)
    assert found.latency_ms < reader.latency_ms < reader.call_ms
    large = measure(lambda given: given.repeat(5).cpu(), x, rounds=2)
    assert large.latency_ms is None, "20 MiB cross"
    assert large.call_ms > found.latency_ms
