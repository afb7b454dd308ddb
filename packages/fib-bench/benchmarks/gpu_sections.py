"""Sections about latencies: identical code, repeated runs, stated uncertainty, exclusive device time."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from fib_bench.plan import DefinitionPlan
from fib_bench.report.ratios import Outcome, speedup_of
from fib_bench.selftest.definitions import OPS
from fib_schema import AxisVar, Definition, RandomInput, Solution, TensorSpec, Trace, Workload
from gpu_report import Budget, count, flags_of, latency_us, performance_of, plain, status_of, timing_of
from gpu_session import GEMM, PLAIN_RMSNORM, RMSNORM, Bench, plan_of, spread, volume

_CHUNK = 8
_SHORT_US, _FROM_US = 100.0, 10.0
_LIMIT_MS = 60.0
_ENOUGH_SHORT = 24
Chosen = dict[str, tuple[Definition, list[Workload]]]


def chosen_or_own(bench: Bench, pattern: str, own: str) -> Chosen:
    """The recorded definitions that match; on the CPU, which is too slow for them, one of the self-test's."""
    if bench.is_cuda:
        return bench.collect(pattern)
    op = OPS[own]
    return {own: (op.definition(own), [op.workload(own, "cpu")])}


def in_rounds(
    chosen: Chosen, solutions_of: Callable[[Definition], Sequence[Solution]], chunk: int = _CHUNK
) -> list[DefinitionPlan]:
    """Plans for some workloads of each definition in turn, until all are planned."""
    queues = {name: spread(workloads, volume) for name, (_, workloads) in chosen.items()}
    plans = []
    while any(queues.values()):
        for name, queue in queues.items():
            some, queues[name] = queue[:chunk], queue[chunk:]
            if some:
                definition = chosen[name][0]
                plans.append(plan_of(definition, solutions_of(definition), some))
    return plans


# -- same ----------------------------------------------------------------------------------------


def same(bench: Bench) -> None:
    """Ratios of identical code."""
    chosen = chosen_or_own(bench, f"{RMSNORM}|{GEMM}", "rmsnorm")
    recorded = sum(len(workloads) for _, workloads in chosen.values())
    session = bench.session(Budget(bench.budget_seconds))
    traces = session.run(in_rounds(chosen, lambda definition: [bench.reference(definition)]))
    bench.note(session)
    report = bench.report
    report.numbers["same"] = [plain(trace) for trace in traces]
    passed = [trace for trace in traces if trace.is_successful()]
    compared = [trace for trace in passed if performance_of(trace).speedup_factor > 0]
    verdicts = count(status_of(trace) for trace in traces)
    untimed = len(passed) - len(compared)
    report.say(
        f"{len(traces)} of {recorded} recorded workloads were evaluated ({verdicts}); {untimed} without a ratio."
    )
    report.say()
    if not compared:
        return
    long = [trace for trace in compared if latency_us(trace) >= _FROM_US]
    rows = [_ratios("all", compared, 0.02), _ratios(f"from {_FROM_US:.0f} us on", long, 0.01)]
    header = ("latencies", "workloads", "lowest ratio", "median", "highest", "limits", "within")
    report.table("Identical code against itself", header, rows)
    outcomes = [speedup_of(performance_of(trace)).outcome for trace in compared]
    report.say(
        f"speedups whose interval leaves 1 out: {sum(o is not Outcome.NOISE for o in outcomes)} of {len(outcomes)}"
    )
    report.say()
    _farthest(bench, compared)


def _ratio(trace: Trace) -> float:
    return float(performance_of(trace).speedup_factor)


def _ratios(title: str, traces: Sequence[Trace], limit: float) -> tuple[object, ...]:
    ratios = sorted(map(_ratio, traces))
    if not ratios:
        return title, 0, "-", "-", "-", "-", "-"
    inside = sum(1 - limit <= ratio <= 1 + limit for ratio in ratios)
    shown = (f"{ratio:.4f}" for ratio in (ratios[0], statistics.median(ratios), ratios[-1]))
    return title, len(ratios), *shown, f"{1 - limit:.2f} to {1 + limit:.2f}", f"{inside} of {len(ratios)}"


def _farthest(bench: Bench, traces: Sequence[Trace]) -> None:
    worst = sorted(traces, key=lambda trace: -abs(_ratio(trace) - 1))[:8]
    rows = []
    for trace in worst:
        timing = timing_of(trace)
        about = (f"{latency_us(trace):.2f}", timing["method"], timing["samples"], uncertainty_text(trace))
        rows.append((trace.definition, dict(trace.workload.axes), f"{_ratio(trace):.4f}", *about))
    header = ("definition", "axes", "ratio", "latency us", "method", "calls", "stated uncertainty us")
    bench.report.table("The ratios farthest from 1", header, rows)


def uncertainty_text(trace: Trace) -> str:
    """The stated uncertainty in microseconds."""
    stated = timing_of(trace).get("uncertainty_ms")
    return "-" if stated is None else f"{stated * 1e3:.3f}"


# -- repeat --------------------------------------------------------------------------------------

_RUNS = 3


def repeat(bench: Bench) -> None:
    """The same latencies in three runs."""
    pairs = _fixed_pairs(bench)
    wanted = sum(len(solutions) * len(workloads) for _, solutions, workloads in pairs)
    budget = Budget(bench.budget_seconds)
    runs: list[dict[tuple[str, str], Trace]] = []
    for index in range(_RUNS):
        session = bench.session(budget.share(1 / (_RUNS - index)))
        session.run([plan_of(*pair) for pair in pairs])
        bench.note(session)
        passed = [trace for trace in session.traces if trace.is_successful()]
        runs.append({(str(trace.solution), trace.workload.uuid): trace for trace in passed})
    bench.report.numbers["repeat"] = [[plain(trace) for trace in run.values()] for run in runs]
    keys = [key for key in runs[0] if all(key in run for run in runs)]
    bench.report.say(f"{len(keys)} of {wanted} pairs passed in all of {_RUNS} runs.")
    bench.report.say()
    if keys:
        _deviations(bench, [[latency_us(run[key]) for run in runs] for key in keys], [runs[0][key] for key in keys])


def _fixed_pairs(bench: Bench) -> list[tuple[Definition, list[Solution], list[Workload]]]:
    pairs = []
    for family, pattern in (("rmsnorm", "rmsnorm_h4096"), ("gemm", "gemm_n4096_k4096")):
        if bench.is_cuda:
            for definition, workloads in bench.collect(pattern).values():
                solutions = [bench.from_file(file, definition) for file in bench.files_of(family)]
                pairs.append((definition, solutions, spread(workloads, volume)[:2]))
        else:
            definition = OPS[family].definition(family)
            pairs.append((definition, [bench.reference(definition)], [OPS[family].workload(family, "cpu")]))
    return pairs


def _deviations(bench: Bench, latencies: Sequence[Sequence[float]], traces: Sequence[Trace]) -> None:
    deviations = [[latency / statistics.median(some) - 1 for latency in some] for some in latencies]
    flat = [abs(deviation) for some in deviations for deviation in some]
    within = (f"{sum(value <= limit for value in flat) / len(flat):.1%}" for limit in (0.01, 0.03))
    header = ("latencies", "runs", "within 1 % of the median of the runs", "within 3 %", "largest deviation")
    bench.report.table("The same latencies in separate runs", header, [(len(flat), _RUNS, *within, f"{max(flat):.2%}")])
    rows = [
        (
            trace.solution, dict(trace.workload.axes), timing_of(trace)["method"],
            *(f"{latency:.3f}" for latency in some), f"{max(map(abs, off)):.2%}", uncertainty_text(trace),
        )
        for trace, some, off in zip(traces, latencies, deviations, strict=True)
    ]  # fmt: skip
    columns = (f"run {index + 1} us" for index in range(_RUNS))
    titles = ("solution", "axes", "method", *columns, "largest deviation", "stated uncertainty us")
    bench.report.table("By pair", titles, rows)


# -- uncertainty ---------------------------------------------------------------------------------

_SPINS = {2: 32, 5: 192, 20: 1_056, 100: 5_632, 1000: 56_864}
"""Microseconds, and about how many steps of the kernel take so long: multiples of 32."""
_REPEATS = 5
_SPIN = Definition(
    "spin",
    "elementwise",
    axes={"n": AxisVar()},
    inputs={"x": TensorSpec(("n",), "float32")},
    outputs={"y": TensorSpec(("n",), "float32")},
    reference="def run(x):\n    return x.clone()\n",
)
_SPIN_TRITON = """# evaluation {index}: 32 rotations, each with an exclusive or of an even number of bits, cancel out
import triton
import triton.language as tl


@triton.jit
def spin(x, y, n, steps, key, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    bits = tl.load(x + places, mask=places < n).to(tl.uint32, bitcast=True)
    for _ in range(steps):
        bits = ((bits << 1) | (bits >> 31)) ^ key.to(tl.uint32)
    tl.store(y + places, bits.to(tl.float32, bitcast=True), mask=places < n)


def run(x, y):
    spin[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), {steps}, 6, BLOCK=1024)
"""
_SPIN_TORCH = """# evaluation {index}
def run(x, y):
    y.copy_(x)
    for _ in range({steps} // 32):
        y.neg_().neg_()
"""


def uncertainty(bench: Bench) -> None:
    """The stated uncertainty of kernels of several lengths, and how evaluations differ."""
    file, text = ("spin_triton.py", _SPIN_TRITON) if bench.is_cuda else ("spin.py", _SPIN_TORCH)
    workload = Workload({"n": 16_384}, {"x": RandomInput()}, "spin-16384")
    solutions = {
        (length, index): bench.solution(
            f"spin_{length}us_{index}", _SPIN, file, text.format(index=index, steps=steps), returns=False
        )
        for index in range(_REPEATS)
        for length, steps in _SPINS.items()
    }
    session = bench.session(Budget(bench.budget_seconds), profile_baseline=False)
    found = {str(trace.solution): trace for trace in session.run([plan_of(_SPIN, [*solutions.values()], [workload])])}
    bench.note(session)
    by_length: dict[int, list[Trace]] = {
        length: [found[s.name] for (of, _), s in solutions.items() if of == length and s.name in found]
        for length in _SPINS
    }
    bench.report.numbers["uncertainty"] = [plain(trace) for traces in by_length.values() for trace in traces]
    header = (
        "about us", "evaluations", "method", "latency us, median", "lowest", "highest", "largest stated uncertainty us",
        "limit us", "deviations within the stated uncertainty",
    )  # fmt: skip
    title = f"Stated uncertainty, each kernel evaluated {_REPEATS} times in a worker of its own"
    bench.report.table(title, header, [_stated(length, traces) for length, traces in by_length.items()])


def _stated(length: int, traces: Sequence[Trace]) -> tuple[object, ...]:
    passed = [trace for trace in traces if trace.is_successful()]
    if not passed:
        return length, f"0 of {_REPEATS}", *["-"] * 7
    latencies = [latency_us(trace) for trace in passed]
    middle = statistics.median(latencies)
    stated = [timing_of(trace).get("uncertainty_ms", 0.0) * 1e3 for trace in passed]
    inside = sum(abs(latency - middle) <= error for latency, error in zip(latencies, stated, strict=True))
    shown = (
        f"{value:.3f}" for value in (middle, min(latencies), max(latencies), max(stated), max(0.02 * middle, 0.15))
    )
    methods = count(timing_of(trace)["method"] for trace in passed)
    return length, f"{len(passed)} of {_REPEATS}", methods, *shown, f"{inside} of {len(passed)}"


# -- exclusive -----------------------------------------------------------------------------------


def exclusive(bench: Bench) -> None:
    """Exclusive device time for each timed pair under 100 us; pairs of earlier sections count."""
    found = _short(bench.traces)
    earlier = len(found)
    if earlier < _ENOUGH_SHORT:
        chosen = chosen_or_own(bench, f"{PLAIN_RMSNORM}|gemm_n256_k7168", "rmsnorm")
        session = bench.session(Budget(bench.budget_seconds))
        session.run(in_rounds(chosen, lambda definition: _in_languages(bench, definition), chunk=2))
        bench.note(session)
        found = _short(bench.traces)
    bench.report.numbers["exclusive"] = [plain(trace) for trace in found]
    bench.report.say(f"{len(found)} pairs under {_SHORT_US:.0f} us, {earlier} of them from earlier sections.")
    bench.report.say()
    if found:
        rows = [_exclusive("all", found)]
        families = {trace.definition.partition("_")[0]: None for trace in found}
        rows += [_exclusive(name, [t for t in found if t.definition.partition("_")[0] == name]) for name in families]
        header = ("pairs", "count", "median ms", "95 % ms", "largest ms", "solution alone, median ms", "within 60 ms")
        bench.report.table("Exclusive device time of a solution with its reference", header, rows)


def _in_languages(bench: Bench, definition: Definition) -> list[Solution]:
    family = "gemm" if definition.name.startswith("gemm") else "rmsnorm"
    if not bench.is_cuda:
        return [bench.reference(definition)]
    return [bench.from_file(file, definition) for file in bench.files_of(family)]


def _short(traces: Sequence[Trace]) -> list[Trace]:
    return [
        trace
        for trace in traces
        if trace.is_successful()
        and performance_of(trace).reference_latency_ms > 0
        and latency_us(trace) < _SHORT_US
        and "pair_exclusive_ms" in timing_of(trace)
    ]


def _exclusive(title: str, traces: Sequence[Trace]) -> tuple[object, ...]:
    taken = sorted(timing_of(trace)["pair_exclusive_ms"] for trace in traces)
    alone: list[Any] = [timing_of(trace).get("exclusive_ms") for trace in traces]
    known = [value for value in alone if value is not None]
    inside = sum(value <= _LIMIT_MS for value in taken)
    numbers = (statistics.median(taken), taken[min(int(0.95 * len(taken)), len(taken) - 1)], taken[-1])
    own = f"{statistics.median(known):.1f}" if known else "-"
    return title, len(taken), *(f"{value:.1f}" for value in numbers), own, f"{inside} of {len(taken)}"


def insensitive_only(trace: Trace) -> list[str]:
    """The flags of a trace that concern the solution or the device rather than the inputs."""
    ignored = ("fixed_inputs", "insensitive", "unranked", "interpreted")
    return [flag for flag in flags_of(trace) if not flag.startswith(ignored)]
