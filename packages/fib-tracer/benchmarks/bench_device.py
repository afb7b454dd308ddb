"""Cost of tracing on a CUDA device: 10,000 calls of a short kernel, untraced, with full quotas, and keeping 100.

Each way is measured in turns, by the host's clock around all calls and the wait for the device. A profile of kept calls
shows which functions of the CUDA runtime the calling thread used.

usage: python bench_device.py [--rounds 9] [--calls 10000] [--out FOLDER]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from fib_apply import apply
from fib_schema import AxisConst, AxisVar, Definition, TensorSpec, TraceSet
from fib_tracer import Decision, FilterPolicy, TracingConfig, TracingRuntime

KERNEL_US = 20.0
INDEX_BYTES = 64 << 10
KEPT = 100
WAITS = ("Synchronize", "cudaMemcpy_", "cudaMalloc", "cudaHostAlloc")
"""Parts of the names of runtime functions that a call must not use."""

DEFINITION = Definition(
    "scale_rows_h64",
    "elementwise",
    {"N": AxisVar(), "I": AxisVar(), "H": AxisConst(64)},
    {
        "x": TensorSpec(("N", "H"), "float32"),
        "rows": TensorSpec(("I",), "int32"),
        "columns": TensorSpec(("I",), "int32"),
    },
    {"y": TensorSpec(("N", "H"), "float32")},
    "def run(x, rows, columns):\n    return x * 2\n",
)


class EveryNth(FilterPolicy):
    """Keeps one call of n."""

    is_final = True

    def __init__(self, n: int) -> None:
        self._n, self._seen = n, 0

    def decide(self, call: Any) -> Decision:
        """The nth, the 2nth, and so on."""
        self._seen += 1
        return Decision.KEEP if self._seen % self._n == 0 else Decision.SKIP


def kernel_of(microseconds: float) -> tuple[torch.Tensor, torch.Tensor]:
    """A tensor and a buffer such that doubling one into the other takes so long."""
    rows = 4096
    for _ in range(12):
        x, y = torch.ones(rows, 64, device="cuda"), torch.empty(rows, 64, device="cuda")
        took = device_us(lambda x=x, y=y: torch.mul(x, 2.0, out=y))
        if took > microseconds * 0.95:
            return x, y
        rows = int(rows * max(1.05, min(4.0, microseconds / took)))
    return x, y


def device_us(function: Callable[[], Any]) -> float:
    """Microseconds of device time per call, many in a row."""
    for _ in range(20):
        function()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(500):
        function()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e3 / 500


def seconds_of(calls: int, function: Callable[..., Any], arguments: tuple[Any, ...]) -> float:
    """Seconds from the first of many calls until the device has done all."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(calls):
        function(*arguments)
    torch.cuda.synchronize()
    return time.perf_counter() - begin


def measure(root: Path, rounds: int, calls: int) -> list[dict[str, Any]]:
    """Seconds for all calls, by way, in turns."""
    x, y = kernel_of(KERNEL_US)
    rows = torch.arange(INDEX_BYTES // 8, dtype=torch.int32, device="cuda")
    arguments = (x, rows, rows.flip(0).contiguous())

    @apply(DEFINITION.name)
    def scale(x: Any, rows: Any, columns: Any) -> Any:
        return torch.mul(x, 2.0, out=y)

    every = calls // KEPT
    full = TracingConfig("dump_int", filter_policy="keep_first_k_by_axes")
    keeping = TracingConfig("dump_int", filter_policy=EveryNth, filter_policy_kwargs={"n": every})
    ways: dict[str, TracingConfig | None] = {"untraced": None, "quotas full": full, f"keeping {KEPT}": keeping}
    samples: dict[str, list[float]] = {name: [] for name in ways}
    kept: list[int] = []
    for index in range(rounds + 1):
        for name, config in list(ways.items())[:: 1 if index % 2 else -1]:
            if config is None:
                took = seconds_of(calls, scale, arguments)
            else:
                with TracingRuntime(root, config) as runtime:
                    seconds_of(5, scale, arguments)
                    took = seconds_of(calls, scale, arguments)
                    if config is keeping:
                        kept.append(runtime.flush()[DEFINITION.name].kept)
            if index:
                samples[name].append(took)
    assert set(kept) == {(calls + 5) // every}, kept
    report = []
    for name, limit in (("untraced", None), ("quotas full", 3.0), (f"keeping {KEPT}", 10.0)):
        ratios = [took / alone for took, alone in zip(samples[name], samples["untraced"], strict=True)]
        added = (statistics.median(ratios) - 1) * 100
        us = statistics.median(samples[name]) / calls * 1e6
        report.append(
            {"what": name, "us_per_call": us, "added_percent": added, "asked": limit, "samples": samples[name]}
        )
    return report


def functions_used(root: Path) -> dict[str, Any]:
    """Calls of the CUDA runtime by the calling thread in 20 kept calls, and its waits."""
    x = torch.ones(1024, 64, device="cuda")
    rows = torch.arange(INDEX_BYTES // 8, dtype=torch.int32, device="cuda")

    @apply(DEFINITION.name)
    def scale(x: Any, rows: Any, columns: Any) -> Any:
        return x

    config = TracingConfig("dump_int", filter_policy="keep_all")
    with TracingRuntime(root, config) as runtime:
        for _ in range(5):
            scale(x, rows, rows)
        runtime.flush()
        torch.cuda.synchronize()
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as profile, torch.profiler.record_function("calls"):
            for _ in range(20):
                rows.add_(1)
                scale(x, rows, rows)
        trace = Path(tempfile.mkdtemp()) / "trace.json"
        profile.export_chrome_trace(str(trace))
    events = json.loads(trace.read_text())["traceEvents"]
    (calls,) = [event for event in events if event.get("name") == "calls" and event.get("cat") == "user_annotation"]
    begin, end = calls["ts"], calls["ts"] + calls["dur"]
    ours = [
        event["name"]
        for event in events
        if event.get("cat") in ("cuda_runtime", "cuda_driver")
        and event.get("tid") == calls["tid"]
        and begin <= event["ts"] <= end
    ]
    used = Counter(ours)
    waits = {name: count for name, count in used.items() if any(part in name for part in WAITS)}
    return {"used": dict(used.most_common()), "waits": waits}


def kept_call_us(root: Path) -> float:
    """Host microseconds of a kept call with 64 KiB of indices."""
    x = torch.ones(1024, 64, device="cuda")
    rows = torch.arange(INDEX_BYTES // 8, dtype=torch.int32, device="cuda")
    with TracingRuntime(root, TracingConfig("dump_int", filter_policy="keep_all")) as runtime:
        note = runtime.bind(DEFINITION.name, tuple(DEFINITION.inputs))
        assert note is not None
        times = []
        for _ in range(200):
            rows.add_(1)
            begin = time.perf_counter()
            note(x, rows, rows)
            times.append((time.perf_counter() - begin) * 1e6)
    return statistics.median(times)


def main() -> int:
    """Measure, print tables, and write them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--out", type=Path, default=Path("out"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        TraceSet(root).add_definitions([DEFINITION])
        rows = measure(root, options.rounds, options.calls)
        host = kept_call_us(root)
        functions = functions_used(root)
    lines = [
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {options.calls:,} calls, {options.rounds} rounds",
        "",
        "| 10,000 calls of one kernel | us per call | added | asked for |",
        "| --- | --- | --- | --- |",
    ]
    for row in rows:
        asked = "" if row["asked"] is None else f"at most {row['asked']:g} %"
        lines.append(f"| {row['what']} | {row['us_per_call']:.2f} | {row['added_percent']:+.2f} % | {asked} |")
    lines += ["", f"A kept call with two index tensors of 32 KiB takes the host {host:.0f} us.", ""]
    used = ", ".join(f"{name} x{count}" for name, count in functions["used"].items())
    lines.append(f"The calling thread in 20 kept calls: {used}. Waits: {functions['waits'] or 'none'}.")
    text = "\n".join(lines)
    print(text)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "tracing.md").write_text(text + "\n")
    (options.out / "tracing.json").write_text(json.dumps({"rows": rows, "host_us": host, **functions}, indent=2) + "\n")
    return 1 if functions["waits"] else 0


if __name__ == "__main__":
    sys.exit(main())
