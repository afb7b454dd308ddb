"""From traced calls to a benchmark: solutions get the traced tensors, bit for bit."""

import pytest
import torch
from fib_apply import apply
from fib_bench import make_inputs
from fib_schema import AxisConst, AxisVar, Definition, TensorSpec, TraceSet
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


@apply("embed_h16")
def embed(table, tokens):
    return table[tokens]


@apply("rmsnorm_h16")
def norm(x, weight, eps):
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps) * weight.float()).to(x.dtype)


class Model:
    """Two layers that reuse their buffers, as an engine does."""

    def __init__(self):
        generator = torch.Generator().manual_seed(1)
        self.table = torch.randn(VOCABULARY, HIDDEN, generator=generator).bfloat16()
        self.weight = torch.randn(HIDDEN, generator=generator).bfloat16()
        self.tokens = torch.zeros(64, dtype=torch.int64)
        self.rows = torch.zeros(64, HIDDEN, dtype=torch.bfloat16)

    def step(self, tokens, seen):
        count = len(tokens)
        self.tokens[:count] = torch.tensor(tokens)
        rows = embed(self.table, self.tokens[:count])
        self.rows[:count] = rows
        seen.append({"tokens": self.tokens[:count].clone(), "x": self.rows[:count].clone()})
        norm(self.rows[:count], self.weight, 1e-5)
        self.tokens.fill_(-1)
        self.rows.fill_(float("nan"))


@pytest.fixture
def traced(tmp_path):
    """A data set with the workloads of three passes, the inputs of the layers, and the model."""
    data_set = TraceSet(tmp_path)
    data_set.add_definitions([EMBED, NORM])
    model, seen = Model(), []
    with enable_tracing(tmp_path, TracingConfig("dump_all")):
        for tokens in ([1, 2, 3], [31, 0], [5, 5, 5]):
            model.step(tokens, seen)
    return tmp_path, seen, model


def test_benchmark_inputs_are_the_traced_tensors(traced):
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
