"""From traced calls to a benchmark: solutions get the traced tensors, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fib_apply import apply
from fib_bench import Benchmark, BenchmarkConfig, make_inputs
from fib_schema import (
    AxisConst,
    AxisVar,
    BuildSpec,
    Definition,
    Solution,
    SourceFile,
    TensorSpec,
    TraceSet,
)
from fib_tracer import TracingConfig, enable_tracing

HIDDEN, VOCABULARY = 16, 32
EMBED = Definition(
    "embed_h16",
    "embedding",
    axes={"T": AxisVar(), "V": AxisConst(VOCABULARY), "H": AxisConst(HIDDEN)},
    inputs={"table": TensorSpec(("V", "H"), "bfloat16"), "tokens": TensorSpec(("T",), "int64")},
    outputs={"rows": TensorSpec(("T", "H"), "bfloat16")},
    reference="def run(table, tokens):\n    return table[tokens]\n",
)
NORM = Definition(
    "rmsnorm_h16",
    "rmsnorm",
    axes={"T": AxisVar(), "H": AxisConst(HIDDEN)},
    inputs={
        "x": TensorSpec(("T", "H"), "bfloat16"),
        "weight": TensorSpec(("H",), "bfloat16"),
        "eps": TensorSpec(None, "float32"),
    },
    outputs={"y": TensorSpec(("T", "H"), "bfloat16")},
    reference=(
        "import torch\n\ndef run(x, weight, eps):\n"
        "    wide = x.float()\n"
        "    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps) * weight.float()).to(x.dtype)\n"
    ),
)
NORM_SOLUTION = """
import torch

def run(x, weight, eps, y):
    wide = x.float()
    y.copy_((wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps) * weight.float()).to(x.dtype))
"""


CONFIG = BenchmarkConfig(iterations=5, num_trials=1, measure_seconds=0.05)


@apply("embed_h16")
def embed(table: Any, tokens: Any) -> Any:
    return table[tokens]


@apply("rmsnorm_h16")
def norm(x: Any, weight: Any, eps: float) -> Any:
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps) * weight.float()).to(x.dtype)


class Model:
    """Two layers that reuse their buffers, as an engine does."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self.table = torch.randn(VOCABULARY, HIDDEN, generator=generator).bfloat16()
        self.weight = torch.randn(HIDDEN, generator=generator).bfloat16()
        self.tokens = torch.zeros(64, dtype=torch.int64)
        self.rows = torch.zeros(64, HIDDEN, dtype=torch.bfloat16)

    def step(self, tokens: list[int], seen: list[dict[str, torch.Tensor]]) -> None:
        """One forward pass. Appends copies of the layers' inputs to `seen`, then overwrites the inputs."""
        count = len(tokens)
        self.tokens[:count] = torch.tensor(tokens)
        rows = embed(self.table, self.tokens[:count])
        self.rows[:count] = rows
        seen.append({"tokens": self.tokens[:count].clone(), "x": self.rows[:count].clone()})
        norm(self.rows[:count], self.weight, 1e-5)
        self.tokens.fill_(-1)
        self.rows.fill_(float("nan"))


@pytest.fixture
def traced(tmp_path: Path) -> tuple[Path, list[dict[str, torch.Tensor]], Model]:
    """A data set with the workloads of three passes, the inputs of the layers, and the model."""
    spec = BuildSpec("python", ("cpu",), "main.py::run")
    solution = Solution("norm_eager", NORM.name, "test", spec, (SourceFile("main.py", NORM_SOLUTION),))
    data_set = TraceSet(tmp_path)
    data_set.add_definitions([EMBED, NORM])
    data_set.add_solutions([solution])
    model, seen = Model(), []
    with enable_tracing(tmp_path, TracingConfig("dump_all")):
        for tokens in ([1, 2, 3], [31, 0], [5, 5, 5]):
            model.step(tokens, seen)
    return tmp_path, seen, model


def test_benchmark_inputs_are_the_traced_tensors(traced: Any) -> None:
    root, seen, model = traced
    data_set = TraceSet.from_path(root)
    for index, trace in enumerate(data_set.workloads[NORM.name]):
        inputs = make_inputs(NORM, trace.workload, seed=index, root=root)
        assert torch.equal(inputs["x"].view(torch.int16), seen[index]["x"].view(torch.int16))
        assert torch.equal(inputs["weight"].view(torch.int16), model.weight.view(torch.int16))
        assert inputs["eps"] == 1e-5
    for index, trace in enumerate(data_set.workloads[EMBED.name]):
        inputs = make_inputs(EMBED, trace.workload, seed=index, root=root)
        assert torch.equal(inputs["tokens"], seen[index]["tokens"])


def test_traced_workloads_are_benchmarked(traced: Any) -> None:
    root, seen, _ = traced
    data_set = TraceSet.from_path(root)
    result = Benchmark(data_set, CONFIG).run_all()
    traces = result.traces[NORM.name]
    assert len(traces) == len(seen)
    assert {trace.evaluation.status for trace in traces} == {"PASSED"}
    assert {trace.workload.uuid for trace in traces} == {t.workload.uuid for t in data_set.workloads[NORM.name]}
