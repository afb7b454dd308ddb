"""Pytest configuration for the tests of all packages."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A weekly run sets HYPOTHESIS_PROFILE=full. An example that is slow on a busy machine is not wrong.
_PROFILES = {"default": 20, "full": 500}
for _name, _examples in _PROFILES.items():
    settings.register_profile(
        _name, max_examples=_examples, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a second run leave out what a first one has done."""
    text = "leave out the tests whose node ids are in this file, a line each"
    parser.addoption("--passed-before", metavar="FILE", type=Path, help=text)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what has passed."""
    path: Path | None = config.getoption("--passed-before")
    if path is None:
        return
    try:
        passed = set(path.read_text("utf-8").splitlines())
    except OSError as error:
        raise pytest.UsageError(f"--passed-before: {error}") from error
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in passed])
    items[:] = [item for item in items if item.nodeid not in passed]
