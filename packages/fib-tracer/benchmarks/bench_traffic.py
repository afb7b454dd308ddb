"""Cost of tracing at engine scale on the CPU: ten million calls with full quotas, counts, memory, and threads.

- Cost of a call whose quota is full, beside the function alone and the routed function with tracing off, in short
  rounds taken in turns, of which the least counts: other programs disturb the machine.
- `--calls` calls of a few sizes, in one thread and in eight: CPU time per call (other programs do not change it as they
  change the wall time), growth of the process, and whether every count is exactly right.
- `--many-calls` calls of a million sizes, far more than are counted: growth, and whether no call is lost.

usage: python bench_traffic.py [--calls N] [--many-calls N] [--sizes N] [--threads 8] [--json FILE]
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from bench_tracing import add_64_definition, least_ns, new_set, pinned, plain, resident_bytes
from fib_apply import apply
from fib_schema.traffic import DefinitionTraffic, load_traffic
from fib_tracer import TracingConfig, enable_tracing
from fib_tracer.counts import MAX_SIZES

_NAME = add_64_definition().name
_MIB = 1 << 20
_SIZES = (1, 2, 3, 8, 64, 200)
_BY_AXES = TracingConfig("dump_all", {}, "keep_first_k_by_axes")
_WANTED_SHARE = 0.01
Row = tuple[str, float, str]


def routed() -> Callable[..., Any]:
    """Another routed function."""
    return apply(_NAME)(lambda x, y: x)


def least_cost(root: Path) -> list[Row]:
    """Cost of a call whose quota is full, by policy."""
    x = torch.ones(8, 64)
    functions: dict[str, Callable[..., Any]] = {"plain": plain, "tracing off": routed()}
    configs = {
        "first k": TracingConfig("dump_all", {}, "keep_first_k"),
        "first k by axes": _BY_AXES,
        "all, nothing dumped": TracingConfig(),
        "max_kept reached": TracingConfig("dump_all", max_kept=1),
    }
    for label, config in configs.items():
        traced = routed()
        with enable_tracing(root, config, saves_traffic=False):
            for _ in range(3):
                traced(x, x)
            functions[label] = pinned(traced)
    times = least_ns(functions, (x, x), 60)
    rows = [
        (f"added to a call, {label}", times[label] - times["plain"], "ns") for label in functions if label != "plain"
    ]
    slowest = max(times[label] - times["tracing off"] for label in configs)
    return [*rows, ("shortest call of which tracing takes 1 %", slowest / _WANTED_SHARE / 1000, "us")]


def few_sizes(root: Path, calls: int, threads: int) -> list[Row]:
    """Calls of six sizes in several threads at once; every count is checked."""
    tensors = [torch.ones(size, 64) for size in _SIZES]
    traced = routed()
    share = calls // threads
    rounds, rest = divmod(share, len(tensors))

    def work() -> None:
        for _ in range(rounds):
            for x in tensors:
                traced(x, x)
        for x in tensors[:rest]:
            traced(x, x)

    with enable_tracing(root, _BY_AXES) as runtime:
        for x in tensors:
            traced(x, x)
            traced(x, x)
        runtime.flush()
        gc.collect()
        before, begin = resident_bytes(), time.process_time()
        workers = [threading.Thread(target=work) for _ in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        seconds, growth = time.process_time() - begin, resident_bytes() - before
        stats = runtime.flush()[_NAME]
    expected = {size: 2 + threads * (rounds + (place < rest)) for place, size in enumerate(_SIZES)}
    assert sizes_of(load_traffic(root).definitions[_NAME]) == expected
    assert stats.calls == sum(expected.values()), stats
    label = f"{threads * share:,} calls, {threads} thread{'s' * (threads > 1)}"
    return [
        (f"{label}: CPU time per call, with the loop", seconds / (threads * share) * 1e9, "ns"),
        (f"{label}: growth of memory", growth / _MIB, "MiB"),
        (f"{label}: wrong counts", 0, ""),
    ]


def many_sizes(root: Path, calls: int, sizes: int) -> list[Row]:
    """Calls of more sizes than are counted, in turns."""
    memory = torch.empty(sizes + 1, 64)  # never written, so that it takes no memory
    traced = routed()
    made: Counter[int] = Counter()
    with enable_tracing(root, TracingConfig("dump_none")) as runtime:
        before, begin = resident_bytes(), time.process_time()
        most = 0
        first_pass = 0.0
        for number in range(calls):
            size = 1 + number % sizes
            x = memory[:size]
            traced(x, x)
            if number < MAX_SIZES:
                made[size] += 1
            if number % 100_000 == 0:
                most = max(most, resident_bytes())
            if number == min(calls, 2 * MAX_SIZES):
                runtime.flush()
                first_pass = time.process_time() - begin
                begin, after = time.process_time(), number
        seconds, growth = time.process_time() - begin, max(most, resident_bytes()) - before
        saving = time.process_time()
        runtime.flush()
        saving = time.process_time() - saving
    found = load_traffic(root).definitions[_NAME]
    counted = sizes_of(found)
    assert found.calls == calls, found.calls
    assert len(counted) == min(MAX_SIZES, sizes)
    assert all(counted[size] == calls // sizes + (size <= calls % sizes) for size in made), "a count is wrong"
    label = f"{calls:,} calls of {sizes:,} sizes"
    return [
        (f"{label}: first {after:,} calls, until all kept ones were stored, CPU time", first_pass, "s"),
        (f"{label}: CPU time per call after that, with the slice", seconds / (calls - after) * 1e9, "ns"),
        (f"{label}: growth of memory", growth / _MIB, "MiB"),
        (f"{label}: sizes with exact counts", len(counted), ""),
        (f"{label}: CPU time of the last flush, which saves the counts", saving, "s"),
    ]


def sizes_of(traffic: DefinitionTraffic) -> dict[int, int]:
    """Calls by the size of the only axis."""
    return {axes[0][1]: calls for (axes, _), calls in traffic.sizes.items()}


def main() -> int:
    """Measure everything."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--calls", type=int, default=10_000_000)
    parser.add_argument("--many-calls", type=int, default=10_000_000)
    parser.add_argument("--sizes", type=int, default=1_000_000)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = least_cost(new_set(folder, "cost"))
        rows += few_sizes(new_set(folder, "one"), options.calls, 1)
        rows += few_sizes(new_set(folder, "threads"), options.calls, options.threads)
        rows += many_sizes(new_set(folder, "many"), options.many_calls, options.sizes)
    print("| what | measured |\n| --- | --- |")
    for what, value, unit in rows:
        print(f"| {what} | {value:,.{0 if value == int(value) else 2}f} {unit} |")
    if options.json:
        options.json.write_text(json.dumps([dict(zip(("what", "value", "unit"), row, strict=True)) for row in rows]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
