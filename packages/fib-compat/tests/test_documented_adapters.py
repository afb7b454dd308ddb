"""FlashInfer's functions are routed and traced without a word of the program about adapters.

The package ``flashinfer`` of these tests is a stand-in with one function, which says that it was called.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

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

Run = Callable[..., str]
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
def root(tmp_path: Path) -> Path:
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
    workload = samples.workload(4).model_copy(
        update={
            "axes": {"batch_size": 4},
            "inputs": {"hidden_states": samples.RandomInput(), "weight": samples.RandomInput()},
        }
    )
    trace = Trace(definition="rmsnorm_h64", workload=workload, solution="sevens", evaluation=samples.evaluation())
    root = tmp_path / "data"
    save_json_file(definition, root / "definitions" / "rmsnorm" / "rmsnorm_h64.json")
    save_json_file(solution, root / "solutions" / "ada" / "rmsnorm" / "rmsnorm_h64" / "sevens.json")
    save_jsonl_file([trace], root / "traces" / "ada" / "rmsnorm" / "rmsnorm_h64.jsonl")
    return root


@pytest.fixture
def outcome(root: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """The last line that a program prints, which calls ``flashinfer.norm.rmsnorm``."""
    monkeypatch.setenv("PYTHONPATH", str(root.parent))

    def outcome(before: str, after: str = "", **environment: str) -> str:
        return run(PROGRAM.format(before=before, after=after), FIB_DATASET_PATH=str(root), **environment).splitlines()[
            -1
        ]

    return outcome


def test_nothing_is_routed_without_a_word(outcome: Callable[..., str]) -> None:
    assert outcome("import flashinfer_bench") == "result 3.0"


def test_the_variable_routes_what_is_imported_later(outcome: Callable[..., str]) -> None:
    assert outcome("import flashinfer_bench", FIB_ENABLE_APPLY="1") == "result 7.0"


def test_the_variable_routes_what_was_imported_before(outcome: Callable[..., str]) -> None:
    assert outcome("import flashinfer, flashinfer_bench", FIB_ENABLE_APPLY="1") == "result 7.0"


def test_enable_apply_installs_the_adapters(outcome: Callable[..., str], root: Path) -> None:
    assert outcome(f"from flashinfer_bench import enable_apply\nenable_apply({str(root)!r})") == "result 7.0"


def test_enable_tracing_installs_the_adapters(outcome: Callable[..., str], root: Path) -> None:
    enable = f"import flashinfer_bench\nflashinfer_bench.enable_tracing({str(root)!r})"
    assert outcome(enable, after="flashinfer_bench.disable_tracing()") == "result 3.0"
    (trace,) = TraceSet.from_path(str(root)).workloads["rmsnorm_h64"]
    assert trace.workload.axes == {"batch_size": 4}


def test_the_variable_traces(outcome: Callable[..., str], root: Path) -> None:
    assert outcome("import flashinfer_bench", FIB_ENABLE_TRACING="1") == "result 3.0"
    (trace,) = TraceSet.from_path(str(root)).workloads["rmsnorm_h64"]
    assert trace.workload.axes == {"batch_size": 4}


def test_a_with_block_routes_inside_only(outcome: Callable[..., str], root: Path) -> None:
    before = f"import flashinfer_bench\nwith flashinfer_bench.enable_apply({str(root)!r}):\n    pass"
    assert outcome(before) == "result 3.0"
