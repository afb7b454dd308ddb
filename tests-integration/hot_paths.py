"""Hot paths of two checkouts in one run: this one against another, such as the last release.

Both checkouts need their development environment (`python tools/dev.py setup`). Processes of both alternate. Each
measures the same program, which uses public names only, and keeps the least of many rounds; the table shows the median
over the processes, and the ratio of these medians with the range of the ratios of neighbouring processes.

usage: python hot_paths.py OTHER_CHECKOUT [--turns 5] [--traces 200000]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve()
CALLS = 2_000
ROUNDS = 40
LIMIT = 1.05


def least_ns(function, *args):
    """Nanoseconds of one call: the least of many rounds, in processor time."""
    times = []
    for _ in range(ROUNDS):
        begin = time.process_time_ns()
        for _ in range(CALLS):
            function(*args)
        times.append((time.process_time_ns() - begin) / CALLS)
    return min(times)


def measure_calls(folder):
    """Nanoseconds that routing and tracing add to a call with two tensors."""
    import torch
    from fib_apply import apply, enable_apply, warm_up
    from fib_schema import TraceSet
    from fib_tracer import TracingConfig, enable_tracing

    def function(A, B):
        return B.new_empty((64, 32))

    def short(A, B):  # where no solution is called, it need not allocate: 20 ns are lost beside an allocation
        return B

    known, other, b = torch.zeros(8, 32), torch.zeros(9, 32), torch.zeros(64, 32)
    folder.mkdir()
    write_routed_set(TraceSet.from_path(folder))
    plain, routed, off = least_ns(function, known, b), apply("two")(function), apply("two")(short)
    added = {"routing off": least_ns(off, known, b) - least_ns(short, known, b)}
    with enable_apply(folder):
        for _ in range(3):
            routed(known, b)
            routed(other, b)
            warm_up(60.0)
        added["dispatch, hit"] = least_ns(routed, known, b) - plain
        added["dispatch, miss"] = least_ns(routed, other, b) - plain
    traced = apply("two")(function)
    with enable_tracing(folder, TracingConfig("dump_all", {}, "keep_first_k", {"k": 1})):
        for _ in range(3):
            traced(known, b)
        added["tracing, quota full"] = least_ns(traced, known, b) - plain
    return {f"{name} (ns added)": value for name, value in added.items()}


def write_routed_set(store):
    """One definition with a solution that computes nothing, measured at 8 rows; its result is memory of its own."""
    from fib_schema import (
        AxisConst,
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
        Workload,
    )

    axes = {"M": AxisVar(), "N": AxisConst(64), "K": AxisConst(32)}
    inputs = {"A": TensorSpec(("M", "K"), "float32"), "B": TensorSpec(("N", "K"), "float32")}
    output = {"out": TensorSpec(("N", "K"), "float32")}
    spec = BuildSpec("python", ("cpu",), "main.py::run", destination_passing_style=False)
    source = SourceFile("main.py", "def run(A, B):\n    return B.new_empty((64, 32))\n")
    performance = Performance(0.1, 1.0, 10.0, {"timing": {"graph_safe": True}})
    evaluation = Evaluation(
        "PASSED", Environment("cpu"), "2026-01-01T00:00:00Z", correctness=Correctness(), performance=performance
    )
    workload = Workload({"M": 8, "N": 64, "K": 32}, {name: RandomInput() for name in inputs}, "w8")
    store.add_definitions([Definition("two", "bench", axes, inputs, output, "def run(A, B):\n    pass\n")])
    store.add_solutions([Solution("least", "two", "bench", spec, (source,))])
    store.add_traces([Trace("two", workload), Trace("two", workload, "least", evaluation)])


def measure_store(folder):
    """Opening a set of traces and reading all of them strictly."""
    from fib_schema import TraceSet

    begin = time.perf_counter()
    store = TraceSet.from_path(folder)
    opened = time.perf_counter()
    count = sum(len(traces) for traces in store.traces.values())
    parsed = time.perf_counter()
    label = f"parsing {count:,} traces, all fields (s)"
    return {"opening that set (ms)": (opened - begin) * 1e3, label: parsed - opened}


def measure_appends(folder):
    """Appending one trace after the other to a small set, without the time of the disk."""
    from fib_schema import TraceSet

    folder.mkdir()
    write_routed_set(TraceSet.from_path(folder))
    store = TraceSet.from_path(folder)
    (traces,) = store.traces.values()
    system_call, synced = os.fdatasync, [0.0]

    def fdatasync(descriptor):
        start = time.perf_counter()
        system_call(descriptor)
        synced[0] += time.perf_counter() - start

    os.fdatasync = fdatasync
    seconds = []
    for trace in [*traces] * 500:
        start, synced[0] = time.perf_counter(), 0.0
        store.add_traces([trace])
        seconds.append(time.perf_counter() - start - synced[0])
    return {"appending a trace, without its fdatasync (us)": statistics.median(seconds) * 1e6}


PARTS = {"calls": measure_calls, "store": measure_store, "appends": measure_appends}


def run(checkout, part, folder):
    environment = os.environ | {"FIB_CACHE_PATH": str(folder.parent / f"cache-{checkout.name}")}
    command = [str(checkout / ".venv/bin/python"), str(HERE), "--part", part, str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{checkout}: {part} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def compare(other, turns, traces):
    """For each number its pairs (other checkout, this one), a pair for each turn."""
    sys.path.insert(0, str(HERE.parents[1] / "packages/fib-schema/benchmarks"))
    from data_set import write_data_set

    pairs = {}
    with tempfile.TemporaryDirectory(prefix="fib-hot-paths-") as name:
        root = Path(name)
        write_data_set(root / "set", definitions=max(1, traces // 1_000))
        for turn in range(turns):
            for part in PARTS:
                order = [other, HERE.parents[1]][:: 1 if turn % 2 else -1]
                own = {checkout: root / f"{part}-{turn}-{checkout.name}" for checkout in order}
                found = {
                    checkout: run(checkout, part, root / "set" if part == "store" else own[checkout])
                    for checkout in order
                }
                for label in found[other]:
                    pairs.setdefault(label, []).append((found[other][label], found[HERE.parents[1]][label]))
    return pairs


def show(pairs):
    print(f"| hot path | before | now | ratio | range | at most |\n| {' | '.join(['---'] * 6)} |")
    for label, values in pairs.items():
        before, now = (statistics.median(side) for side in zip(*values, strict=True))
        ratios = sorted(new / old for old, new in values)
        spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
        print(f"| {label} | {before:.3g} | {now:.3g} | {now / before:.3f} | {spread} | {LIMIT} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="OTHER_CHECKOUT")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--traces", type=int, default=200_000)
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        print(json.dumps(PARTS[options.part](options.folder)))
    else:
        show(compare(options.folder.resolve(), options.turns, options.traces))


if __name__ == "__main__":
    main()
