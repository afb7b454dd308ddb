"""Environment variables enable routing; importing the package imports no torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SEE = """
import json, sys
import fib_apply
names = [name for name in fib_apply.__all__]
[getattr(fib_apply, name) for name in names]
print(json.dumps([name for name in ("torch", "numpy", "triton") if name in sys.modules]))
"""
CALL = """
import torch
from fib_apply import apply
@apply("double")
def double(x):
    return torch.zeros(3)
print(double(torch.ones(3)).tolist())
"""
FILL = """
import sys
from fib_schema import *
d = Definition("double", "elementwise", {"n": AxisVar()}, {"x": TensorSpec(("n",), "float32")},
               {"y": TensorSpec(("n",), "float32")}, "def run(x): return x * 2")
spec = BuildSpec("python", ("cpu",), "m.py::run", destination_passing_style=False)
s = Solution("twice", "double", "tester", spec, (SourceFile("m.py", "def run(x): return x * 2"),))
e = Evaluation("PASSED", Environment("cpu"), "2026-01-01T00:00:00Z", correctness=Correctness(),
               performance=Performance(0.1, 1.0, 10.0))
ts = TraceSet.from_path(sys.argv[1])
ts.add_definitions([d]); ts.add_solutions([s])
ts.add_traces([Trace("double", Workload({"n": 3}, {"x": RandomInput()}, "w"), "twice", e)])
"""


def run(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_importing_every_name_imports_no_torch() -> None:
    found = run(SEE)
    assert (found.stdout.strip(), found.stderr) == ("[]", "")


@pytest.mark.parametrize(("value", "expected"), [("1", [2.0] * 3), ("0", [0.0] * 3), ("", [0.0] * 3)])
def test_the_variable_decides(value: str, expected: list[float], tmp_path: Path) -> None:
    run(FILL, str(tmp_path))
    found = run(CALL, FIB_ENABLE_APPLY=value, FIB_DATASET_PATH=str(tmp_path))
    assert found.stdout.strip() == str(expected)


@pytest.mark.parametrize(("value", "problem"), [("1", "no data set"), ("perhaps", "expected one of 1")])
def test_an_invalid_environment_is_logged_and_the_program_runs(value: str, problem: str, tmp_path: Path) -> None:
    found = run(CALL, FIB_ENABLE_APPLY=value, FIB_DATASET_PATH=str(tmp_path / "nowhere"))
    assert found.stdout.strip() == "[0.0, 0.0, 0.0]"
    assert problem in found.stderr
