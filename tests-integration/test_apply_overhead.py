"""Comparison of CUDA graphs in `apply_overhead`: what is compared, with graphs that a fake clock times."""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import apply_overhead
from apply_overhead import graph_row
from overhead_calls import Pair
from overhead_clocks import launches_of

PAIR = Pair(title="one", direct=lambda: None, routed=lambda: None, arguments=())


class Graphs:
    """Graphs whose time depends on the order of captures, and on the function only as told."""

    def __init__(self, routed_us: float, extra: bool) -> None:
        self.routed_us, self.extra = routed_us, extra
        self.captures = itertools.count()
        self.made: list[tuple[bool, float]] = []

    def capture(self, function: Any, arguments: Any) -> Any:
        del arguments
        is_routed = function is PAIR.routed
        self.made.append((is_routed, 100.0 + next(self.captures) + (self.routed_us if is_routed else 0.0)))
        return self.made[-1]

    def launches(self, graph: Any) -> Counter[tuple[str, ...]]:
        return Counter({("norm",): 20, ("copy",): int(graph[0] and self.extra)})


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> Any:
    def compared(routed_us: float, *, extra: bool = False) -> dict[str, Any]:
        graphs = Graphs(routed_us, extra)
        monkeypatch.setattr(apply_overhead, "graph_of", graphs.capture)
        monkeypatch.setattr(apply_overhead, "replayed_us", lambda graph: graph[1])
        monkeypatch.setattr(apply_overhead, "recorded_launches", graphs.launches)
        return graph_row(PAIR, 40)

    return compared


def test_order_of_captures_makes_no_difference(compared: Any) -> None:
    row = compared(0.0)
    assert abs(row["difference"]) < 0.001
    assert abs(row["same"]) < 0.001
    assert row["problems"] == []


def test_slower_graph_is_found(compared: Any) -> None:
    assert compared(2.0)["difference"] == pytest.approx(0.02, rel=0.1)


def test_another_launch_is_a_problem(compared: Any) -> None:
    assert "graphs launch different kernels" in compared(0.0, extra=True)["problems"][0]


def test_launches_are_those_on_the_device() -> None:
    kernel = {"cat": "kernel", "name": "norm", "args": {"grid": [1, 1, 1], "block": [256, 1, 1], "shared memory": 0}}
    events = [
        kernel,
        kernel,
        {"cat": "gpu_memset", "name": "Memset", "args": {"bytes": 4}},
        {"cat": "cpu_op", "name": "x"},
    ]
    assert launches_of({"traceEvents": events}) == {
        ("norm", "[1, 1, 1]", "[256, 1, 1]", "0", "None"): 2,
        ("Memset", "None", "None", "None", "4"): 1,
    }
