"""Runs of the block with and without apply: their results and times, and which solution served which part."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, TypeAlias

import torch
from block_job import Call, Job, Options, baseline_of
from block_parts import PARTS, axes_of
from decoder_layer import Tensors, make_tensors
from fib_apply import ApplyConfig, ApplyConfigRegistry, ApplyKey, ApplyRuntime
from fib_compile.device import hardware_from_device

Function: TypeAlias = Callable[..., Any]

ANY_SPEED = ApplyConfig(require_speedup=False)
"""The fastest solution serves each part, also where the engine's own function is faster."""
MOST_RMS, MOST_OF_RMS, MOST_RELATIVE = 2e-2, 1e-1, 2e-2
"""Results agree if their difference has a root mean square of `MOST_RMS` of the result's, and each element
differs by at most `MOST_OF_RMS` of that and `MOST_RELATIVE` of itself. An element of bfloat16 is rounded by
up to 0.4 %, here some five times in a row."""
CALLS, CALLS_OF_LARGE, LARGE_BATCH = 20, 5, 256


@contextmanager
def enabled(runtime: ApplyRuntime | None) -> Iterator[None]:
    """Enable a runtime, or none, within the context."""
    with runtime or nullcontext():
        yield


def until_ready(call: Call, runtime: ApplyRuntime) -> None:
    """Wait until everything that a call needs is built, compiled and run once."""
    with enabled(runtime):
        for _ in range(4):
            call()
            if not runtime.wait_until_built(120):
                raise TimeoutError("solutions are still being built in the background")


def captured(call: Call) -> tuple[Call, Any]:
    """A call's CUDA graph, and the results that it writes."""
    call()  # libraries initialise themselves at the first call
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = call()
    return graph.replay, results


def modes_of(job: Job, block: Function, tensors: Tensors) -> dict[str, Callable[[], Call]]:
    """By mode, a function that makes a call under the enabled runtime; the call returns the block's results.

    Compiled code keeps the original functions: its results and times are those without apply.
    """
    torch._dynamo.reset()  # each batch size has graphs of its own
    compiled = torch.compile(block, fullgraph=True, dynamic=False, backend=job.options.backend)
    inputs = tensors.all()

    def graphed(function: Function) -> Call:
        replay, results = captured(lambda: function(*inputs))

        def call() -> Any:
            replay()
            return results

        return call

    modes: dict[str, Callable[[], Call]] = {
        "eager": lambda: lambda: block(*inputs),
        "compiled": lambda: lambda: compiled(*inputs),
    }
    if job.options.is_cuda:
        modes["captured"] = lambda: graphed(block)
        modes["compiled, captured"] = lambda: graphed(compiled)
    return modes


def run_batch(job: Job, block: Function, batch: int) -> None:
    """Check and time the block for one number of sequences, in all modes."""
    tensors = make_tensors(job.definitions, job.options.device, batch)
    runtimes = runtimes_of(job)
    for runtime in filter(None, runtimes.values()):
        until_ready(lambda: block(*tensors.all()), runtime)
    wanted = results_of(lambda: block(*tensors.all()), tensors)
    modes = modes_of(job, block, tensors)
    for mode, make in modes.items():
        print(f"batch {batch}, {mode}", flush=True)
        calls: dict[str, Call] = {}
        for name, chosen in runtimes.items():
            with enabled(chosen):
                calls[name] = make()
                compare(job, f"batch {batch}, {mode}, {name} apply", results_of(calls[name], tensors), wanted)
        time_all(job, batch, mode, calls, runtimes)
    count_hits(job, batch, {mode: make for mode, make in modes.items() if "compiled" not in mode})


def runtimes_of(job: Job) -> dict[str, ApplyRuntime | None]:
    """The runtimes whose times are compared, by the name of their column; None is plain torch."""
    config = ApplyConfigRegistry(
        per_definition={
            definition.name: ApplyConfig(baseline=baseline_of(job, part))
            for part, definition in job.definitions.items()
        }
    )
    return {"without": None, "with": ApplyRuntime(job.root, config)}


def results_of(call: Call, tensors: Tensors) -> list[torch.Tensor]:
    """Copies of the tensors that a call of the block returns and writes."""
    tensors.clear()
    return [found.clone() for found in (*call(), *tensors.written())]


def compare(job: Job, title: str, found: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> None:
    """Check that results agree with those of the eager run without apply."""
    row: dict[str, Any] = {"run": title}
    for name, one, other in zip(("hidden", "residual", "keys", "values"), found, wanted, strict=True):
        one, other = one.float(), other.float()
        scale = other.square().mean().sqrt()
        difference = (one - other).abs()
        row[name] = float(difference.square().mean().sqrt() / scale)
        is_close = bool((difference <= MOST_OF_RMS * scale + MOST_RELATIVE * other.abs()).all())
        if not (is_close and row[name] <= MOST_RMS):
            job.fail(f"{title}: {name} differs by {row[name]:.2%} (root mean square), at most {difference.max():.3g}")
    job.report.numbers.setdefault("agreement", []).append(row)


def time_all(
    job: Job, batch: int, mode: str, calls: Mapping[str, Call], runtimes: Mapping[str, ApplyRuntime | None]
) -> None:
    """Median times of the block without and with apply, alternating."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for index in range(job.options.rounds + 1):
        for name, call in calls.items():
            with enabled(runtimes[name]):
                sample = sample_us(call, job.options, CALLS if batch < LARGE_BATCH else CALLS_OF_LARGE)
            if index:  # the first round warms up
                samples[name].append(sample)
    medians = {name: statistics.median(found) for name, found in samples.items()}
    job.report.numbers.setdefault("block_us", []).append({"batch": batch, "mode": mode, **medians, "samples": samples})


def sample_us(call: Call, options: Options, count: int) -> float:
    """The time per call of many consecutive calls."""
    count = 2 if options.is_small else count
    call()
    if not options.is_cuda:
        begin = time.perf_counter()
        for _ in range(count):
            call()
        return (time.perf_counter() - begin) / count * 1e6
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(count):
        call()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop) / count * 1e3


# -- which solution served -----------------------------------------------------------------------


def count_hits(job: Job, batch: int, modes: Mapping[str, Callable[[], Call]]) -> None:
    """Call the block once in each mode, and report which solution served which part."""
    runtime = ApplyRuntime(job.root, ANY_SPEED, stats=True)
    until_ready(modes["eager"](), runtime)
    rows: dict[str, dict[str, Any]] = {part: _chosen(job, part, batch, runtime) for part in PARTS}
    with enabled(runtime):
        for mode, make in modes.items():
            before = _hits(job, runtime)
            call = make()
            if "captured" not in mode:  # a replay calls nothing
                call()
            after = _hits(job, runtime)
            for part, row in rows.items():
                row[mode] = after[part] - before[part]
    for part, row in rows.items():
        found = runtime.stats().get(job.definitions[part].name)
        row["misses"] = dict(found.misses) if found is not None else {}
        _judge(job, part, batch, row)
    job.report.numbers.setdefault("served", []).extend({"batch": batch, "part": p, **row} for p, row in rows.items())


def _chosen(job: Job, part: str, batch: int, runtime: ApplyRuntime) -> dict[str, Any]:
    """The solution that serves a part: the first candidate that is neither quarantined nor has a setup."""
    name = job.definitions[part].name
    rankings = runtime.table.rankings(name).get(hardware_from_device(job.options.device))
    ranking = rankings.by_key.get(ApplyKey(axes_of(part, batch))) if rankings is not None else None
    left_out = runtime.left_out()
    names = [c.solution for c in (ranking.candidates if ranking else ()) if not c.has_setup]
    serving = [solution for solution in names if solution not in left_out]
    return {"definition": name, "solution": serving[0] if serving else None, "candidates": len(names)}


def _hits(job: Job, runtime: ApplyRuntime) -> dict[str, int]:
    """Hits by part; no two parts share a definition."""
    stats = runtime.stats()
    return {part: sum(stats[d.name].hits.values()) if d.name in stats else 0 for part, d in job.definitions.items()}


def _judge(job: Job, part: str, batch: int, row: Mapping[str, Any]) -> None:
    if row["solution"] is None:
        job.fail(f"batch {batch}: no solution was chosen for {part}")
    for mode in ("eager", "captured"):
        if row["solution"] is not None and row.get(mode, 1) == 0:
            job.fail(f"batch {batch}, {mode}: {row['solution']} never served {part}")
