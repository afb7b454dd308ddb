"""End-to-end check: benchmark solutions, enable apply on their traces, and run a transformer block with and without it.

The block is one decode step of a layer of Llama-3.1-8B in bfloat16 with a paged cache. Those of its parts that have
a definition in the flashinfer-trace data set are functions decorated with `fib_apply.apply`; each serves itself, in
plain torch, where no solution does. The data set's gemms were captured in float16: their definitions
are taken with bfloat16 instead, as the model's weights are.

It exits with 1 if results with and without apply do not agree, if a chosen solution never served its part, or if a
CUDA graph cannot be captured while a solution is built. Times are reported and judge nothing.

Times with apply are those of the default settings, with the solution in torch as the baseline of each part: only faster
ones are selected. Hits are counted with solutions of any speed.

Compiled code keeps the functions themselves. With ``--sections overhead`` it measures only what apply adds to a call.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from fib_apply.routing.native.module import request_native
from fib_bench import Benchmark, BenchmarkConfig
from fib_bench.events import Evaluated, Event
from fib_compile.device import env_snapshot
from fib_schema import Trace, TraceSet

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "packages" / "fib-bench" / "benchmarks")]
from apply_overhead import Sizes, measure_overhead  # noqa: E402 beside this file, which is no package
from block_job import SECTIONS, Call, Job, Options  # noqa: E402 likewise
from block_parts import (  # noqa: E402 likewise
    BATCHES,
    LARGE,
    ON_CPU,
    ON_GPU,
    PARTS,
    axes_of,
    definition_of,
    solution_of,
    workload_of,
)
from block_runs import run_batch  # noqa: E402 likewise
from decoder_layer import make_block, make_weights  # noqa: E402 likewise
from gpu_report import Report  # noqa: E402 what the benchmarks of fib-bench write

# -- solutions -----------------------------------------------------------------------------------


def fill(job: Job) -> None:
    """Write definitions, solutions and workloads."""
    options = job.options
    trace_set = TraceSet.from_path(job.root)
    batches = options.batches if "block" in options.sections else options.batches[:1]
    for part, definition in job.definitions.items():
        if part not in options.parts:
            continue
        files = ON_GPU[part] if options.is_cuda else ON_CPU[part]
        has_large = part in LARGE and "overhead" in options.sections and not options.is_small
        large = (LARGE[part],) if has_large else ()
        trace_set.add_definitions([definition])
        trace_set.add_solutions([solution_of(file, definition, options.device) for file in files])
        workloads = [workload_of(part, definition, batch) for batch in (*batches, *large)]
        trace_set.add_traces([Trace(definition.name, workload) for workload in workloads])


def benchmark(job: Job) -> None:
    """Benchmark all solutions on all workloads, and report their latencies."""
    config = BenchmarkConfig(
        device=job.options.device,
        measure_seconds=job.options.seconds,
        num_trials=2,
        iterations=10,
        profile_baseline=False,  # solutions are compared with each other
        synthesize_missing=True,
        timeout_seconds=120.0,
    )
    with Benchmark(TraceSet.from_path(job.root), config) as running:
        result = running.run(observe=_report_event)
    for skip in (*result.skipped, *result.failures):
        job.report.say(f"- not run: {str(skip).splitlines()[0][:300]}")
    rows = [_measured(trace) for trace in result.traces]
    job.report.numbers["benchmark"] = rows
    header = ("definition", "axes", "solution", "status", "latency us")
    job.report.table("Solutions, by fib-bench", header, [_shown(row) for row in rows])


def _report_event(event: Event) -> None:
    match event:
        case Evaluated(trace=trace) if trace.evaluation:
            print(f"  {trace.solution} {_axes_in_words(trace.workload.axes)}: {trace.evaluation.status}", flush=True)
            if not trace.is_successful():
                print(f"    {trace.evaluation.log[:1500]}", flush=True)


def _axes_in_words(axes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in axes.items())


def _measured(trace: Trace) -> dict[str, Any]:
    assert trace.evaluation is not None
    performance = trace.evaluation.performance
    return {
        "definition": trace.definition,
        "axes": dict(trace.workload.axes),
        "solution": str(trace.solution),
        "status": str(trace.evaluation.status),
        "latency_us": performance.latency_ms * 1e3 if performance else None,
    }


def _shown(row: Mapping[str, Any]) -> tuple[str, ...]:
    latency = "-" if row["latency_us"] is None else f"{row['latency_us']:.2f}"
    name = row["solution"].removesuffix(f"_{row['definition']}")
    return row["definition"], _axes_in_words(row["axes"]), name, row["status"], latency


# -- report -------------------------------------------------------------------------------------


def write_tables(job: Job) -> None:
    """Write the tables about the block."""
    numbers = job.report.numbers
    _write_served(job)
    names = ("hidden", "residual", "keys", "values")
    rows = [(row["run"], *(f"{row[name]:.3%}" for name in names)) for row in numbers["agreement"]]
    title = "Difference from the eager run without apply, root mean square relative to the result's"
    job.report.table(title, ("run", *names), rows)
    _write_times(job)


def _write_served(job: Job) -> None:
    numbers = job.report.numbers
    modes = dict.fromkeys(row["mode"] for row in numbers["block_us"] if "compiled" not in row["mode"])
    rows = [
        (row["batch"], row["part"], (row["solution"] or "-").removesuffix(f"_{row['definition']}"), row["candidates"],
         *(row.get(mode, "-") for mode in modes), row["misses"] or "-")
        for row in numbers["served"]
    ]  # fmt: skip
    header = ("batch", "part", "solution", "candidates", *(f"hits, {mode}" for mode in modes), "misses before ready")
    job.report.table("Serving solution of each part, and hits in one call of the block", header, rows)
    if job.options.is_cuda:
        job.report.say("A replay calls nothing: captured modes count one call before the capture and one in it.")
        job.report.say()


def _write_times(job: Job) -> None:
    header = ("batch", "mode", "without apply", "with", "times as fast")
    rows = [
        (
            row["batch"],
            row["mode"],
            f"{row['without']:.1f}",
            f"{row['with']:.1f}",
            f"{row['without'] / row['with']:.2f}",
        )
        for row in job.report.numbers["block_us"]
    ]
    job.report.table("The block's time, us", header, rows)
    job.report.say(
        f"Medians of {job.options.rounds} samples in turn, each of calls in a row"
        + (", by CUDA events. The L2 cache is not flushed in between." if job.options.is_cuda else ".")
        + " Without apply each part is plain torch, not an engine's own kernel."
    )
    job.report.say()


def run(job: Job) -> None:
    """Run all sections; the report is saved after each."""
    sections: dict[str, Call] = {"solutions": lambda: fill(job), "benchmark": lambda: benchmark(job)}
    if "block" in job.options.sections:
        block = make_block(job.definitions, make_weights(job.definitions, job.options.device))
        for batch in job.options.batches:
            sections[f"batch {batch}"] = lambda batch=batch: run_batch(job, block, batch)
        sections["tables"] = lambda: write_tables(job)
    if "overhead" in job.options.sections:
        sections["overhead"] = lambda: overhead(job)
    for name, section in sections.items():
        begin = time.perf_counter()
        try:
            section()
        except Exception as error:  # noqa: BLE001 the other sections still run
            traceback.print_exc()
            job.fail(f"{name}: {type(error).__name__}: {str(error)[:500]}")
        print(f"-- {name}: {time.perf_counter() - begin:.0f} s", flush=True)
        job.report.save()


def overhead(job: Job) -> None:
    """Measure the overhead of apply, and check that graphs can be captured while it builds."""
    options = job.options
    large = {part: options.batches[-1] if options.is_small else size for part, size in LARGE.items()}
    sizes = Sizes(
        short=(job.definitions["input_norm"], axes_of("input_norm", options.batches[0])),
        large=tuple((job.definitions[part], axes_of(part, size)) for part, size in large.items()),
        rounds=3 if options.is_small else 51,
    )
    for problem in measure_overhead(job.root, options.device, job.report, sizes):
        job.fail(problem)


def parse(arguments: Sequence[str] | None) -> Options:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data_set", type=Path, help="the public flashinfer-trace data set")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for report.md and numbers.json")
    parser.add_argument("--small", action="store_true", help="small definitions and few rounds, for the CPU")
    parser.add_argument("--seconds", type=float, default=0.2, help="for which fib-bench measures a solution")
    parser.add_argument("--backend", help="of torch.compile; inductor on a GPU and aot_eager elsewhere, by default")
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES, help="numbers of sequences")
    parser.add_argument("--sections", choices=SECTIONS, nargs="+", default=SECTIONS, help="what is measured")
    found = parser.parse_args(arguments)
    return Options(
        data_set=found.data_set,
        device=found.device,
        out=found.out,
        is_small=found.small,
        seconds=found.seconds,
        backend=found.backend or ("aot_eager" if found.device == "cpu" else "inductor"),
        batches=tuple(found.batches),
        sections=tuple(found.sections),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run everything; returns the exit code."""
    options = parse(arguments)
    report = Report(options.out)
    environment = env_snapshot(options.device)
    report.say(f"{options.device}, {datetime.now(UTC):%Y-%m-%d}, backend {options.backend}: {environment}")
    report.say()
    data_set = TraceSet.from_path(options.data_set)
    definitions = {part: definition_of(part, data_set, is_small=options.is_small) for part in PARTS}
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        job = Job(options, report, definitions, Path(folder))
        request_native(lambda: None)  # compiled while solutions are benchmarked
        try:
            run(job)
        finally:
            report.numbers["problems"] = job.problems
            report.save()
    print(f"{len(job.problems)} problems", flush=True)
    return 1 if job.problems else 0


if __name__ == "__main__":
    sys.exit(main())
