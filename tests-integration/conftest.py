"""Pytest configuration of the integration tests: one cache for builds, and modules shared by tests."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "support"))


@pytest.fixture(scope="session", autouse=True)
def build_cache(tmp_path_factory):
    """Builds are shared by all tests of a session, and nothing is enabled by the environment."""
    path = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FIB_CACHE_PATH", str(path))
        patch.delenv("FIB_ENABLE_APPLY", raising=False)
        patch.delenv("FIB_ENABLE_TRACING", raising=False)
        yield path


@pytest.fixture(autouse=True)
def _use_build_cache(build_cache, monkeypatch):
    """Set the cache of these tests again: in a run of several packages each has a cache of its own."""
    monkeypatch.setenv("FIB_CACHE_PATH", str(build_cache))
