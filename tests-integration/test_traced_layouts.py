"""From a traced call with views of a packed cache to a routed one: each stage keeps the strides, none makes copies."""

import pytest
import torch
from fib_apply import ApplyConfig, apply, enable_apply
from fib_bench import Benchmark, BenchmarkConfig
from fib_schema import AxisConst, AxisVar, BuildSpec, Definition, Solution, SourceFile, TensorSpec, TraceSet
from fib_tracer import enable_tracing

HEADS, WIDTH = 2, 16
STRIDES = (2 * HEADS * WIDTH, 2 * WIDTH, 1)
SCORES = Definition(
    "scores_h2_d16",
    "attention",
    axes={"P": AxisVar(), "H": AxisConst(HEADS), "D": AxisConst(WIDTH)},
    inputs={
        "q": TensorSpec(("H", "D"), "float32"),
        "k": TensorSpec(("P", "H", "D"), "float32"),
        "v": TensorSpec(("P", "H", "D"), "float32"),
    },
    outputs={"y": TensorSpec(("H", "D"), "float32")},
    reference="def run(q, k, v):\n    return ((k * q).sum(-1, keepdim=True) * v).sum(0)\n",
)
SOLUTION = f"""
import torch

def run(q, k, v):
    assert k.stride() == v.stride() == {STRIDES}
    return torch.einsum("hd,phd,phe->he", q, k, v)
"""


@apply(SCORES.name)
def scores(q, k, v):
    return ((k * q).sum(-1, keepdim=True) * v).sum(0)


@pytest.mark.slow
def test_a_traced_layout_is_measured_and_routed(tmp_path):
    data_set = TraceSet(tmp_path)
    data_set.add_definitions([SCORES])
    spec = BuildSpec("python", ("cpu",), "main.py::run", destination_passing_style=False)
    data_set.add_solutions([Solution("einsum", SCORES.name, "tester", spec, (SourceFile("main.py", SOLUTION),))])
    cache = torch.randn(8, HEADS, 2 * WIDTH)
    q, k, v = torch.randn(HEADS, WIDTH), cache[..., :WIDTH], cache[..., WIDTH:]
    expected = scores(q, k, v)

    with enable_tracing(tmp_path):
        scores(q, k, v)
    config = BenchmarkConfig(iterations=3, num_trials=1, cpu_processes=1, measure_seconds=0.05)
    (trace,) = Benchmark(TraceSet.from_path(tmp_path), config).run().traces
    assert trace.evaluation.status == "PASSED", trace.evaluation.log
    assert trace.evaluation.extra["layout"] == {"k": list(STRIDES), "v": list(STRIDES)}

    with enable_apply(tmp_path, ApplyConfig(require_speedup=False), stats=True) as runtime:
        found = scores(q, k, v)
        scores(q, k.contiguous(), v.contiguous())
        stats = runtime.stats()[SCORES.name]
    assert torch.allclose(found, expected, atol=1e-4)
    assert (sum(stats.hits.values()), dict(stats.misses)) == (1, {"not recorded": 1})
