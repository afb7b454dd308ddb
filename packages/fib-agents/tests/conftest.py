"""Fixtures: a small data set, workspaces, and solutions of each kind."""

import pytest
from fib_agents import Workspace
from fib_bench import api
from fib_schema import AxisConst, AxisVar, Definition, RandomInput, TensorSpec, Trace, TraceSet, Workload

REFERENCE = "import torch\n\ndef run(x):\n    return torch.softmax(x, -1)\n"
GOOD = "import torch\n\ndef run(x, y):\n    torch.softmax(x, -1, out=y)\n"
WRONG_LAST_ROW = "import torch\n\ndef run(x, y):\n    torch.softmax(x[:-1], -1, out=y[:-1])\n"
RAISES = "import torch\n\ndef run(x, y):\n    torch.softmax(x, -1, outt=y)\n"


@pytest.fixture(scope="session", autouse=True)
def _ends():
    yield
    api.close()


@pytest.fixture
def definition():
    rows = TensorSpec(("rows", "columns"), "float32")
    axes = {"rows": AxisVar(), "columns": AxisConst(64)}
    return Definition("softmax_n64", "softmax", axes, {"x": rows}, {"y": rows}, REFERENCE, description="A softmax.")


@pytest.fixture
def root(tmp_path, definition):
    folder = tmp_path / "data"
    trace_set = TraceSet(folder)
    trace_set.add_definitions([definition])
    workloads = [Workload({"rows": count}, {"x": RandomInput()}, f"rows-{count}") for count in (1, 4, 16, 64)]
    trace_set.add_traces([Trace(definition.name, workload) for workload in workloads])
    return folder


@pytest.fixture
def workspace(root):
    return Workspace(root)
