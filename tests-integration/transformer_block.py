"""End-to-end check: benchmark solutions, enable apply on their traces, and run a transformer block with and without it.

The block is one decode step of a layer of Llama-3.1-8B in bfloat16 with a paged cache. Those of its parts that have
a definition in the flashinfer-trace data set are functions decorated with `fib_apply.apply`; each serves itself, in
plain torch, where no solution does. The data set's gemms were captured in float16: their definitions
are taken with bfloat16 instead, as the model's weights are.

It exits with 1 if results with and without apply do not agree, if a chosen solution never served its part, or if a
CUDA graph cannot be captured while a solution is built. Times are reported and judge nothing.

Times with apply are those of the default settings, with the solution in torch as the baseline of each part: only faster
ones are selected. Hits are counted with solutions of any speed.

With ``--inline`` it compares two ways of compiling a routed block in one run: opaque operators, and the default
`ApplyConfig.inline_compiled`. Then CUDA solutions and all sections but the block's are left out, and on a GPU it exits
with 1 if no kernel is inlined. With ``--sections overhead`` it measures only what apply adds to a call.

With ``--compiled-seconds X`` it first measures, as ``fib-apply warm`` does, the cost of an opaque operator and each
selected solution in a small compiled graph; compiled blocks then hold what was faster.
"""

from __future__ import annotations

import argparse
import math
import re
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

import attrs
import torch
from fib_apply import ApplyConfig, ApplyConfigRegistry, ApplyKey, ApplyRuntime
from fib_apply.routing.native.module import request_native
from fib_bench import Benchmark, BenchmarkConfig
from fib_bench.events import Evaluated, Event
from fib_compile.device import env_snapshot, hardware_from_device
from fib_schema import (
    AxisConst,
    BuildSpec,
    Definition,
    RandomInput,
    ScalarInput,
    Solution,
    SourceFile,
    Trace,
    TraceSet,
    Workload,
)

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "packages" / "fib-bench" / "benchmarks")]
from apply_overhead import Sizes, measure_overhead  # noqa: E402 beside this file, which is no package
from compiled_graphs import CompiledCall, measure_compiled  # noqa: E402 likewise
from decoder_layer import PAGES, Tensors, make_block, make_offsets, make_tensors, make_weights  # noqa: E402 likewise
from gpu_report import Report  # noqa: E402 what the benchmarks of fib-bench write

Call: TypeAlias = Callable[[], Any]
Function: TypeAlias = Callable[..., Any]

ANY_SPEED = ApplyConfig(require_speedup=False, inline_compiled=False)
"""The fastest solution serves each part, also where the engine's own function is faster."""
PARTS = {
    "input_norm": "rmsnorm_h4096",
    "qkv": "gemm_n6144_k4096",
    "attention": "gqa_paged_decode_h32_kv8_d128_ps64",
    "o": "gemm_n4096_k4096",
    "post_norm": "fused_add_rmsnorm_h4096",
    "down": "gemm_n4096_k14336",
}
"""The definition of each part that has one; the gate and up projection, rotary embedding and SiLU have none."""
_SMALL_HEADS = {"num_qo_heads": 4, "num_kv_heads": 2, "head_dim": 16, "page_size": 8}
SMALL = {
    "input_norm": {"hidden_size": 64},
    "qkv": {"N": 128, "K": 64},
    "attention": _SMALL_HEADS,
    "o": {"N": 64, "K": 64},
    "post_norm": {"hidden_size": 64},
    "down": {"N": 64, "K": 96},
}
"""Constants for ``--small``."""
_GEMM = ("gemm_torch.py", "gemm_triton.py", "gemm.cu")
ON_GPU = {
    "input_norm": ("rmsnorm_torch.py", "rmsnorm_triton.py", "rmsnorm.cu"),
    "qkv": _GEMM,
    "attention": ("gqa_paged_decode_torch.py", "gqa_paged_decode_triton.py"),
    "o": _GEMM,
    "post_norm": ("fused_add_rmsnorm_torch.py", "fused_add_rmsnorm_triton.py"),
    "down": _GEMM,
}
REFERENCE = "reference.py"
ON_CPU = {
    "input_norm": ("rmsnorm_torch.py", "rmsnorm.cpp"),
    "qkv": ("gemm_torch.py", REFERENCE),
    "attention": ("gqa_paged_decode_torch.py", REFERENCE),
    "o": ("gemm_torch.py", REFERENCE),
    "post_norm": ("fused_add_rmsnorm_torch.py", REFERENCE),
    "down": ("gemm_torch.py", REFERENCE),
}
BATCHES = (1, 16, 64)
"""Recorded for all these definitions but attention, which has no workloads."""
LARGE = {"input_norm": 14418, "qkv": 972}
"""Recorded workloads whose kernels should take 30 us and more, to measure what apply adds."""
MOST_RMS, MOST_OF_RMS, MOST_RELATIVE = 2e-2, 1e-1, 2e-2
"""Results agree if their difference has a root mean square of `MOST_RMS` of the result's, and each element
differs by at most `MOST_OF_RMS` of that and `MOST_RELATIVE` of itself. An element of bfloat16 is rounded by
up to 0.4 %, here some five times in a row."""
ROUNDS, CALLS, CALLS_OF_LARGE, LARGE_BATCH = 21, 20, 5, 256
SECTIONS = ("block", "overhead")


@attrs.frozen(kw_only=True)
class Options:
    """The command-line options."""

    data_set: Path
    device: str
    out: Path
    is_small: bool
    seconds: float
    backend: str
    batches: tuple[int, ...]
    inlines: bool = False
    sections: tuple[str, ...] = SECTIONS
    compiled_seconds: float = 0.0

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts whose solutions are benchmarked."""
        return tuple(PARTS if "block" in self.sections else LARGE)

    @property
    def is_cuda(self) -> bool:
        """Whether the device is a CUDA device."""
        return self.device != "cpu"

    @property
    def rounds(self) -> int:
        """The number of samples per measurement."""
        return 3 if self.is_small else ROUNDS


@attrs.define
class Job:
    """The state shared by all sections."""

    options: Options
    report: Report
    definitions: Mapping[str, Definition]
    """By part."""
    root: Path
    """The root of a data set with only these definitions and our solutions."""
    problems: list[str] = attrs.field(factory=list)

    def fail(self, problem: str) -> None:
        """Record a problem."""
        self.report.say(f"- **failed**: {problem}")
        self.problems.append(problem)


# -- definitions, solutions, workloads -----------------------------------------------------------


def definition_of(part: str, data_set: TraceSet, *, is_small: bool) -> Definition:
    """The data set's definition in bfloat16, and with other constants if it is to be small."""
    found = data_set.definitions[PARTS[part]]
    constants = SMALL[part] if is_small else {}
    suffix = ("_bf16" if found.op_type == "gemm" else "") + ("_small" if is_small else "")
    return attrs.evolve(
        found,
        name=found.name + suffix,
        axes={name: AxisConst(constants[name]) if name in constants else axis for name, axis in found.axes.items()},
        inputs={name: _in_bfloat16(spec) for name, spec in found.inputs.items()},
        outputs={name: _in_bfloat16(spec) for name, spec in found.outputs.items()},
        reference=_with_constants(found.reference, constants),
    )


def _in_bfloat16(spec: Any) -> Any:
    return attrs.evolve(spec, dtype="bfloat16") if spec.dtype == "float16" else spec


def _with_constants(reference: str, constants: Mapping[str, int]) -> str:
    """References assert their constants."""
    for name, value in constants.items():
        reference = re.sub(rf"\b{name} == \d+", f"{name} == {value}", reference)
    return reference


def solution_of(file: str, definition: Definition, device: str) -> Solution:
    """A solution of one file for this device."""
    is_reference = file == REFERENCE
    text = definition.reference if is_reference else (HERE / "solutions" / file).read_text("utf-8")
    if "rmsnorm" in file:
        text = text.replace("1e-6", "1e-5")  # what these definitions say; with tiny inputs it matters
    if file == "gemm_triton.py":
        text = text.replace("tl.float16", "tl.bfloat16")
    language = "triton" if "triton" in file else {".py": "python", ".cu": "cuda", ".cpp": "cpp"}[Path(file).suffix]
    returns = language == "python"
    spec = BuildSpec(language, (hardware_from_device(device),), f"{file}::run", destination_passing_style=not returns)
    name = f"{file.replace('.', '_')}_{definition.name}"
    return Solution(name, definition.name, "fib", spec, (SourceFile(file, text),))


def axes_of(part: str, batch: int) -> dict[str, int]:
    """The sizes of a part's variable axes, in a block of this many sequences."""
    if part == "attention":
        pages = batch * PAGES
        return {"batch_size": batch, "len_indptr": batch + 1, "num_pages": pages, "num_kv_indices": pages}
    return {"batch_size": batch} if "norm" in part else {"M": batch}


def workload_of(part: str, definition: Definition, batch: int) -> Workload:
    """Random tensors of the block's shapes."""
    inputs: dict[str, Any] = {name: RandomInput() for name in definition.inputs}
    if part == "attention":
        inputs["sm_scale"] = ScalarInput(1 / math.sqrt(definition.const_axes["head_dim"]))
    return Workload(axes_of(part, batch), inputs, f"{definition.name}-{batch}")


def fill(job: Job) -> None:
    """Write definitions, solutions and workloads."""
    options = job.options
    trace_set = TraceSet.from_path(job.root)
    batches = options.batches if "block" in options.sections else options.batches[:1]
    for part, definition in job.definitions.items():
        if part not in options.parts:
            continue
        files = ON_GPU[part] if options.is_cuda else ON_CPU[part]
        if options.inlines:
            files = tuple(file for file in files if not file.endswith(".cu"))
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


# -- with and without ----------------------------------------------------------------------------


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
    """By mode, a function that makes a call under the enabled runtime; the call returns the block's results."""
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
    if job.options.inlines:
        return {mode: make for mode, make in modes.items() if "compiled" in mode}
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
    routed = runtimes.get("inlined") or runtimes["with"]
    assert routed is not None, "a column has a runtime"
    list_traced(job, batch, routed)
    if not job.options.inlines:
        is_first = batch == job.options.batches[0]  # graphs of opaque operators take some ten seconds more
        counted = modes if is_first or not job.options.is_cuda else {m: modes[m] for m in modes if "compiled" not in m}
        count_hits(job, batch, counted)


def runtimes_of(job: Job) -> dict[str, ApplyRuntime | None]:
    """The runtimes whose times are compared, by the name of their column; None is plain torch."""
    opaque, inlined = (
        ApplyConfigRegistry(
            per_definition={
                definition.name: ApplyConfig(baseline=_baseline(job, part), inline_compiled=inlines)
                for part, definition in job.definitions.items()
            }
        )
        for inlines in (False, True)
    )
    if not job.options.inlines:
        return {"without": None, "with": ApplyRuntime(job.root, inlined)}
    return {"without": None, "with": ApplyRuntime(job.root, opaque), "inlined": ApplyRuntime(job.root, inlined)}


def _baseline(job: Job, part: str) -> str:
    """The solution in torch: its time is that of the function that a part uses without apply."""
    file = (ON_GPU if job.options.is_cuda else ON_CPU)[part][0]
    return solution_of(file, job.definitions[part], job.options.device).name


def list_traced(job: Job, batch: int, runtime: ApplyRuntime) -> None:
    """List what became of the calls of each part in compiled graphs."""
    rows = []
    for part, definition in job.definitions.items():
        _, _, found = runtime.explain(definition.name).partition("in compiled graphs:\n")
        rows += [(batch, part, line.strip()) for line in found.partition("\n\n")[0].splitlines()]
    job.report.numbers.setdefault("traced", []).extend(rows)
    if job.options.is_cuda and job.options.inlines and not any("are inlined" in line for _, _, line in rows):
        job.fail(f"batch {batch}: no kernel is inlined")


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
    rankings = runtime.table.for_hardware(hardware_from_device(job.options.device)).rankings(name)
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
    for mode in ("eager", "compiled", "captured", "compiled, captured"):
        if row["solution"] is not None and row.get(mode, 1) == 0:
            job.fail(f"batch {batch}, {mode}: {row['solution']} never served {part}")


# -- report -------------------------------------------------------------------------------------


def write_tables(job: Job) -> None:
    """Write the tables about the block."""
    numbers = job.report.numbers
    title = "What compiled graphs hold for each part, with `inline_compiled`"
    job.report.table(title, ("batch", "part", "calls"), numbers["traced"])
    if not job.options.inlines:
        _write_served(job)
    names = ("hidden", "residual", "keys", "values")
    rows = [(row["run"], *(f"{row[name]:.3%}" for name in names)) for row in numbers["agreement"]]
    title = "Difference from the eager run without apply, root mean square relative to the result's"
    job.report.table(title, ("run", *names), rows)
    _write_times(job)


def _write_served(job: Job) -> None:
    numbers = job.report.numbers
    modes = dict.fromkeys(row["mode"] for row in numbers["block_us"])
    rows = [
        (row["batch"], row["part"], (row["solution"] or "-").removesuffix(f"_{row['definition']}"), row["candidates"],
         *(row.get(mode, "-") for mode in modes), row["misses"] or "-")
        for row in numbers["served"]
    ]  # fmt: skip
    header = ("batch", "part", "solution", "candidates", *(f"hits, {mode}" for mode in modes), "misses before ready")
    job.report.table("Which solution served each part, and how often in one call of the block", header, rows)
    if job.options.is_cuda:
        job.report.say("A replay calls nothing: captured modes count one call before the capture and one in it.")
        job.report.say()


def _write_times(job: Job) -> None:
    header = ["batch", "mode", "without apply", "with", "times as fast"]
    if job.options.inlines:
        header += ["inlined", "times as fast"]
    rows = [
        (
            row["batch"],
            row["mode"],
            f"{row['without']:.1f}",
            *(
                text
                for name in ("with", "inlined")
                if name in row
                for text in (f"{row[name]:.1f}", f"{row['without'] / row[name]:.2f}")
            ),
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
        if job.options.compiled_seconds:
            sections["compiled graphs"] = lambda: compiled_graphs(job)
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


def compiled_graphs(job: Job) -> None:
    """Measure solutions in small compiled graphs; attention first, whose operators cost most."""
    parts = sorted(PARTS, key=lambda part: part != "attention")
    calls = [
        CompiledCall(
            definition=job.definitions[part],
            axes=axes_of(part, batch),
            values=_values(job.definitions[part], batch) if part == "attention" else {},
            baseline=_baseline(job, part),
        )
        for part in parts
        for batch in job.options.batches
    ]
    measure_compiled(job.root, job.options.device, job.report, calls, job.options.compiled_seconds)


def _values(attention: Definition, batch: int) -> dict[str, Any]:
    """The pages of a block of this many sequences."""
    pages = torch.randperm(batch * PAGES, generator=torch.Generator().manual_seed(batch)).tolist()
    scale = 1 / math.sqrt(attention.const_axes["head_dim"])
    return {"kv_indptr": make_offsets(batch).tolist(), "kv_indices": pages, "sm_scale": scale}


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
    parser.add_argument("--inline", action="store_true", help="compare opaque operators with inlined kernels")
    parser.add_argument("--compiled-seconds", type=float, default=0.0, help="for measurements in compiled graphs")
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
        inlines=found.inline,
        sections=("block",) if found.inline else tuple(found.sections),
        compiled_seconds=found.compiled_seconds,
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
