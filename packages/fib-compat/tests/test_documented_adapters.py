"""FlashInfer's functions are routed and traced without a word of the program about adapters.

The package ``flashinfer`` of these tests is a stand-in with one function, which says that it was called.
"""

import compat_samples as samples
import pytest
from flashinfer_bench.data import (
    AxisConst,
    AxisVar,
    Definition,
    TensorSpec,
    Trace,
    TraceSet,
    save_json_file,
    save_jsonl_file,
)

pytestmark = pytest.mark.slow

NORM = """
import torch

def rmsnorm(input, weight, eps=1e-06, out=None, enable_pdl=None):
    return torch.full_like(input, 3.0)
"""
PROGRAM = """
import sys
{before}
import torch
import flashinfer
result = flashinfer.norm.rmsnorm(torch.ones(4, 64, dtype=torch.bfloat16), torch.ones(64, dtype=torch.bfloat16))
print("result", float(result.flatten()[0]))
{after}
"""


@pytest.fixture
def root(tmp_path):
    """A data set whose solution returns sevens, and a package ``flashinfer`` beside it."""
    (tmp_path / "flashinfer").mkdir()
    (tmp_path / "flashinfer" / "__init__.py").write_text("from . import norm\n__version__ = '0.6.4'\n")
    (tmp_path / "flashinfer" / "norm.py").write_text(NORM)
    tensor = TensorSpec(shape=["batch_size", "hidden_size"], dtype="bfloat16")
    definition = Definition(
        name="rmsnorm_h64",
        op_type="rmsnorm",
        axes={"batch_size": AxisVar(), "hidden_size": AxisConst(value=64)},
        inputs={"hidden_states": tensor, "weight": TensorSpec(shape=["hidden_size"], dtype="bfloat16")},
        outputs={"output": tensor},
        reference="def run(hidden_states, weight):\n    EPS = 1e-06\n    return hidden_states * 0 + 7\n",
    )
    solution = samples.solution("sevens", "def run(hidden_states, weight):\n    return hidden_states * 0 + 7\n")
    inputs = {"hidden_states": samples.RandomInput(), "weight": samples.RandomInput()}
    workload = samples.workload(4).model_copy(update={"axes": {"batch_size": 4}, "inputs": inputs})
    trace = Trace(definition="rmsnorm_h64", workload=workload, solution="sevens", evaluation=samples.evaluation())
    root = tmp_path / "data"
    save_json_file(definition, root / "definitions" / "rmsnorm" / "rmsnorm_h64.json")
    save_json_file(solution, root / "solutions" / "ada" / "rmsnorm" / "rmsnorm_h64" / "sevens.json")
    save_jsonl_file([trace], root / "traces" / "ada" / "rmsnorm" / "rmsnorm_h64.jsonl")
    return root


@pytest.fixture
def outcome(root, run, monkeypatch):
    """The last line that a program prints, which calls ``flashinfer.norm.rmsnorm``."""
    monkeypatch.setenv("PYTHONPATH", str(root.parent))

    def outcome(before, after="", **environment):
        printed = run(PROGRAM.format(before=before, after=after), FIB_DATASET_PATH=str(root), **environment)
        return printed.splitlines()[-1]

    return outcome


@pytest.mark.parametrize(
    ("before", "environment", "result"),
    [
        ("import flashinfer_bench", {}, 3.0),
        ("import flashinfer_bench", {"FIB_ENABLE_APPLY": "1"}, 7.0),
        ("import flashinfer, flashinfer_bench", {"FIB_ENABLE_APPLY": "1"}, 7.0),
        ("from flashinfer_bench import enable_apply\nenable_apply({root!r})", {}, 7.0),
        ("import flashinfer_bench\nwith flashinfer_bench.enable_apply({root!r}):\n    pass", {}, 3.0),
    ],
    ids=["not enabled", "variable", "variable, imported before", "enable_apply", "after a with block"],
)
def test_calls_are_routed_where_routing_is_enabled(outcome, root, before, environment, result):
    assert outcome(before.format(root=str(root)), **environment) == f"result {result}"


@pytest.mark.parametrize("by_variable", [False, True])
def test_calls_are_traced(outcome, root, by_variable):
    if by_variable:
        found = outcome("import flashinfer_bench", FIB_ENABLE_TRACING="1")
    else:
        enable = f"import flashinfer_bench\nflashinfer_bench.enable_tracing({str(root)!r})"
        found = outcome(enable, after="flashinfer_bench.disable_tracing()")
    assert found == "result 3.0"
    (trace,) = TraceSet.from_path(str(root)).workloads["rmsnorm_h64"]
    assert trace.workload.axes == {"batch_size": 4}
