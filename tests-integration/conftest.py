"""Pytest configuration of the integration tests: one cache for builds, and modules shared by tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "support"))


@pytest.fixture(scope="session", autouse=True)
def _build_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Builds are shared by all tests of a session, and nothing is enabled by the environment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FIB_CACHE_PATH", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("FIB_ENABLE_APPLY", raising=False)
        patch.delenv("FIB_ENABLE_TRACING", raising=False)
        yield
