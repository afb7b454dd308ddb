"""Shared fixtures: a small data set, and functions whose calls are routed."""

import threading

import pytest
import torch
from fib_apply import apply
from fib_schema import AxisConst, AxisVar, Definition, SafetensorsInput, TensorSpec, TraceSet
from fib_tracer import disable_tracing

SILU = Definition(
    "silu_h8",
    "activation",
    axes={"M": AxisVar(), "H": AxisConst(8)},
    inputs={"x": TensorSpec(("M", "H"), "float32")},
    outputs={"y": TensorSpec(("M", "H"), "float32")},
    reference="import torch\n\ndef run(x):\n    return x * torch.sigmoid(x)\n",
)
GATHER = Definition(
    "gather_h8",
    "gather",
    axes={"N": AxisVar(), "M": AxisVar(), "H": AxisConst(8)},
    inputs={
        "table": TensorSpec(("N", "H"), "float32"),
        "rows": TensorSpec(("M",), "int64"),
        "mask": TensorSpec(("M",), "bool", optional=True),
        "scale": TensorSpec(None, "float32"),
    },
    outputs={"y": TensorSpec(("M", "H"), "float32")},
    reference="def run(table, rows, mask, scale):\n    return table[rows] * scale\n",
)
DECODE = Definition(
    "gqa_paged_decode_h2",
    "gqa_paged",
    axes={"B": AxisVar(), "L": AxisVar(), "K": AxisVar(), "H": AxisConst(2)},
    inputs={
        "q": TensorSpec(("B", "H"), "float32"),
        "kv_indptr": TensorSpec(("L",), "int32"),
        "kv_indices": TensorSpec(("K",), "int32"),
        "sm_scale": TensorSpec(None, "float32"),
    },
    outputs={"y": TensorSpec(("B", "H"), "float32")},
    reference="def run(q, kv_indptr, kv_indices, sm_scale):\n    return q\n",
    constraints=("L == B + 1", "K == kv_indptr[-1].item()"),
)


@pytest.fixture
def root(tmp_path):
    """The folder of a data set with three definitions."""
    TraceSet(tmp_path).add_definitions([SILU, GATHER, DECODE])
    return tmp_path


@pytest.fixture
def silu():
    """A routed function of one input."""

    @apply("silu_h8")
    def silu(x):
        return x * torch.sigmoid(x)

    return silu


@pytest.fixture
def gather():
    """A routed function of a table, rows, perhaps a mask, and a number."""

    @apply("gather_h8")
    def gather(table, rows, mask=None, scale=1.0):
        return table[rows] * scale

    return gather


@pytest.fixture
def decode():
    """A routed function with offsets and indices."""

    @apply("gqa_paged_decode_h2")
    def decode(q, kv_indptr, kv_indices, sm_scale):
        return q

    return decode


@pytest.fixture(autouse=True)
def nothing_is_left_in_force():
    """Each test begins and ends without a runtime."""
    disable_tracing()
    yield
    disable_tracing()


def in_threads(work, numbers):
    threads = [threading.Thread(target=work, args=(number,)) for number in numbers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def silu_rows(root):
    """The sizes of the recorded calls of `SILU`."""
    return [workload.axes["M"] for workload in workloads(root, "silu_h8")]


def workloads(root, name):
    traces = TraceSet.from_path(root).workloads.get(name, [])
    return [trace.workload for trace in traces]


def tensors(root, workload):
    stored = {name: spec for name, spec in workload.inputs.items() if isinstance(spec, SafetensorsInput)}
    data_set = TraceSet.from_path(root)
    return {name: data_set.get_workload_blob_tensor(spec.path)[spec.tensor_key] for name, spec in stored.items()}


def errors_of(runtime, *names):
    """The error counts of some definitions.

    A runtime binds all routed functions of the process, and modules of other tests define some for definitions that
    the data set lacks.
    """
    return {kind: count for kind, count in runtime.error_counts().items() if kind.partition(":")[0] in names}
