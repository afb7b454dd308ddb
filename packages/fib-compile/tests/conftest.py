"""Fixtures that the tests of fib-compile share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from fib_compile.device import is_cuda_available

sys.path.insert(0, str(Path(__file__).parent / "support"))


@pytest.fixture(autouse=True)
def cache_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own for every test."""
    path = tmp_path / "cache"
    monkeypatch.setenv("FIB_CACHE_PATH", str(path))
    return path


@pytest.fixture
def needs_gpu() -> None:
    """Skip where there is no CUDA device."""
    if not is_cuda_available():
        pytest.skip("needs a CUDA device")
