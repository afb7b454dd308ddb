"""Environment variables enable routing; importing the package imports no torch."""

import multiprocessing
import subprocess
import sys

import pytest
from apply_samples import THREE, new_solution, new_trace, write_set

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
@apply("scale")
def scale(x):
    return 2 * x
scale(torch.ones(1, 4))
assert fib_apply.wait_until_built(300)
print(scale(torch.ones(1, 4)).tolist())
"""


def call(folder, **environment):
    """Output of `CALL` on stdout and stderr, in a fork of a process that has imported torch and nothing of ours."""
    out, err = folder / "out", folder / "err"
    begin = f"import os, sys\nos.environ.update({environment!r})\n"
    begin += "".join(f"sys.{n} = open({str(path)!r}, 'w', 1)\n" for n, path in (("stdout", out), ("stderr", err)))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch"])
    process = context.Process(target=exec, args=(begin + CALL, {"__name__": "__main__"}))
    process.start()
    process.join(300)
    assert process.exitcode == 0
    return out.read_text(), err.read_text()


def test_importing_every_name_imports_no_torch():
    found = subprocess.run([sys.executable, "-c", SEE], capture_output=True, text=True, check=False, timeout=300)
    assert (found.stdout.strip(), found.stderr) == ("[]", "")


@pytest.mark.parametrize(("value", "expected"), [("1", [[3.0] * 4]), ("0", [[2.0] * 4]), ("", [[2.0] * 4])])
def test_the_variable_decides(value, expected, tmp_path):
    write_set(tmp_path, new_trace("fast"), solutions=[new_solution("fast", content=THREE)])
    out, _ = call(tmp_path, FIB_ENABLE_APPLY=value, FIB_DATASET_PATH=str(tmp_path))
    assert out.strip() == str(expected)


@pytest.mark.parametrize(("value", "problem"), [("1", "no data set"), ("perhaps", "expected one of 1")])
def test_an_invalid_environment_is_logged_and_the_program_runs(value, problem, tmp_path):
    out, err = call(tmp_path, FIB_ENABLE_APPLY=value, FIB_DATASET_PATH=str(tmp_path / "nowhere"))
    assert out.strip() == "[[2.0, 2.0, 2.0, 2.0]]"
    assert problem in err
