"""Measures how right and how repeatable fib-bench's numbers are on a CUDA device, and prints tables.

Sections, chosen with ``--sections``:

``same``
    A solution identical to the reference on every rmsnorm and gemm workload, in several runs: the ratio
    of both sides in a run, how far latencies differ between runs, and what a timing costs.
``languages``
    Python, Triton and CUDA solutions of rmsnorm and gemm.
``attention``
    A Triton solution of each attention op_type, with synthesised index tensors.
``cupti``
    The stopwatch against CUPTI's kernel times.
``faults``
    Illegal access, an endless kernel, memory exhausted and others, each followed by a good solution.
``evaluators``
    Every definition that is not compared element by element: its reference as the solution, and a wrong one.
``selftest``
    The exploits and the honest solutions of ``fib-bench selftest``.
``throughput``
    At least 130 pairs in three languages, with nothing built and with everything built.
``devices``
    The same work on one device and on two; only where it is asked for.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fib_bench.benchmark import RunResult
from fib_bench.cli.selftest_command import summary_of
from fib_bench.events import Event, Working
from fib_bench.judge.phase_timer import Phase
from fib_bench.selftest import choose, load_cases, run_selftest
from fib_compile.device import env_snapshot
from fib_schema import AxisVar, Definition, RandomInput, TensorSpec, Trace, TraceSet, Workload
from gpu_report import FAULTS, Bench, Report, count, extra_of, performance_of, timing_of

RMSNORM, GEMM = r"rmsnorm_h\d+", r"gemm_.*"
LANGUAGES = {
    "rmsnorm_torch.py": RMSNORM,
    "rmsnorm_triton.py": RMSNORM,
    "rmsnorm.cu": RMSNORM,
    "gemm_torch.py": GEMM,
    "gemm_triton.py": GEMM,
    "gemm.cu": GEMM,
}
ATTENTION = {
    "gqa_paged_decode_triton.py": r"gqa_paged_decode_.*",
    "gqa_paged_prefill_triton.py": r"gqa_paged_prefill_.*",
    "gqa_ragged_prefill_triton.py": r"gqa_ragged_.*",
    "mla_paged_decode_triton.py": r"mla_paged_decode_.*",
    "mla_paged_prefill_triton.py": r"mla_paged_prefill_.*",
    "mla_ragged_prefill_triton.py": r"mla_ragged_.*",
    "dsa_paged_triton.py": r"dsa_sparse_.*",
}
RETURNING = {
    "rmsnorm_torch.py", "gemm_torch.py", "gqa_paged_prefill_triton.py", "mla_paged_decode_triton.py",
    "mla_ragged_prefill_triton.py",
}  # fmt: skip
"""Those that return their outputs; the others write into buffers."""
_SMALL = {"batch_size": 4, "len_indptr": 5, "num_kv_indices": 64, "num_pages": 128, "num_tokens": 4}
_LARGE = {"batch_size": 16, "len_indptr": 17, "num_kv_indices": 2048, "num_pages": 4096, "num_tokens": 32}
ATTENTION_SIZES = (_SMALL | {"total_kv": 300, "total_q": 32}, _LARGE | {"total_kv": 8192, "total_q": 512})
"""For definitions without recorded workloads."""
DOUBLE = Definition(
    "double",
    "elementwise",
    axes={"n": AxisVar()},
    inputs={"x": TensorSpec(("n",), "float32")},
    outputs={"y": TensorSpec(("n",), "float32")},
    reference="def run(x):\n    return x * 2\n",
)


# -- the same function twice ---------------------------------------------------------------------


def same(bench: Bench) -> None:
    """A/A ratios, repeatability and cost."""
    chosen = bench.collect(rf"(fused_add_)?{RMSNORM}|{GEMM}")
    solutions = {
        name: [bench.solution(f"same_{name}", pair[0], "reference.py", pair[0].reference, returns=True)]
        for name, pair in chosen.items()
    }
    runs: list[dict[str, Trace]] = []
    for index in range(1, bench.runs + 1):
        begin = time.perf_counter()
        result = bench.run(solutions, chosen)
        runs.append({t.workload.uuid: t for t in result.traces if t.is_successful()})
        seconds = time.perf_counter() - begin
        print(f"run {index}: {len(runs[-1])} of {len(result.traces)} passed, {seconds:.0f} s", flush=True)
        bench.report.numbers["same"] = [_plain(t, n) for n, traces in enumerate(runs, 1) for t in traces.values()]
        bench.report.save()
    _ratios(bench.report, runs)
    _repeatability(bench.report, runs)
    _cost(bench.report, [timing_of(t) for traces in runs for t in traces.values() if _is_short(t)])
    _farthest(bench.report)


def _plain(trace: Trace, run: int) -> dict[str, Any]:
    performance = performance_of(trace)
    return {
        "run": run,
        "definition": trace.definition,
        "axes": dict(trace.workload.axes),
        "ratio": performance.speedup_factor,
        "latency_ms": performance.latency_ms,
        **{name: extra_of(trace)[name] for name in ("timing", "reference_timing")},
    }


def _is_short(trace: Trace) -> bool:
    return bool(performance_of(trace).latency_ms < 0.1)


def _ratios(report: Report, runs: Sequence[Mapping[str, Trace]]) -> None:
    rows = []
    for index, traces in enumerate(runs, 1):
        ratios = sorted(performance_of(trace).speedup_factor for trace in traces.values())
        inside = sum(0.98 <= ratio <= 1.02 for ratio in ratios) / len(ratios)
        numbers = (f"{x:.4f}" for x in (ratios[0], statistics.median(ratios), ratios[-1]))
        rows.append((index, len(ratios), *numbers, f"{inside:.1%}"))
    header = ("run", "workloads", "lowest ratio", "median", "highest", "within 0.98 to 1.02")
    report.table("A solution identical to the reference", header, rows)


def _repeatability(report: Report, runs: Sequence[Mapping[str, Trace]]) -> None:
    keys = [key for key in runs[0] if all(key in traces for traces in runs)]
    spreads = []
    for key in keys:
        latencies = [performance_of(traces[key]).latency_ms for traces in runs]
        spreads.append(max(latencies) / min(latencies) - 1)
    within = (f"{sum(s <= limit for s in spreads) / len(spreads):.1%}" for limit in (0.02, 0.05))
    row = (len(keys), len(runs), f"{statistics.median(spreads):.2%}", f"{max(spreads):.2%}", *within)
    header = ("workloads", "runs", "median of max / min - 1", "largest", "within 2 %", "within 5 %")
    report.table("The same solution in separate runs", header, [row])


def _cost(report: Report, timings: Sequence[Mapping[str, Any]]) -> None:
    costs = [timing["device_ms"] for timing in timings]
    samples = statistics.median(timing["samples"] for timing in timings)
    methods = count(timing["method"] for timing in timings)
    row = (len(timings), f"{statistics.median(costs):.1f} ms", f"{max(costs):.1f} ms", f"{samples:.0f}", methods)
    header = ("timings", "median device time", "largest", "median samples", "methods")
    report.table("What a timing of a function under 100 us costs", header, [row])


def _farthest(report: Report) -> None:
    worst = sorted(report.numbers["same"], key=lambda row: -abs(row["ratio"] - 1))[:8]
    rows = [
        (row["run"], row["definition"], row["axes"], f"{row['ratio']:.4f}", f"{row['latency_ms'] * 1e3:.2f}",
         *(row["timing"][name] for name in ("method", "calls_per_sample", "samples")))
        for row in worst
    ]  # fmt: skip
    header = ("run", "definition", "axes", "ratio", "latency us", "method", "calls per sample", "samples")
    report.table("The ratios farthest from 1", header, rows)


# -- real solutions ------------------------------------------------------------------------------


def languages(bench: Bench) -> None:
    """Python, Triton and CUDA solutions of rmsnorm and gemm."""
    solutions, chosen = _matching(bench, LANGUAGES, bench.most)
    _outcomes(bench.report, "rmsnorm and gemm", bench.run(solutions, chosen))


def attention(bench: Bench) -> None:
    """One Triton solution of each attention family: recorded workloads, and made ones where there are none."""
    solutions, chosen = _matching(bench, ATTENTION, bench.few)
    for file, pattern in ATTENTION.items():
        names = [n for n in bench.data_set.definitions if re.fullmatch(pattern, n) and n not in chosen]
        for name in names[: bench.few]:
            definition = bench.data_set.definitions[name]
            chosen[name] = (definition, [_made(definition, sizes) for sizes in ATTENTION_SIZES])
            solutions[name] = [bench.from_file(file, definition, returns=file in RETURNING)]
    result = bench.run(solutions, chosen, measure_seconds=0.5, timeout_seconds=120.0)
    _outcomes(bench.report, "attention", result)


def _made(definition: Definition, sizes: Mapping[str, int]) -> Workload:
    axes = {axis: sizes[axis] for axis in definition.var_axes}
    return Workload(axes, {n: RandomInput() for n in definition.inputs}, f"made-{definition.name}-{sizes['total_q']}")


def _matching(bench: Bench, files: Mapping[str, str], most: int | None) -> tuple[dict[str, Any], dict[str, Any]]:
    chosen: dict[str, Any] = {}
    solutions: dict[str, Any] = {}
    for file, pattern in files.items():
        for name, pair in bench.collect(pattern, most).items():
            chosen[name] = pair
            solution = bench.from_file(file, pair[0], returns=file in RETURNING)
            solutions.setdefault(name, []).append(solution)
    return solutions, chosen


def _outcomes(report: Report, title: str, result: RunResult) -> None:
    """A row per solution: what became of it."""
    groups: dict[tuple[str, str], list[Trace]] = {}
    for trace in result.traces:
        groups.setdefault((str(trace.solution), trace.definition), []).append(trace)
    header = ("solution", "definition", "passed", "method", "reference", "speedup", "remarks")
    report.table(title, header, [_outcome(*key, traces) for key, traces in groups.items()])
    for skip in result.failures:
        report.say(f"- not run: {str(skip).splitlines()[0][:300]}")
    report.numbers[title] = [_status(trace) for trace in result.traces]


def _outcome(solution: str, definition: str, traces: Sequence[Trace]) -> tuple[str, ...]:
    passed = [trace for trace in traces if trace.is_successful()]
    remarks = {str(t.evaluation.status) for t in traces if t.evaluation and not t.is_successful()}
    remarks |= {flag for t in passed if t.evaluation for flag in t.evaluation.extra.get("flags", [])}
    speedups = [performance_of(trace).speedup_factor for trace in passed]
    return (
        solution.removesuffix(f"_{definition}"),
        definition,
        f"{len(passed)}/{len(traces)}",
        count(timing_of(trace)["method"] for trace in passed),
        count(extra_of(trace)["reference_timing"]["method"] for trace in passed),
        f"{statistics.geometric_mean(speedups):.2f}" if speedups else "-",
        ", ".join(sorted(remarks)),
    )


def _status(trace: Trace) -> dict[str, Any]:
    assert trace.evaluation is not None
    performance = trace.evaluation.performance
    return {
        "definition": trace.definition,
        "solution": trace.solution,
        "axes": dict(trace.workload.axes),
        "status": str(trace.evaluation.status),
        "log": trace.evaluation.log[:2000],
        "latency_ms": performance.latency_ms if performance else None,
        "reference_ms": performance.reference_latency_ms if performance else None,
    }


# -- faults --------------------------------------------------------------------------------------


def faults(bench: Bench) -> None:
    """Solutions that break things, each followed by a good one."""
    workloads = [Workload({"n": n}, {"x": RandomInput()}, f"n-{n}") for n in (1000, 100_000)]
    good = (FAULTS / "good.py").read_text("utf-8")
    solutions = []
    for file in sorted(FAULTS.glob("*.*")):
        source, returns = file.read_text("utf-8"), file.suffix == ".py"
        solutions.append(bench.solution(file.stem, DOUBLE, file.name, source, returns=returns))
        solutions.append(bench.solution(f"{file.stem}_then_good", DOUBLE, "good.py", good, returns=True))
    result = bench.run({"double": solutions}, {"double": (DOUBLE, workloads)}, timeout_seconds=5.0)
    by_name: dict[str, list[Trace]] = {}
    for trace in result.traces:
        by_name.setdefault(str(trace.solution), []).append(trace)
    shown = [name for name in by_name if not name.endswith("_then_good")]
    rows = [_fault(name, by_name[name]) for name in shown]
    bench.report.table("Faults, each followed by a good solution", ("solution", "status", "what is said"), rows)
    behind = [trace for name, traces in by_name.items() if name not in shown for trace in traces]
    passed = sum(trace.is_successful() for trace in behind)
    bench.report.say(f"Good solutions behind them: {passed} of {len(behind)} evaluations passed.")
    bench.report.say()
    bench.report.numbers["faults"] = [_status(trace) for trace in result.traces]


def _fault(name: str, traces: Sequence[Trace]) -> tuple[str, str, str]:
    """What became of one of them, with the most telling line of its log."""
    first = traces[0]
    assert first.evaluation is not None
    statuses = ", ".join(sorted({str(t.evaluation.status) for t in traces if t.evaluation}))
    name = name.replace("_", " ")
    if first.is_successful():
        return name, statuses, f"timed by method {timing_of(first)['method']}"
    telling = re.compile(r"Error|worker was|worker exited|no answer|Assert")
    lines = [line for line in first.evaluation.log.splitlines() if telling.search(line)]
    return name, statuses, (lines[0] if lines else first.evaluation.log)[:160].replace("|", "/")


# -- evaluators ----------------------------------------------------------------------------------

KINDS = ("dsa_paged", "gdn", "mamba_ssu", "moe", "sampling")
SIZES_OF_KINDS = {
    "batch_size": 8,
    "len_cu_seqlens": 5,
    "max_seq_len": 128,
    "num_kv_indices": 256,
    "num_pages": 512,
    "num_seqs": 4,
    "num_tokens": 16,
    "pool_size": 32,
    "seq_len": 4,
    "state_cache_size": 32,
    "total_q": 64,
    "total_seq_len": 64,
}
WRONG = """

_right = run


def run(*args, **kwargs):
    found = _right(*args, **kwargs)
    if isinstance(found, dict):
        return {name: _off(value) for name, value in found.items()}
    return type(found)(map(_off, found)) if isinstance(found, (tuple, list)) else _off(found)


def _off(value):
    return value * 1.25 if value.is_floating_point() else value.roll(1, -1) + 1
"""


def evaluators(bench: Bench) -> None:
    """Each evaluator on the definitions of its kind."""
    chosen: dict[str, Any] = {}
    solutions: dict[str, Any] = {}
    for name, definition in bench.data_set.definitions.items():
        if definition.op_type in KINDS:
            recorded = [trace.workload for trace in bench.data_set.workloads.get(name, [])][:1]
            sizes = {axis: SIZES_OF_KINDS.get(axis, 16) for axis in definition.var_axes}
            chosen[name] = (definition, recorded or [_sized(definition, sizes)])
            code = definition.reference
            solutions[name] = [
                bench.solution(f"right_{name}", definition, "reference.py", code, returns=True),
                bench.solution(f"wrong_{name}", definition, "wrong.py", code + WRONG, returns=True),
            ]
    result = bench.run(solutions, chosen, iterations=10, measure_seconds=0.1, timeout_seconds=60.0)
    rows = []
    for name, (definition, _) in chosen.items():
        found = {str(t.solution): t.evaluation for t in result.traces if t.definition == name and t.evaluation}
        right, wrong = found.get(f"right_{name}"), found.get(f"wrong_{name}")
        judge = (right or wrong).extra["evaluator"] if right or wrong else "-"
        rows.append((name, definition.op_type, judge, *(str(e.status) if e else "not run" for e in (right, wrong))))
    bench.report.table("Evaluators", ("definition", "op_type", "evaluator", "its reference", "a wrong solution"), rows)
    for skip in result.failures:
        bench.report.say(f"- not run: {str(skip).splitlines()[0][:300]}")
    bench.report.numbers["evaluators"] = [_status(trace) for trace in result.traces]


def _sized(definition: Definition, sizes: Mapping[str, int]) -> Workload:
    return Workload(sizes, {n: RandomInput() for n in definition.inputs}, f"sized-{definition.name}")


# -- exploits ------------------------------------------------------------------------------------


def selftest(bench: Bench) -> None:
    """Both suites, as often as `--runs` says."""
    cases = choose(load_cases(), bench.only) if bench.only else load_cases()
    results = []
    for index in range(bench.runs):
        results.append(run_selftest(cases, bench.device))
        bench.report.numbers["selftest"] = [result.to_plain() for result in results]
        bench.report.save()
        print(f"run {index + 1}: {summary_of(results[-1])}", flush=True)
    rows = []
    for outcomes in zip(*(result.outcomes for result in results), strict=True):
        case = outcomes[0].case
        found = ", ".join(dict.fromkeys(outcome.found for outcome in outcomes))
        holds = "yes" if all(outcome.holds for outcome in outcomes) else "**no**"
        evidence = next((o.evidence for o in outcomes if not o.holds), outcomes[0].evidence)
        shown = evidence[:200].replace("|", "/")
        rows.append((case.row or "honest", case.file, " or ".join(case.expected), found, holds, shown))
    header = ("row", "solution", "expected", "found", "as it must be", "evidence")
    bench.report.table(f"Self-test, {bench.runs} runs", header, rows)
    for result in results:
        bench.report.say(summary_of(result).replace("\n", "; "))


# -- how fast ------------------------------------------------------------------------------------

PAIRS = {**{f"rmsnorm_h{h}": ("rmsnorm_torch.py", "rmsnorm_triton.py", "rmsnorm.cu") for h in (512, 4096, 7168)},
         "gemm_n256_k7168": ("gemm_torch.py", "gemm_triton.py", "gemm.cu")}  # fmt: skip
_AT_WORK = (Phase.INPUTS, Phase.REFERENCE, Phase.CHECK, Phase.WARM_UP, Phase.TIME, Phase.AUDIT)
"""Phases in which the device computes or is measured."""


def throughput(bench: Bench) -> None:
    """Seconds for the same pairs, first with nothing built."""
    chosen = bench.collect("|".join(PAIRS))
    solutions = _solutions_of_pairs(bench, chosen)
    rows = []
    os.environ["FIB_CACHE_PATH"] = tempfile.mkdtemp(prefix="fib-throughput-")
    for state in ("nothing built", "everything built"):
        begin = time.perf_counter()
        result = bench.run(solutions, chosen, keep="throughput")
        seconds = time.perf_counter() - begin
        passed = sum(trace.is_successful() for trace in result.traces)
        phases = ", ".join(f"{phase} {taken:.1f}" for phase, taken in result.seconds.items())
        share = sum(result.seconds.get(phase, 0.0) for phase in _AT_WORK) / seconds
        rows.append((state, f"{passed}/{len(result.traces)}", f"{seconds:.1f}", f"{share:.0%}", phases))
        print(*rows[-1], sep=" | ", flush=True)
    header = ("run", "passed", "seconds", "of them the device is busy or measured", "by phase")
    bench.report.table("Throughput", header, rows)


def _solutions_of_pairs(bench: Bench, chosen: Mapping[str, Any]) -> dict[str, list[Any]]:
    return {
        name: [bench.from_file(file, definition, returns=file in RETURNING) for file in PAIRS[name]]
        for name, (definition, _) in chosen.items()
    }


def devices(bench: Bench) -> None:
    """The same work on one device and on two, from the first item's begin on."""
    chosen = bench.collect(rf"(fused_add_)?{RMSNORM}|gemm_n(4096|5120|6144)_.*", bench.most)
    solutions = {
        name: [bench.solution(f"same_{name}", pair[0], "reference.py", pair[0].reference, returns=True)]
        for name, pair in chosen.items()
    }
    rows, taken = [], []
    for names in (("cuda:0",), ("cuda:0", "cuda:1")):
        begun: list[float] = []

        def note(event: Event, begun: list[float] = begun) -> None:
            if isinstance(event, Working) and not begun:
                begun.append(time.perf_counter())

        result = bench.run(solutions, chosen, observe=note, devices=names)
        taken.append(time.perf_counter() - begun[0])
        passed = sum(trace.is_successful() for trace in result.traces)
        rows.append(
            (", ".join(names), f"{passed}/{len(result.traces)}", f"{taken[-1]:.1f}", f"{taken[0] / taken[-1]:.2f}")
        )
        print(*rows[-1], sep=" | ", flush=True)
    bench.report.table("Devices", ("devices", "passed", "seconds without starting", "times as fast"), rows)


def cupti(bench: Bench) -> None:
    """The stopwatch against CUPTI."""
    from cupti_agreement import cupti as compare

    compare(bench)


SECTIONS: Mapping[str, Callable[[Bench], None]] = {
    "cupti": cupti,
    "faults": faults,
    "languages": languages,
    "attention": attention,
    "evaluators": evaluators,
    "selftest": selftest,
    "throughput": throughput,
    "devices": devices,
    "same": same,
}


def main() -> None:
    """Run the sections asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data_set", type=Path, help="the public flashinfer-trace data set")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for report.md and numbers.json")
    parser.add_argument(
        "--sections", nargs="+", choices=SECTIONS, default=[name for name in SECTIONS if name != "devices"]
    )
    parser.add_argument("--runs", type=int, default=3, help="of `same` and `selftest`")
    parser.add_argument("--only", nargs="+", metavar="WORD", help="cases of `selftest`")
    parser.add_argument("--most", type=int, help="at most so many workloads of each definition")
    parser.add_argument("--few", type=int, default=2, help="the same for attention, whose references are slow")
    parser.add_argument("--device", default="cuda:0")
    options = parser.parse_args()
    report = Report(options.out)
    report.say(f"{options.device}: {env_snapshot(options.device)}")
    report.say()
    bench = Bench(
        data_set=TraceSet.from_path(options.data_set),
        report=report,
        device=options.device,
        runs=options.runs,
        most=options.most,
        few=options.few,
        only=options.only,
    )
    if failed := [name for name in options.sections if not _ran(name, bench)]:
        sys.exit(f"failed: {', '.join(failed)}")


def _ran(name: str, bench: Bench) -> bool:
    begin = time.perf_counter()
    try:
        SECTIONS[name](bench)
    except Exception:  # noqa: BLE001 the other sections are worth their time all the same
        traceback.print_exc()
        return False
    finally:
        print(f"-- {name}: {time.perf_counter() - begin:.0f} s", flush=True)
        bench.report.save()
    return True


if __name__ == "__main__":
    main()
