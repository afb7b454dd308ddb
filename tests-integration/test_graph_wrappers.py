"""The script that checks decode wrappers for CUDA graphs: on the CPU with stand-ins, on a device with FlashInfer."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from fib_compile.device import is_cuda_available
from public_data_set import data_set_path, needs_data_set

HERE = Path(__file__).parent
pytestmark = needs_data_set


def replay(*options: str) -> str:
    """Run the script; returns what it prints."""
    command = [sys.executable, HERE / "engines" / "graph_wrappers.py", data_set_path(), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_runs_after_later_plans_agree_with_the_stand_ins() -> None:
    assert replay("--stand-ins", "0.6.4").count("all answers agree") == 1


@pytest.mark.gpu
@pytest.mark.skipif(find_spec("flashinfer") is None, reason="needs FlashInfer")
def test_replays_after_later_plans_agree_with_flashinfer() -> None:
    if not is_cuda_available():
        pytest.skip("there is no CUDA device")
    assert replay().count("all answers agree") == 2
