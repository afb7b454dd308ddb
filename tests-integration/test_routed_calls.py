"""Threads get right answers during reloads, quarantines and forks; `routed_calls.py` makes 10^7 calls."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("routed_calls.py")


@pytest.mark.slow
def test_all_answers_are_right(tmp_path: Path) -> None:
    words = [sys.executable, str(SCRIPT), "--calls", "100000", "--seed", "3"]
    environment = {**os.environ, "FIB_CACHE_PATH": str(tmp_path)}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 wrong answers" in done.stdout
