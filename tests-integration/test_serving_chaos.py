"""A routed server under disturbances answers like one without FIB; `serving_chaos.py` does it for ten minutes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("serving_chaos.py")


@pytest.mark.slow
def test_a_disturbed_server_answers_like_one_without_routing() -> None:
    words = [sys.executable, str(SCRIPT), "--seconds", "40", "--seed", "9", "--stall-ms", "inf"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
