"""Cost of tracing on the CPU: a call whose quota is full, a kept call, and memory under many workloads.

Times are taken in turns in one process and compared with the plain function, the routed function with tracing off,
and the copy alone.

usage: python bench_tracing.py [--rounds 40] [--workloads 100000] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from fib_apply import apply
from fib_schema import AxisConst, AxisVar, Definition, TensorSpec, TraceSet
from fib_tracer import TracingConfig, TracingRuntime, enable_tracing

_CALLS = 2_000
_KEPT = 400
_MIB = 1 << 20
BUDGET_BYTES = 64 * _MIB


def add_64_definition() -> Definition:
    """One variable axis, rows of 64 elements."""
    spec = TensorSpec(("M", "H"), "float32")
    return Definition(
        "add_h64", "elementwise", {"M": AxisVar(), "H": AxisConst(64)}, {"x": spec, "y": spec}, {"z": spec},
        "def run(x, y):\n    return x + y\n",
    )  # fmt: skip


def plain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Nothing is computed: what a call costs is seen."""
    return x


def least_ns(functions: dict[str, Callable[..., Any]], arguments: tuple[Any, ...], rounds: int) -> dict[str, float]:
    """Nanoseconds per call, the least of many rounds taken in turns."""
    found: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            begin = time.perf_counter_ns()
            for _ in range(_CALLS):
                function(*arguments)
            found[name].append((time.perf_counter_ns() - begin) / _CALLS)
    return {name: min(times) for name, times in found.items()}


def full_quota(root: Path, rounds: int) -> list[dict[str, Any]]:
    """Calls that are not kept, by policy, beside routed calls while nothing is traced."""
    arguments = (torch.ones(8, 64), torch.ones(8, 64))
    policies = {
        "quota full, first k": ("keep_first_k", {"k": 1}),
        "quota full, first k by axes": ("keep_first_k_by_axes", {"k": 1}),
    }
    functions: dict[str, Callable[..., Any]] = {"plain": plain, "tracing off": apply("add_h64")(plain)}
    rows = []
    for label, (policy, options) in policies.items():
        traced = apply("add_h64")(plain)
        with enable_tracing(root, TracingConfig("dump_all", {}, policy, options)):
            traced(*arguments)
            functions[label] = pinned(traced)
    times = least_ns(functions, arguments, rounds)
    for label, limit in (("tracing off", 120.0), *((name, 700.0) for name in policies)):
        rows.append(
            {"what": label, "added": times[label] - times["plain"], "unit": "ns", "asked": f"at most {limit:g}"}
        )
    return rows


def pinned(traced: Callable[..., Any]) -> Callable[..., Any]:
    """A wrapper that goes on to what it goes to now, when tracing is off: so that all can be measured in turns."""
    target = traced.__globals__["_fib_route"]
    return FunctionType(traced.__code__, {"_fib_route": target}, "add")


def kept_call(root: Path) -> list[dict[str, Any]]:
    """Calls of 1 MiB that are kept, beside the copy alone; the copies stay alive as long as those that are kept do."""
    x = torch.ones(4096, 64)
    traced = apply("add_h64")(lambda x, y: x)
    config = TracingConfig(["x"], filter_policy="keep_all")
    ours: list[float] = []
    alone: list[float] = []
    copies: list[torch.Tensor] = []
    with enable_tracing(root, config, max_bytes=_KEPT * 2 * _MIB) as runtime:
        for index in range(_KEPT):
            x[0, 0] = index
            first, second = (ours, alone) if index % 2 else (alone, ours)
            for times in (first, second):
                begin = time.perf_counter_ns()
                if times is ours:
                    traced(x, x)
                else:
                    copies.append(x.clone())
                times.append((time.perf_counter_ns() - begin) / 1e3)
            if index % 8 == 7:
                runtime.flush()
                copies.clear()
        stats = runtime.flush()["add_h64"]
    assert stats.stored == _KEPT, stats
    medians = statistics.median(ours), statistics.median(alone)
    ratio = {"what": "kept call of 1 MiB, of the copy alone", "added": medians[0] / medians[1], "unit": "x"}
    return [
        {"what": "copy of 1 MiB alone", "added": medians[1], "unit": "us", "asked": ""},
        {**ratio, "asked": "at most 1.5"},
    ]


def memory(root: Path, count: int) -> list[dict[str, Any]]:
    """The process's memory while distinct workloads of 4 KiB arrive faster than they can be stored, and all are."""
    definition = add_64_definition()
    x, y = torch.ones(16, 64), torch.ones(16, 64)
    runtime = TracingRuntime(root, TracingConfig(["x"], max_kept=None), max_bytes=BUDGET_BYTES)
    runtime.collect(definition.name, (x, y))
    runtime.flush()
    before, most_taken = resident_bytes(), 0
    most = before
    begin = time.perf_counter()
    for index in range(count):
        x.view(torch.int32)[0, 0] = index
        runtime.collect(definition.name, (x, y))
        if index % 100 == 0:
            most, most_taken = max(most, resident_bytes()), max(most_taken, runtime.budget.reserved_bytes)
            runtime.settle()
    stats = runtime.flush()[definition.name]
    seconds = time.perf_counter() - begin
    runtime.stop()
    assert stats.stored == count + 1, stats
    return [
        {"what": f"memory added by {count:,} workloads", "added": (most - before) / _MIB, "unit": "MiB",
         "asked": f"at most {BUDGET_BYTES // _MIB}"},
        {"what": "of it counted in the budget", "added": most_taken / _MIB, "unit": "MiB", "asked": ""},
        {"what": "seconds until all were stored", "added": seconds, "unit": "s", "asked": ""},
    ]  # fmt: skip


def resident_bytes() -> int:
    """The process's memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def new_set(folder: Path, name: str) -> Path:
    """A data set with the definition."""
    TraceSet(folder / name).add_definitions([add_64_definition()])
    return folder / name


def main() -> int:
    """Measure everything."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--workloads", type=int, default=100_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = full_quota(new_set(folder, "full"), options.rounds)
        rows += kept_call(new_set(folder, "kept"))
        rows += memory(new_set(folder, "memory"), options.workloads)
    print("| what | measured | asked for |\n| --- | --- | --- |")
    for row in rows:
        print(f"| {row['what']} | {row['added']:.2f} {row['unit']} | {row['asked']} |")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
