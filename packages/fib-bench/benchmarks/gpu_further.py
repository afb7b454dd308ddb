"""Further sections: faults, evaluators, throughput, single evaluations, several devices."""

from __future__ import annotations

import os
import re
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fib_bench import Benchmark, BenchmarkConfig
from fib_bench.api import close, evaluate
from fib_bench.benchmark import RunResult
from fib_bench.events import Event, Observer, PhaseTimes, Working
from fib_bench.plan import DefinitionPlan
from fib_schema import AxisVar, Definition, RandomInput, Solution, TensorSpec, Trace, TraceSet, Workload
from gpu_report import Budget, ends_of, evaluation_extra, evidence_of, plain, status_of, timing_of
from gpu_session import PLAIN_RMSNORM, Bench, plan_of

FAULTS = Path(__file__).parent / "faults"
DOUBLE = Definition(
    "double",
    "elementwise",
    axes={"n": AxisVar()},
    inputs={"x": TensorSpec(("n",), "float32")},
    outputs={"y": TensorSpec(("n",), "float32")},
    reference="def run(x):\n    return x * 2\n",
)


# -- faults --------------------------------------------------------------------------------------


def faults(bench: Bench) -> None:
    """Solutions that break things, each followed by a good one."""
    workloads = [Workload({"n": n}, {"x": RandomInput()}, f"n-{n}") for n in (1000, 100_000)]
    files = sorted(file for file in FAULTS.glob("*.*") if bench.is_cuda or file.suffix == ".py")
    good_source = (FAULTS / "good.py").read_text("utf-8")
    plans = []
    for file in files:
        source, returns = file.read_text("utf-8"), file.suffix == ".py"
        bad = bench.solution(file.stem, DOUBLE, file.name, source, returns=returns)
        good = bench.solution(f"{file.stem}_then_good", DOUBLE, "good.py", good_source, returns=True)
        plans.append(plan_of(DOUBLE, [bad, good], workloads))
    session = bench.session(Budget(bench.budget_seconds), timeout_seconds=5.0, concurrency=1)
    traces = session.run(plans)
    own = {file.stem: [trace for trace in traces if trace.solution == file.stem] for file in files}
    rows = [_fault(name, some) for name, some in own.items() if some]
    behind = [trace for trace in traces if str(trace.solution).endswith("_then_good")]
    bench.note(session)
    bench.report.numbers["faults"] = [plain(trace) for trace in session.traces]
    bench.report.table("Faults, each followed by a good solution", ("solution", "status", "log"), rows)
    passed = sum(trace.is_successful() for trace in behind)
    bench.report.say(f"{len(rows)} of {len(files)} faults were run.")
    bench.report.say(f"Good solutions behind them: {passed} of {len(behind)} evaluations passed.")
    bench.report.say()


def _fault(name: str, traces: Sequence[Trace]) -> tuple[str, str, str]:
    """The statuses of a fault with the most telling line of its log."""
    first = traces[0]
    assert first.evaluation is not None
    statuses = ", ".join(sorted(map(status_of, traces)))
    if first.is_successful():
        return name.replace("_", " "), statuses, f"timed by method {timing_of(first)['method']}"
    telling = re.compile(r"Error|worker was|worker exited|no answer|Assert")
    lines = [line for line in first.evaluation.log.splitlines() if telling.search(line)]
    return name.replace("_", " "), statuses, lines[0][:160] if lines else evidence_of(first, 160)


# -- evaluators ----------------------------------------------------------------------------------

_OP_TYPES = ("dsa_paged", "gdn", "mamba_ssu", "moe", "sampling")
_SIZES = {
    "batch_size": 8, "len_cu_seqlens": 5, "max_seq_len": 128, "num_kv_indices": 256, "num_pages": 512, "num_seqs": 4,
    "num_tokens": 16, "pool_size": 32, "seq_len": 4, "state_cache_size": 32, "total_q": 64, "total_seq_len": 64,
}  # fmt: skip
_WRONG = """

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
    """Each evaluator on the definitions that it applies to."""
    definitions = [d for d in bench.data_set.definitions.values() if d.op_type in _OP_TYPES]
    rows = []
    session = bench.session(Budget(bench.budget_seconds), iterations=10, measure_seconds=0.1)
    traces = session.run([_right_and_wrong(bench, definition) for definition in definitions])
    bench.note(session)
    for definition in definitions:
        found = {str(trace.solution): trace for trace in traces if trace.definition == definition.name}
        known = [evaluation_extra(trace) for trace in found.values()]
        evaluator = known[0].get("evaluator", "-") if known else "-"
        statuses = (status_of(found[name]) if name in found else "not run" for name in ("right", "wrong"))
        rows.append((definition.name, definition.op_type, evaluator, *statuses))
    bench.report.numbers["evaluators"] = [plain(trace) for trace in session.traces]
    bench.report.table("Evaluators", ("definition", "op_type", "evaluator", "its reference", "a wrong solution"), rows)


def _right_and_wrong(bench: Bench, definition: Definition) -> DefinitionPlan:
    """The reference and a wrong solution on a small workload."""
    code = definition.reference
    right = bench.solution("right", definition, "reference.py", code, returns=True)
    wrong = bench.solution("wrong", definition, "wrong.py", code + _WRONG, returns=True)
    return plan_of(definition, [right, wrong], [_small(bench, definition)])


def _small(bench: Bench, definition: Definition) -> Workload:
    """The first recorded workload, or one of small sizes."""
    for trace in bench.data_set.workloads.get(definition.name, []):
        return trace.workload
    axes = {axis: _SIZES.get(axis, 16) for axis in definition.var_axes}
    return Workload(axes, {name: RandomInput() for name in definition.inputs}, f"small-{definition.name}")


# -- throughput ----------------------------------------------------------------------------------

_PAIRS = "rmsnorm_h(512|4096|7168)|gemm_n256_k7168"
_SAMPLE_SECONDS = 0.05


def throughput(bench: Bench) -> None:
    """Seconds for the same pairs, first with nothing built; the budget does not apply."""
    chosen = bench.collect(_PAIRS)
    solutions = {name: _in_languages(bench, definition) for name, (definition, _) in chosen.items()}
    rows = []
    os.environ["FIB_CACHE_PATH"] = tempfile.mkdtemp(prefix="fib-throughput-")
    for state in ("nothing built", "everything built"):
        begin = time.perf_counter()
        started: dict[int, float] = {}
        with _judge_seconds() as used:

            def note(event: Event, started: dict[int, float] = started, used: dict[int, float] = used) -> None:
                if isinstance(event, Working) and not started:
                    started.update(used)  # of the first judge that is ready; those of others are a little less

            result = benchmark(
                bench, solutions, chosen, observe=note, device=bench.device, concurrency=bench.concurrency
            )
        seconds = time.perf_counter() - begin
        passed = sum(trace.is_successful() for trace in result.traces)
        phases = ", ".join(f"{phase} {taken:.1f}" for phase, taken in result.seconds.items())
        busy = "not known" if result.device_busy_share is None else f"{result.device_busy_share:.0%}"
        print(f"  {state}: {passed}/{len(result.traces)} in {seconds:.1f} s, device busy {busy}: {phases}", flush=True)
        start, all_seconds = sum(started.values()), sum(used.values())
        each = f"{(all_seconds - start) / max(len(result.traces), 1) * 1e3:.0f}"
        rows.append((state, f"{passed}/{len(result.traces)}", f"{seconds:.1f}", busy, each, f"{start:.1f}", phases))
        bench.report.numbers[state] = {
            "seconds": seconds,
            "phases": dict(result.seconds),
            "device busy": result.device_busy_share,
            "judge cpu seconds": list(used.values()),
            "of these for the start": list(started.values()),
        }
    cpu = ("judge's CPU ms per evaluation", "CPU seconds of the start of all judges")
    header = ("run", "passed", "seconds", "device busy (driver)", *cpu, "seconds by phase")
    bench.report.table("Throughput", header, rows)


def _children() -> list[int]:
    """The children of all threads of this process: the scheduler starts each judge in another one."""
    paths = Path("/proc/self/task").glob("*/children")
    return [int(child) for path in paths for child in path.read_text().split()]


@contextmanager
def _judge_seconds() -> Iterator[dict[int, float]]:
    """Sample the CPU seconds of this process's children, the judges, by process; their start is included."""
    used: dict[int, float] = {}
    stop = threading.Event()

    def sample() -> None:
        while not stop.wait(_SAMPLE_SECONDS):
            for pid in _children():
                with suppress(OSError):  # it has ended
                    used[pid] = time.clock_gettime(~pid << 3 | 2)  # the clock of all its threads

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield used
    finally:
        stop.set()
        thread.join()


# -- single --------------------------------------------------------------------------------------

_SINGLE_RUNS = 9


def single(bench: Bench) -> None:
    """Seconds of `evaluate` in a warm process, for a small function that is new each time. It knows no budget."""
    workload = Workload({"n": 100_000}, {"x": RandomInput()}, "small")
    rows = []
    for is_quick in (False, True):
        config = BenchmarkConfig(device=bench.device, measure_seconds=0.2, quick=is_quick)
        taken, statuses, phases = [], set(), []

        def note(event: Event, phases: list[PhaseTimes] = phases) -> None:
            if isinstance(event, PhaseTimes):
                phases.append(event)

        for index in range(_SINGLE_RUNS + 2):  # the first two start processes and draw the inputs
            source = f"def run(x):\n    return x + x  # {is_quick} {index}\n"
            solution = bench.solution(f"sum_{is_quick}_{index}", DOUBLE, "sum.py", source, returns=True)
            begin = time.perf_counter()
            (trace,) = evaluate(DOUBLE, solution, [workload], config, observe=note).traces
            taken.append(time.perf_counter() - begin)
            statuses.add(status_of(trace))
        warm = taken[2:]
        begin = time.perf_counter()
        close()
        ended = time.perf_counter() - begin
        name = "quick" if is_quick else "full"
        shown = (f"{seconds:.2f}" for seconds in (taken[0], statistics.median(warm), min(warm), max(warm), ended))
        by_phase = _milliseconds(phases[0]), _milliseconds(phases[-1])
        rows.append((name, ", ".join(sorted(statuses)), *shown, *by_phase))
        bench.report.numbers[name] = taken
    seconds = ("first, seconds", "median of 9", "fastest", "slowest", "end")
    header = ("evaluation", "status", *seconds, "ms by phase, first", "ms by phase, last")
    bench.report.table("One evaluation in a warm process", header, rows)


def _milliseconds(times: PhaseTimes) -> str:
    return ", ".join(f"{phase} {taken * 1e3:.0f}" for phase, taken in times.seconds.items() if taken >= 5e-4)


# -- devices -------------------------------------------------------------------------------------


def devices(bench: Bench) -> None:
    """The same work on one device and on two, without the start of processes; the budget does not apply."""
    chosen = {
        name: (definition, workloads[:14])
        for name, (definition, workloads) in bench.collect(f"{PLAIN_RMSNORM}|gemm_n(4096|5120|6144)_.*").items()
    }
    solutions = {name: [bench.reference(definition)] for name, (definition, _) in chosen.items()}
    rows: list[tuple[str, str, str, str]] = []
    taken: list[float] = []
    for names in (("cuda:0",), ("cuda:0", "cuda:1")):
        begun: list[float] = []

        def note(event: Event, begun: list[float] = begun) -> None:
            if isinstance(event, Working) and not begun:
                begun.append(time.perf_counter())

        result = benchmark(bench, solutions, chosen, observe=note, devices=names)
        taken.append(time.perf_counter() - begun[0])
        passed = f"{sum(trace.is_successful() for trace in result.traces)}/{len(result.traces)}"
        rows.append((", ".join(names), passed, f"{taken[-1]:.1f}", f"{taken[0] / taken[-1]:.2f}"))
    bench.report.table("Devices", ("devices", "passed", "seconds without starting", "times as fast"), rows)


def _in_languages(bench: Bench, definition: Definition) -> list[Solution]:
    family = "gemm" if definition.name.startswith("gemm") else "rmsnorm"
    return [bench.from_file(file, definition) for file in bench.files_of(family)]


def benchmark(
    bench: Bench,
    solutions: Mapping[str, Sequence[Solution]],
    chosen: Mapping[str, tuple[Definition, Sequence[Workload]]],
    observe: Observer = lambda _: None,
    **fields: Any,
) -> RunResult:
    """Benchmark solutions in a data set of their own."""
    with tempfile.TemporaryDirectory() as folder:
        trace_set = TraceSet.from_path(Path(folder))
        for name, (definition, workloads) in chosen.items():
            trace_set.add_definitions([definition])
            trace_set.add_solutions(solutions[name])
            trace_set.add_traces([Trace(name, workload) for workload in workloads])
        with Benchmark(trace_set, BenchmarkConfig(synthesize_missing=True, **fields)) as benchmark:
            result = benchmark.run(observe=observe)
    for skip in result.failures:
        bench.report.say(f"- not run: {ends_of(str(skip))}")
    return result
