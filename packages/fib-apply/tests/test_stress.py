"""Many threads call while runtimes come and go, data sets are reloaded, solutions quarantined, processes forked."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from apply_samples import new_solution, new_trace, write_set
from fib_apply import ApplyConfig, apply, disable_apply, enable_apply
from fib_schema import (
    AxisConst,
    AxisVar,
    Definition,
    TensorSpec,
    Trace,
    TraceSet,
)

WIDTH, SIZES, THREADS = 8, range(1, 9), 8
SOURCES = {
    "returns": ("def run(x, w):\n    return x * w + x.shape[0]\n", False),
    "passes": ("def run(x, w, y):\n    y.copy_(x * w + x.shape[0])\n", True),
}


def fill(folder: Path) -> TraceSet:
    """Two solutions of one definition, recorded for even sizes; both are right."""
    d = Definition(
        "scale",
        "elementwise",
        axes={"m": AxisVar(), "n": AxisConst(WIDTH)},
        inputs={"x": TensorSpec(("m", "n"), "float32"), "w": TensorSpec(("n",), "float32")},
        outputs={"y": TensorSpec(("m", "n"), "float32")},
        reference="def run(x, w):\n    return x * w + x.shape[0]\n",
    )
    solutions = [new_solution(name, content=source, passing=passing) for name, (source, passing) in SOURCES.items()]
    traces = [trace("returns", m, 1.0) for m in SIZES if m % 2 == 0]
    return write_set(folder, *traces, solutions=solutions, definitions=[d])


def trace(solution: str, m: int, latency_ms: float) -> Trace:
    time = f"2026-01-01T00:00:{int(latency_ms * 10):02}Z"
    return new_trace(solution, latency_ms, axes={"m": m}, inputs="xw", timestamp=time)


def wrong_results(function: Any, seed: int, calls: int) -> list[str]:
    """Wrong results of many calls of all kinds; each result depends on the arguments of its call."""
    generator = torch.Generator().manual_seed(seed)
    wrong = []
    for index in range(calls):
        m = int(torch.randint(1, 10, (), generator=generator))
        dtype = torch.float64 if index % 7 == 0 else torch.float32
        x, w = (
            torch.rand(m, WIDTH, generator=generator, dtype=dtype),
            torch.rand(WIDTH, generator=generator, dtype=dtype),
        )
        expected = x * w + m
        if index % 3 == 0:
            y = torch.empty_like(x)
            function(x, w, y)
        else:
            y = function(x, w)
        if y.dtype != dtype or not torch.allclose(y, expected):
            wrong.append(f"call {index} with m={m}, {dtype}")
    return wrong


@pytest.fixture(name="scale")
def scale_fixture() -> Any:
    @apply("scale")
    def scale(x: Any, w: Any, y: Any = None) -> Any:
        result = x * w + x.shape[0]
        return result if y is None else y.copy_(result)

    yield scale
    disable_apply()


@pytest.mark.slow
def test_no_result_is_wrong(scale: Any, tmp_path: Path) -> None:
    found = fill(tmp_path)
    ends, wrong = threading.Event(), []

    def call(seed: int) -> None:
        while not ends.is_set():
            wrong.extend(wrong_results(scale, seed, 200))

    threads = [threading.Thread(target=call, args=(seed,)) for seed in range(THREADS)]
    with enable_apply(tmp_path, ApplyConfig(on_error="fallback"), stats=True) as runtime:
        for thread in threads:
            thread.start()
        for step in range(12):
            found.add_traces(
                [trace("passes" if step % 2 else "returns", m, 0.9 - step / 20) for m in SIZES if m % 4 == 0]
            )
            runtime.reload()
            dispatcher = runtime.dispatcher("scale")
            if step % 3 == 0:
                dispatcher.quarantine(next(iter(SOURCES)), "a test")
            with enable_apply(tmp_path, ApplyConfig(on_miss_policy="use_def_best")):
                assert wrong_results(scale, 100 + step, 50) == []
            child = os.fork()
            if child == 0:
                os._exit(1 if wrong_results(scale, 200 + step, 50) else 0)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        ends.set()
        for thread in threads:
            thread.join()
    assert wrong == []
