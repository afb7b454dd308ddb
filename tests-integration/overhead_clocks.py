"""Clocks of `apply_overhead`: samples of functions in turn, by the host and by CUDA events, and launches of a graph."""

from __future__ import annotations

import json
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import torch

Function: TypeAlias = Callable[..., Any]
Samples: TypeAlias = dict[str, list[float]]

CHUNK = 200
"""Consecutive calls per sample: a device queues about a thousand launches, then the host blocks."""
IN_GRAPH = 20
REPLAYS = 50


def wait_for(device: str) -> None:
    """Synchronise with the device."""
    if device != "cpu":
        torch.cuda.synchronize()


def in_turn(sample: Callable[[Function], float], functions: Mapping[str, Function], rounds: int) -> Samples:
    """Samples of both functions, in alternating order."""
    found: Samples = {name: [] for name in functions}
    for index in range(rounds + 2):
        names = list(functions) if index % 2 else list(functions)[::-1]
        for name in names:
            value = sample(functions[name])
            if index >= 2:  # the first ones warm up
                found[name].append(value)
    return found


def chunk_ns(function: Function, arguments: Sequence[Any], device: str) -> tuple[float, float]:
    """Nanoseconds per consecutive call: until the host has launched all, and until the device is done."""
    wait_for(device)
    begin = time.perf_counter_ns()
    for _ in range(CHUNK):
        function(*arguments)
    made = time.perf_counter_ns()
    wait_for(device)
    return (made - begin) / CHUNK, (time.perf_counter_ns() - begin) / CHUNK


def device_us(function: Function, arguments: Sequence[Any], device: str) -> float:
    """The approximate time of a call's kernels; on a GPU from a CUDA graph, without host time."""
    if device == "cpu":
        return chunk_ns(function, arguments, device)[1] / 1e3
    replay = graph_of(function, arguments)
    return statistics.median(replayed_us(replay) for _ in range(5))


def graph_of(function: Function, arguments: Sequence[Any]) -> Function:
    """A CUDA graph of some calls."""
    function(*arguments)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(IN_GRAPH):
            function(*arguments)
    return graph.replay  # a method, so that the graph lives on


def replayed_us(replay: Function) -> float:
    """The time per call of a replayed graph."""
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    replay()
    start.record()
    for _ in range(REPLAYS):
        replay()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop) / REPLAYS / IN_GRAPH * 1e3


def recorded_launches(replay: Function) -> Counter[tuple[str, ...]]:
    """The launches of one replay on the device, by the profiler of torch."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        replay()
        torch.cuda.synchronize()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        return launches_of(json.loads(path.read_text("utf-8")))


def launches_of(trace: Mapping[str, Any]) -> Counter[tuple[str, ...]]:
    """The kernels, copies and fills of a trace, each with its launch configuration."""
    return Counter(
        (event["name"], *(str(event.get("args", {}).get(key)) for key in ("grid", "block", "shared memory", "bytes")))
        for event in trace["traceEvents"]
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
    )
