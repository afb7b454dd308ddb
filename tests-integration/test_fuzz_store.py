"""Regression tests of the fuzzer: the cases of its corpus run again."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

FUZZER = Path(__file__).with_name("fuzz_store.py")


def _run(*words: str) -> None:
    done = subprocess.run([sys.executable, str(FUZZER), *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_findings_in_data_sets_stay_fixed() -> None:
    _run("--replay", "--only", "sets")


@pytest.mark.skipif(find_spec("securesystemslib") is None, reason="needs the extra 'signing' of fib-schema")
def test_the_findings_in_signed_sets_stay_fixed() -> None:
    _run("--replay", "--only", "signed")


@pytest.mark.slow  # it compiles two libraries
def test_the_findings_in_build_caches_stay_fixed() -> None:
    _run("--replay", "--only", "caches")


@pytest.mark.slow
def test_a_minute_of_fuzzing_finds_nothing(tmp_path: Path) -> None:
    _run("--minutes", "1", "--seed", "7", "--corpus", str(tmp_path))
