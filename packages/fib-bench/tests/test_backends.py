"""Settings of which one would be ignored are refused before anything starts."""

from __future__ import annotations

from typing import Any

import pytest
from fib_bench import BenchmarkConfig, InvalidConfig
from fib_bench.execution.backends import make_executor


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"executor": "ray", "devices": ("cuda:0",)}, "devices: a Ray cluster says itself"),
        ({"executor": "ray", "in_process_trusted": True}, "in_process_trusted: this process"),
        ({"address": "auto"}, "address: it is a Ray cluster's"),
        ({"in_process_trusted": True, "devices": ("cpu",)}, "devices: trusted code runs on one"),
        ({"in_process_trusted": True, "baseline": "a"}, "baseline: trusted runs time no baseline"),
    ],
)
def test_what_does_not_go_together(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        make_executor(BenchmarkConfig(**fields), None, {})
    assert said in str(caught.value)
