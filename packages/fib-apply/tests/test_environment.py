"""Environment variables enable routing; importing the package imports no torch."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from pathlib import Path

import pytest
from apply_samples import new_solution, new_trace, write_set
from fib_schema import (
    AxisVar,
    Definition,
    TensorSpec,
)

SEE = """
import json, sys
import fib_apply
names = [name for name in fib_apply.__all__]
[getattr(fib_apply, name) for name in names]
print(json.dumps([name for name in ("torch", "numpy", "triton") if name in sys.modules]))
"""
CALL = """
import fib_apply, torch
from fib_apply import apply
@apply("double")
def double(x):
    return torch.zeros(3)
double(torch.ones(3))
assert fib_apply.wait_until_built(120)
print(double(torch.ones(3)).tolist())
"""


def fill(root: Path) -> None:
    """Write a data set with one solution, whose result differs from that of `CALL`."""
    code = "def run(x): return x * 2"
    x, y = ({name: TensorSpec(("n",), "float32")} for name in "xy")
    definition = Definition("double", "elementwise", {"n": AxisVar()}, x, y, code)
    solution = new_solution("twice", content=code, definition="double", passing=False)
    write_set(
        root, new_trace("twice", axes={"n": 3}, definition="double"), solutions=[solution], definitions=[definition]
    )


def call(folder: Path, **environment: str) -> tuple[str, str]:
    """Output of `CALL` on stdout and stderr, in a fork of a process that has imported torch and nothing of ours."""
    out, err = folder / "out", folder / "err"
    begin = f"import os, sys\nos.environ.update({environment!r})\n"
    begin += "".join(f"sys.{n} = open({str(path)!r}, 'w', 1)\n" for n, path in (("stdout", out), ("stderr", err)))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch"])
    process = context.Process(target=exec, args=(begin + CALL, {"__name__": "__main__"}))
    process.start()
    process.join(120)
    assert process.exitcode == 0
    return out.read_text(), err.read_text()


def test_importing_every_name_imports_no_torch() -> None:
    found = subprocess.run([sys.executable, "-c", SEE], capture_output=True, text=True, check=False, timeout=120)
    assert (found.stdout.strip(), found.stderr) == ("[]", "")


@pytest.mark.parametrize(("value", "expected"), [("1", [2.0] * 3), ("0", [0.0] * 3), ("", [0.0] * 3)])
def test_the_variable_decides(value: str, expected: list[float], tmp_path: Path) -> None:
    fill(tmp_path)
    out, _ = call(tmp_path, FIB_ENABLE_APPLY=value, FIB_DATASET_PATH=str(tmp_path))
    assert out.strip() == str(expected)


@pytest.mark.parametrize(("value", "problem"), [("1", "no data set"), ("perhaps", "expected one of 1")])
def test_an_invalid_environment_is_logged_and_the_program_runs(value: str, problem: str, tmp_path: Path) -> None:
    out, err = call(tmp_path, FIB_ENABLE_APPLY=value, FIB_DATASET_PATH=str(tmp_path / "nowhere"))
    assert out.strip() == "[0.0, 0.0, 0.0]"
    assert problem in err
