"""The end of the interpreter while background work runs: the exit code is the program's own."""

import os
import subprocess
import sys

import pytest
from apply_samples import new_solution, new_trace, write_set

PROGRAM = """
import pathlib, sys, time, torch, fib_apply
@fib_apply.apply("scale")
def scale(x):
    return 2 * x
fib_apply.enable_apply(sys.argv[1], fib_apply.ApplyConfig(aot_ratio=0.0))
scale(torch.ones(2, 4))
began = pathlib.Path(sys.argv[2])
while not began.exists():
    time.sleep(0.01)
sys.exit(7)
"""
BEGIN = """
import os, pathlib, time
if os.environ.get("FIB_ENABLE_APPLY") != "0":
    pathlib.Path({path!r}).touch()
{step}
def run(x, y):
    y.copy_(2 * x)
"""
IN_PROCESS = "    import torch\n    a = torch.ones(700, 700)\n    while True: {step}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "language"),
    [
        (IN_PROCESS.format(step="torch.linalg.svd(a[:300, :300])"), "python"),
        ("    time.sleep(1000)", "python"),
        ("else:\n    pathlib.Path({path!r}).touch()\n    time.sleep(1000)", "python"),
        ("else: time.sleep(0)", "triton"),
    ],
    ids=["in LAPACK", "asleep", "probing", "before a first run"],
)
def test_the_exit_code_is_the_program_s(step, language, tmp_path):
    began = tmp_path / "began"
    content = BEGIN.format(path=str(began), step=step.replace("{path!r}", repr(str(began))))
    write_set(tmp_path, new_trace("slow", m=2), solutions=[new_solution("slow", language=language, content=content)])

    command = [sys.executable, "-c", PROGRAM, str(tmp_path), str(began)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)

    assert (ended.returncode, ended.stderr) == (7, "")
