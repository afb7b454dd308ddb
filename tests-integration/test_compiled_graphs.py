"""Times of compiled graphs that `compiled_graphs` keeps for the runtimes of a block; they are made up here."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fib_apply import ApplyKey
from fib_apply.compiled_times import CALLS, CompiledTimes, CompiledTimesCache
from fib_schema import (
    AxisVar,
    BuildSpec,
    Correctness,
    Definition,
    Environment,
    Evaluation,
    Performance,
    RandomInput,
    Solution,
    SourceFile,
    TensorSpec,
    Trace,
    TraceSet,
    Workload,
)

sys.path.insert(0, str(Path(__file__).parent))

import compiled_graphs
from compiled_graphs import CompiledCall, measure_compiled

VECTOR = TensorSpec(("n",), "float32")
DOUBLE = Definition("double", "o", {"n": AxisVar()}, {"x": VECTOR}, {"y": VECTOR}, "def run(x):\n    return x * 2\n")
TIMES = CompiledTimes("fast", is_inlined=True, pairs_us={CALLS: (10.0, 20.0)})


@pytest.fixture
def solutions(tmp_path: Path) -> dict[str, Solution]:
    """A data set with a baseline and a faster solution."""
    spec = BuildSpec("python", ("cpu",), "main.py::run", destination_passing_style=False)
    source = SourceFile("main.py", DOUBLE.reference)
    made = {name: Solution(name, "double", "me", spec, (source,)) for name in ("baseline", "fast")}
    data_set = TraceSet.from_path(tmp_path)
    data_set.add_definitions([DOUBLE])
    data_set.add_solutions(list(made.values()))
    workload = Workload({"n": 4}, {"x": RandomInput()}, "n4")
    for name, latency_ms in {"baseline": 0.2, "fast": 0.1}.items():
        evaluation = Evaluation(
            "PASSED",
            Environment("cpu"),
            "2026-11-27T12:00:00Z",
            correctness=Correctness(max_relative_error=0.0, max_absolute_error=0.0),
            performance=Performance(latency_ms=latency_ms, reference_latency_ms=1.0, speedup_factor=1.0 / latency_ms),
        )
        data_set.add_traces([Trace("double", workload, name, evaluation)])
    return made


def test_times_are_found_by_the_baseline_that_they_were_measured_against(
    tmp_path: Path, solutions: dict[str, Solution], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    monkeypatch.setattr(compiled_graphs, "measure_opaque_cost", lambda *_: "not asked for")
    monkeypatch.setattr(compiled_graphs, "measure", lambda job, seconds: dict.fromkeys(job.keys, TIMES))
    shown: list[Any] = []
    report = SimpleNamespace(numbers={}, table=lambda title, header, rows: shown.extend(rows), say=lambda *_: None)
    call = CompiledCall(definition=DOUBLE, axes={"n": 4}, values={}, baseline="baseline")
    measure_compiled(tmp_path, "cpu", report, [call], 1.0)
    assert [row[2] for row in shown] == ["fast"]
    cache, key = CompiledTimesCache.in_folder(), ApplyKey({"n": 4})
    assert cache.load(DOUBLE, solutions["fast"], key, "cpu", solutions["baseline"]) == TIMES
    assert cache.load(DOUBLE, solutions["fast"], key, "cpu") is None
