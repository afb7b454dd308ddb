"""Results of a run as text, as HTML and as a frame."""

from __future__ import annotations

import attrs
import pytest
from fib_bench.benchmark import RunResult
from fib_bench.plan import Skip
from fib_schema import Correctness, Environment, Evaluation, Performance, RandomInput, Trace, Workload

HOSTILE = "<img src=x onerror=alert(1)>\x1b[2J"


def trace(solution: str, size: int, status: str = "PASSED", log: str = "") -> Trace:
    measured = {"correctness": Correctness(), "performance": Performance(0.5, 1.0, 2.0)} if status == "PASSED" else {}
    flags = {"flags": ["quick"]} if status == "PASSED" else None
    evaluation = Evaluation(status, Environment("cpu"), "2026-11-24T12:00:00Z", log=log, extra=flags, **measured)
    return Trace("double", Workload({"n": size}, {"x": RandomInput()}, f"w{size}"), solution, evaluation)


def test_text_is_a_table_and_each_log_once() -> None:
    log = "a call raised\nTraceback"
    traces = (trace("fast", 4), trace("broken", 4, "RUNTIME_ERROR", log), trace("broken", 16, "RUNTIME_ERROR", log))
    skip = Skip("double", "other", None, "no builder for language 'cuda'")
    assert str(RunResult(traces, (skip,))).splitlines() == [
        "definition  workload  sizes  solution  status         latency  speedup  flags",
        "double      w4        n=4    fast      PASSED         500 us   2.00x    quick",
        "double      w4        n=4    broken    RUNTIME_ERROR",
        "double      w16       n=16   broken    RUNTIME_ERROR",
        "",
        "broken on w4: RUNTIME_ERROR; log (untrusted output):",
        "  a call raised",
        "  Traceback",
        "skipped double / other: no builder for language 'cuda'",
    ]


@pytest.mark.parametrize(("half_width_ms", "speedup"), [(0.01, "2.00x ± 0.05"), (0.6, "noise")])
def test_latencies_and_speedups_have_their_intervals(half_width_ms: float, speedup: str) -> None:
    passed = trace("fast", 4)
    assert passed.evaluation is not None
    assert passed.evaluation.performance is not None
    timing = {"interval_ms": [0.5 - half_width_ms / 2, 0.5 + half_width_ms / 2], "method": "host"}
    reference = {"interval_ms": [1 - half_width_ms, 1 + half_width_ms], "method": "host"}
    measured = attrs.evolve(passed.evaluation.performance, extra={"timing": timing, "reference_timing": reference})
    result = RunResult((attrs.evolve(passed, evaluation=attrs.evolve(passed.evaluation, performance=measured)),), ())
    assert f"  {speedup}  " in str(result)


def test_a_long_log_is_cut_off() -> None:
    said = str(RunResult((trace("broken", 4, "TIMEOUT", "\n".join(map(str, range(50)))),), ()))
    assert said.endswith("  19\n  ... 30 more lines in evaluation.log")


def test_a_result_is_represented_by_its_counts() -> None:
    traces = (trace("a", 4), trace("b", 4), trace("c", 4, "TIMEOUT"))
    assert repr(RunResult(traces, ())) == "<RunResult 2 PASSED, 1 TIMEOUT; 0 skipped>"
    assert repr(RunResult((), (Skip("d", None, None, "no reason"),))) == "<RunResult no traces; 1 skipped>"


def test_text_of_solutions_is_escaped() -> None:
    result = RunResult((trace("broken", 4, "RUNTIME_ERROR", HOSTILE),), (Skip("d", None, None, HOSTILE),))
    assert "\x1b" not in str(result)
