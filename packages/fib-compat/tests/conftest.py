"""A data set that a program of the old API wrote, and subprocesses that are as strict as these tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"
Run = Callable[..., str]


@pytest.fixture(scope="session")
def cache_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def run(cache_path: Path) -> Run:
    """Run Python in a process of its own, where a warning is an error; returns stdout, and fails if that fails."""

    def run(*words: object, **environment: str) -> str:
        done = subprocess.run(
            [sys.executable, "-W", "error", *map(str, words)],
            env={**os.environ, "FIB_CACHE_PATH": str(cache_path), **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    return run


@pytest.fixture(scope="session")
def _written(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("written")
    assert run(PROGRAMS / "data.py", root) == "2 workloads"
    return root


@pytest.fixture
def data_set(_written: Path, tmp_path: Path) -> Path:
    """One definition with a solution and two workloads."""
    return Path(shutil.copytree(_written, tmp_path / "data"))
