"""Captures of CUDA graphs in global mode while a background thread builds a solution, and while it first runs it.

Part of `apply_overhead`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

import attrs
import torch
from fib_apply import ApplyConfig, ApplyRuntime, apply
from fib_schema import Definition, SourceFile, TraceSet
from overhead_calls import Function, Kind, arguments_for

LEAST_CAPTURED, MOST_CAPTURE_SECONDS = 20, 20.0


def capture_while_building(root: Path, device: str, report: Any, kind: Kind) -> list[str]:
    """Capture CUDA graphs in global mode while a background thread builds a solution, and while it first runs it.

    Returns:
        What went wrong.
    """
    problems = []
    rows = []
    for moment in ("built", "first run"):
        with TemporaryDirectory() as folder:
            unseen(root, Path(folder), device, *kind)
            try:
                row = capture_once(Path(folder), device, moment, *kind)
            except Exception as error:  # noqa: BLE001 a failing capture is the result
                problems.append(f"a capture while a solution is {moment}: {type(error).__name__}: {error}")
                continue
        rows.append(row)
        problems += [f"a capture while a solution is {moment}: {problem}" for problem in row["problems"]]
    header = (
        "meanwhile",
        "seconds",
        "calls captured",
        "by the fallback",
        "by the solution",
        "hits of 10 calls afterwards",
    )
    keys = ("moment", "seconds", "captured", "misses_in_capture", "hits_in_capture", "hits_afterwards")
    report.table("Global-mode captures meanwhile", header, [[row[key] for key in keys] for row in rows])
    report.numbers["captures"] = rows
    return problems


def unseen(root: Path, to: Path, device: str, definition: Definition, axes: Mapping[str, int]) -> None:
    """A data set with a Triton solution that is not compiled yet, and a trace by which it is chosen.

    The trace is one of a solution that differs in its kernel's name alone.
    """
    trace_set = TraceSet.from_path(root)
    traces = [trace for trace in trace_set.traces[definition.name] if trace.is_successful()]
    known = next(t for t in traces if "triton" in str(t.solution) and dict(t.workload.axes) == dict(axes))
    solution = trace_set.get_solution(str(known.solution))
    assert solution is not None
    assert known.evaluation is not None
    mark = uuid4().hex
    sources = [SourceFile(s.path, s.content.replace("rmsnorm_rows", f"rows_{mark}")) for s in solution.sources]
    fresh = attrs.evolve(solution, name=f"unseen_{mark}", sources=tuple(sources))
    evaluation = attrs.evolve(known.evaluation, extra={"solution_hash": fresh.hash()})
    made = TraceSet.from_path(to)
    made.add_definitions([definition])
    made.add_solutions([fresh])
    made.add_traces([attrs.evolve(known, solution=fresh.name, evaluation=evaluation)])


def capture_once(
    root: Path, device: str, moment: str, definition: Definition, axes: Mapping[str, int]
) -> dict[str, Any]:
    """Capture calls until the background thread is done, and note what serves then and afterwards."""
    runtime = ApplyRuntime(root, ApplyConfig(aot_ratio=0.0, require_speedup=False), stats=True)
    inputs = arguments_for(definition, axes, device, with_outputs=False)
    norm = _norm_with_fallback(definition.name)

    def counts() -> tuple[int, int]:
        found = runtime.stats()[definition.name]
        return sum(found.hits.values()), sum(found.misses.values())

    with runtime:
        wanted = norm(*inputs)  # asks for the solution to be built
        if moment == "first run":
            runtime.wait_until_built(120)
            norm(*inputs)  # asks for it to be run
        before = counts()
        row = {"moment": moment, **_capture(lambda: norm(*inputs), runtime, wanted)}
        during = counts()
        row["hits_afterwards"] = _hits_afterwards(lambda: norm(*inputs), runtime, lambda: counts()[0])
    row["hits_in_capture"], row["misses_in_capture"] = during[0] - before[0], during[1] - before[1]
    row["left_out"] = runtime.left_out()
    row["problems"] += _capture_problems(row)
    return row


def _hits_afterwards(call: Callable[[], Any], runtime: ApplyRuntime, hits: Callable[[], int]) -> int:
    """The hits of ten eager calls, after everything is built and has run."""
    for _ in range(3):
        runtime.wait_until_built(120)
        call()
    before = hits()
    for _ in range(10):
        call()
    return hits() - before


def _norm_with_fallback(name: str) -> Function:
    """A norm with a working fallback."""

    @apply(name)
    def norm(hidden_states: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.rms_norm(hidden_states, weight.shape, weight, eps=1e-5)

    return norm


def _capture(call: Callable[[], Any], runtime: ApplyRuntime, wanted: torch.Tensor) -> dict[str, Any]:
    """Capture until the background thread is done, then replay."""
    graph = torch.cuda.CUDAGraph()
    results: list[torch.Tensor] = []
    with _capturing(graph):
        begin = time.perf_counter()
        was_busy = not runtime.wait_until_built(0)
        is_done = False
        while len(results) < LEAST_CAPTURED or not is_done:
            is_done = runtime.wait_until_built(0.02) or time.perf_counter() - begin > MOST_CAPTURE_SECONDS
            results.append(call())
    seconds = time.perf_counter() - begin
    graph.replay()
    torch.cuda.synchronize()
    wrong = sum(not torch.allclose(one.float(), wanted.float(), rtol=2e-2, atol=2e-2) for one in results)
    problems = [f"{wrong} of {len(results)} captured calls replay wrong results"] if wrong else []
    if not was_busy:
        problems.append("nothing went on in the background")
    return {"seconds": f"{seconds:.2f}", "captured": len(results), "problems": problems}


@contextmanager
def _capturing(graph: Any) -> Iterator[None]:
    """Like `torch.cuda.graph` without its garbage collection, during which the background thread would finish."""
    torch.cuda.synchronize()
    stream: Any = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        graph.capture_begin(capture_error_mode="global")
        try:
            yield
        finally:
            graph.capture_end()
    torch.cuda.synchronize()


def _capture_problems(row: Mapping[str, Any]) -> list[str]:
    problems = [f"{name} was left out: {why}" for name, why in row["left_out"].items()]
    if row["hits_afterwards"] != 10:
        problems.append("the solution does not serve afterwards")
    if row["moment"] == "built" and row["hits_in_capture"]:
        problems.append("a solution that had never run was captured")
    return problems
