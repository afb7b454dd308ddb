"""Every command that takes a data set stands bad ones: a sample of the kinds.

`python tests-integration/bad_data_sets.py` runs all of them, which takes about an hour on two cores.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

RUNNER = Path(__file__).with_name("bad_data_sets.py")


def _run(*words: str) -> None:
    done = subprocess.run([sys.executable, str(RUNNER), *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_the_kinds_are_many_and_a_healthy_set_passes() -> None:
    listed = subprocess.run([sys.executable, str(RUNNER), "--list"], capture_output=True, text=True, check=True).stdout
    kinds, _, commands = listed.partition("\n\n")
    assert len(kinds.splitlines()) > 600
    assert len(commands.splitlines()) >= 38
    _run("--only", "healthy", "--light")


@pytest.mark.slow
def test_a_sample_of_bad_sets_costs_only_itself() -> None:
    _run("--sample", "40", "--light")
