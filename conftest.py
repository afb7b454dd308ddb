"""Pytest configuration for the tests of all packages."""

import os

import pytest
from hypothesis import HealthCheck, settings

# A weekly run sets HYPOTHESIS_PROFILE=full. An example that is slow on a busy machine is not wrong.
_PROFILES = {"default": 20, "full": 500}
for _name, _examples in _PROFILES.items():
    settings.register_profile(
        _name, max_examples=_examples, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let one process run all tests that need a GPU, so that none of them shares the device with another."""
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.xdist_group("gpu"))
