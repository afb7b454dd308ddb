"""Tests of the names that packages export and import lazily."""

from __future__ import annotations

from types import ModuleType

import fib_bench
import pytest
from fib_bench import evaluators


@pytest.mark.parametrize("package", [fib_bench, evaluators])
def test_every_public_name_is_there_and_listed(package: ModuleType) -> None:
    for name in package.__all__:
        assert getattr(package, name) is not None
    assert set(package.__all__) <= set(dir(package))


@pytest.mark.parametrize("package", [fib_bench, evaluators])
def test_a_name_that_does_not_exist_is_told(package: ModuleType) -> None:
    with pytest.raises(AttributeError, match=f"module '{package.__name__}' has no attribute 'nothing'"):
        _ = package.nothing
