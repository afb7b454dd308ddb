"""Tests of the selection of the executor: contradicting settings are rejected before anything starts."""

from __future__ import annotations

from typing import Any

import pytest
from fib_bench import BenchmarkConfig, InvalidConfig
from fib_bench.execution.backends import make_executor


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"executor": "ray", "devices": ("cuda:0",)}, "devices: a Ray cluster lists its devices"),
        ({"executor": "ray", "in_process_trusted": True}, "in_process_trusted: a Ray cluster cannot"),
        ({"address": "auto"}, "address: only a Ray cluster has one"),
        ({"in_process_trusted": True, "devices": ("cpu",)}, "devices: trusted code has one device"),
        ({"in_process_trusted": True, "baseline": "a"}, "baseline: trusted runs do not time a baseline"),
    ],
)
def test_what_does_not_go_together(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        make_executor(BenchmarkConfig(**fields), None, {})
    assert said in str(caught.value)
