"""Sections about verdicts: exploits with their honest twins, honest evaluations, coverage of device latencies."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import attrs
from fib_bench.events import Evaluated, Event
from fib_bench.plan import DefinitionPlan
from fib_bench.selftest import choose, load_cases, run_selftest
from fib_bench.selftest.cases import EXPLOITS, HONEST, TWINS, Case, with_twins
from fib_bench.selftest.definitions import OPS
from fib_bench.selftest.run import Outcome
from fib_bench.transport.arenas import call_bytes
from fib_compile import BuilderRegistry
from fib_schema import Definition, RandomInput, Solution, Trace, Workload
from gpu_report import Budget, Report, count, evaluation_extra, evidence_of, flags_of, plain, status_of, timing_of
from gpu_sections import insensitive_only
from gpu_session import GEMM, PLAIN_RMSNORM, Bench, plan_of, spread, volume

# -- exploits ------------------------------------------------------------------------------------

_COMPILED = frozenset({"cuda", "cutlass", "cpp"})
_EXPLOIT_SECONDS = 12.0  # a build has no longer either, so CUDA sources are built ahead


class _BudgetSpent(Exception):
    """The budget of the section is spent."""


def exploits(bench: Bench) -> None:
    """Every exploit of the self-test, with its gain over the honest twin."""
    budget, kind = Budget(bench.budget_seconds), "cuda" if bench.is_cuda else "cpu"
    every = [case for case in load_cases() if case.suite == EXPLOITS and kind in case.devices and case.is_possible]
    cases = list(choose(every, bench.words)) if bench.words else every
    _build_ahead(bench, with_twins(cases))
    cases.sort(key=lambda case: (case.limit_seconds is not None, case.language != "cuda", -(case.row or 0), case.file))
    rows: dict[str, dict[str, Any]] = {}
    for group in _groups(cases):
        if budget.is_spent:
            break
        rows |= _selftest_rows(bench, group, budget)
    _print_exploits(bench, [rows[case.name] for case in cases if case.name in rows], len(cases))


def _build_ahead(bench: Bench, cases: Sequence[Case]) -> None:
    """Compile all CUDA and C++ sources at once, into the cache that workers read."""
    compiled = [case for case in cases if case.language in _COMPILED]
    if not bench.is_cuda or not compiled:
        return
    begin = time.perf_counter()
    pairs = [(OPS[case.definition].definition(case.definition), case.solution()) for case in compiled]
    outcomes = BuilderRegistry.get_instance().build_many(pairs, jobs=max((os.cpu_count() or 2) - 1, 1))
    failed = [outcome.solution.name for outcome in outcomes if outcome.error]
    said = f"{len(pairs)} sources were built in {time.perf_counter() - begin:.0f} s"
    bench.report.say(f"- {said}; failed: {', '.join(failed) or 'none'}")


def _groups(cases: Sequence[Case]) -> Iterator[Sequence[Case]]:
    """Cases that are run together: a time-out that is expected has a short limit, and so a run of its own."""
    for is_quick in (False, True):
        if some := [case for case in cases if (case.limit_seconds is not None) is is_quick]:
            yield some


def _selftest_rows(bench: Bench, cases: Sequence[Case], budget: Budget) -> dict[str, dict[str, Any]]:
    """A row for each case that ended in time, by name."""
    by_name = {case.name: case for case in with_twins(list(cases))}
    found: dict[str, Outcome] = {}

    def watch(event: Event) -> None:
        if isinstance(event, Evaluated) and (evaluation := event.trace.evaluation) is not None:
            bench.traces.append(event.trace)
            outcome = Outcome.of(by_name[str(event.trace.solution)], evaluation)
            found[outcome.case.name] = outcome
            timed = "" if outcome.timing is None else f" {_timed(outcome.to_plain())}"
            about = f"{outcome.case.name}: {outcome.found}{timed} {outcome.evidence[:160]}"
            print(f"  {budget.used:.0f} s {about}", flush=True)

    try:
        with _stopped_after(budget.left):
            run_selftest(cases, bench.device, watch, timeout_seconds=_EXPLOIT_SECONDS, concurrency=bench.concurrency)
    except _BudgetSpent:
        bench.report.say("- stopped: the budget was spent")
    for twin in (outcome for outcome in found.values() if outcome.case.suite == TWINS and not outcome.holds):
        bench.report.say(f"- twin {twin.case.file} ended as {twin.found}: {twin.evidence[:200]}")
    return {case.name: _row_of(found[case.name], found) for case in cases if case.name in found}


def _row_of(outcome: Outcome, found: Mapping[str, Outcome]) -> dict[str, Any]:
    """The row of an exploit, compared with its twin if that has a latency."""
    twin = found.get(outcome.case.twin_name or "")
    return (outcome if twin is None else outcome.compared_with(twin)).to_plain()


def _timed(row: Mapping[str, Any]) -> str:
    """The latency of a row with its method."""
    return "-" if row["latency_ms"] is None else f"{row['latency_ms'] * 1e3:.2f} us {row['method']}"


@contextmanager
def _stopped_after(seconds: float) -> Iterator[None]:
    """Raise `_BudgetSpent` in the main thread after so many seconds, also while an exploit keeps the device."""

    def stop(*_: object) -> None:
        raise _BudgetSpent

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.01))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _print_exploits(bench: Bench, rows: Sequence[dict[str, Any]], wanted: int) -> None:
    bench.report.numbers["exploits"] = list(rows)
    held = sum(bool(row["holds"]) for row in rows)
    bench.report.say(
        f"{len(rows)} of {wanted} exploits were run, {held} of them ended as expected: "
        f"{count(row['status'] for row in rows)}."
    )
    bench.report.say()
    shown = sorted(rows, key=lambda row: (row["row"] or 0, row["name"]))
    table = [
        (
            row["name"], row["row"] or "-", ", ".join((row["status"], *row["flags"])), _timed(row),
            "-" if row["gain"] is None else f"{row['gain']:.3f}", "yes" if row["holds"] else "**no**",
            row["evidence"][:200],
        )
        for row in shown
    ]  # fmt: skip
    bench.report.table("Exploits", ("name", "row", "status", "latency", "gain", "as expected", "evidence"), table)


# -- honest --------------------------------------------------------------------------------------

_COPIES = 10
_RECORDED = 6
_QUIET_SHARE = 0.25  # of the time: evaluations beside busy processes take twice as long and more


@attrs.frozen
class _Work:
    """Honest solutions of one definition, and the workloads to evaluate them on."""

    definition: Definition
    solutions: Sequence[Solution]
    workloads: Sequence[Workload]
    is_known: Callable[[Trace], bool]
    """Whether a trace is as it must be."""


def honest(bench: Bench) -> None:
    """Honest evaluations, half of them beside busy processes."""
    works = _honest_works(bench)
    budget, half = Budget(bench.budget_seconds), bench.evaluations // 2
    quiet = _evaluate_honest(bench, works, budget.share(_QUIET_SHARE), bench.evaluations - half)
    with busy_host() as processes:
        loud = _evaluate_honest(bench, works, budget, half)
    rows = [
        _honest_row("an idle host", quiet, bench.evaluations - half),
        _honest_row(f"{processes} busy processes", loud, half),
    ]
    everything = [*quiet, *loud]
    bench.report.numbers["honest"] = [plain(trace) for trace, _ in everything]
    header = ("beside", "wanted", "evaluated", "flagged or rejected", "methods")
    bench.report.table("Honest evaluations", header, rows)
    _print_honest_exceptions(bench, [trace for trace, _ in everything])
    bad = [trace for trace, is_good in everything if not is_good]
    if bad:
        found = [
            (t.solution, dict(t.workload.axes), status_of(t), ", ".join(insensitive_only(t)), evidence_of(t))
            for t in bad
        ]
        bench.report.table("Flagged or rejected", ("solution", "axes", "status", "flags", "evidence"), found)


def _print_honest_exceptions(bench: Bench, traces: Sequence[Trace]) -> None:
    """Honest functions that are not given a device latency over changing inputs, with the reasons."""
    timed = {str(trace.solution): trace for trace in traces if trace.is_successful()}
    rows = [row for name, trace in sorted(timed.items()) if (row := _exception(name, trace, None))]
    captured = sum(timing_of(trace)["method"] == "handshake" for trace in timed.values())
    bench.report.say(f"{captured} of {len(timed)} honest functions have a device latency.")
    bench.report.say()
    if rows:
        bench.report.table("Honest functions timed otherwise", ("solution", "result", "reason"), rows)


def _honest_row(beside: str, found: Sequence[tuple[Trace, bool]], wanted: int) -> tuple[object, ...]:
    methods = count(timing_of(trace)["method"] for trace, _ in found if trace.is_successful())
    return beside, wanted, len(found), sum(not is_good for _, is_good in found), methods


@contextmanager
def busy_host() -> Iterator[int]:
    """Keep every core busy; gives how many processes do so."""
    count_of = os.cpu_count() or 1
    processes = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(count_of)]
    try:
        yield count_of
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()


def _honest_works(bench: Bench) -> list[_Work]:
    kind = "cuda" if bench.is_cuda else "cpu"
    cases = [
        case for case in load_cases() if case.suite in {HONEST, TWINS} and kind in case.devices and case.is_possible
    ]
    by_name = {case.name: case for case in cases if case.limit_seconds is None}

    def is_known(trace: Trace) -> bool:
        return by_name[str(trace.solution)].holds(status_of(trace), insensitive_only(trace))

    _build_ahead(bench, list(by_name.values()))
    works = []
    for name in dict.fromkeys(case.definition for case in by_name.values()):
        solutions = [case.solution() for case in by_name.values() if case.definition == name]
        base = OPS[name].workload(name, kind)
        copies = [attrs.evolve(base, uuid=f"{base.uuid}-{index}") for index in range(_COPIES)]
        works.append(_Work(OPS[name].definition(name), solutions, copies, is_known))
    return [*works, *(_recorded_works(bench) if bench.is_cuda else ())]


def _recorded_works(bench: Bench) -> Iterator[_Work]:
    for family, pattern in (("rmsnorm", PLAIN_RMSNORM), ("gemm", GEMM)):
        for definition, workloads in bench.collect(pattern).values():
            solutions = [bench.from_file(file, definition) for file in bench.files_of(family)]
            some = spread(workloads, volume)[:_RECORDED]
            yield _Work(definition, solutions, some, lambda t: t.is_successful() and not insensitive_only(t))


_QUICK = {"measure_seconds": 0.25, "iterations": 20, "warmup_runs": 5}


def _evaluate_honest(bench: Bench, works: Sequence[_Work], budget: Budget, most: int) -> list[tuple[Trace, bool]]:
    """Evaluate in turn, again and again, until so many are done or the budget is spent."""
    plans: list[DefinitionPlan] = []
    left = most
    for work in itertools.cycle(works):
        if left <= 0:
            break
        solutions = work.solutions[:left]
        plans.append(plan_of(work.definition, solutions, work.workloads[: max(left // len(solutions), 1)]))
        left -= plans[-1].count
    session = bench.session(budget, **_QUICK)
    is_known = {work.definition.name: work.is_known for work in works}
    found = [(trace, is_known[trace.definition](trace)) for trace in session.run(plans)]
    bench.note(session)
    return found


# -- coverage ------------------------------------------------------------------------------------

_SIZES = {
    "batch_size": 4, "len_indptr": 5, "num_kv_indices": 64, "num_pages": 128, "num_tokens": 16, "total_kv": 300,
    "total_q": 32, "len_cu_seqlens": 5, "max_seq_len": 128, "num_seqs": 4, "pool_size": 32, "seq_len": 4,
    "state_cache_size": 32, "total_seq_len": 64,
}  # fmt: skip
"""For definitions without recorded workloads."""
_COVERAGE_SETTINGS = {
    "profile_baseline": False, "num_trials": 2, "distributions": ("normal",), "measure_seconds": 0.1, "iterations": 10,
    "warmup_runs": 3, "timeout_seconds": 20.0,
}  # fmt: skip
_ON_CPU = ("rmsnorm", "gemm", "softmax", "paged_decode")
_WRITTEN_BY_REFERENCES = frozenset({"intermediate_states_buffer"})
"""Optional inputs that are left out."""


def coverage(bench: Bench) -> None:
    """The timing method of every definition, with a solution that a CUDA graph can capture; the cheapest first."""
    pairs = sorted(_coverage_pairs(bench), key=lambda pair: call_bytes(pair[0], pair[1]))
    solutions = {definition.name: bench.capturable(definition) for definition, _ in pairs}
    session = bench.session(Budget(bench.budget_seconds), **_COVERAGE_SETTINGS)
    session.run([plan_of(definition, [solutions[definition.name]], [workload]) for definition, workload in pairs])
    found = {trace.definition: trace for trace in session.traces}
    reasons = {skip.definition: str(skip).splitlines()[0][:200] for skip in session.skipped}
    session.skipped.clear()  # the table states them
    bench.note(session)
    bench.report.numbers["coverage"] = [plain(trace) for trace in found.values()]
    bench.report.numbers["not timed"] = reasons
    sizes = ", ".join(f"{axis} {size}" for axis, size in _SIZES.items())
    bench.report.say(f"Sizes of definitions without recorded workloads: {sizes}, other axes 16.")
    bench.report.say()
    print_coverage(bench.report, {name: solution.name for name, solution in solutions.items()}, found, reasons)


def _coverage_pairs(bench: Bench) -> Iterator[tuple[Definition, Workload]]:
    """Each definition with its smallest recorded workload, or one of small sizes."""
    if not bench.is_cuda:
        yield from ((OPS[name].definition(name), OPS[name].workload(name, "cpu")) for name in _ON_CPU)
        return
    for name, definition in bench.data_set.definitions.items():
        recorded = [trace.workload for trace in bench.data_set.workloads.get(name, [])]
        if recorded:
            yield definition, min(recorded, key=volume)
        else:
            axes = {axis: _SIZES.get(axis, 16) for axis in definition.var_axes}
            inputs = {name: RandomInput() for name in definition.inputs if name not in _WRITTEN_BY_REFERENCES}
            yield definition, Workload(axes, inputs, f"made-{name}")


def print_coverage(
    report: Report, names: Mapping[str, str], found: Mapping[str, Trace], reasons: Mapping[str, str]
) -> None:
    """Print a summary, and a row for each definition.

    Args:
        report: Where to print.
        names: The solution of each definition.
        found: The traces, by definition.
        reasons: Why definitions have no trace.
    """
    timed = [trace for trace in found.values() if trace.is_successful()]
    captured = [trace for trace in timed if timing_of(trace)["method"] == "handshake"]
    fixed = [trace for trace in timed if "fixed_inputs" in flags_of(trace)]
    share = f"{len(captured) / len(timed):.1%}" if timed else "-"
    methods = count(timing_of(trace)["method"] for trace in timed)
    row = (len(names), len(found), len(timed), methods, share, len(fixed))
    header = ("definitions", "evaluated", "timed", "methods", "share with a device latency", "fixed inputs")
    report.table("Coverage of device latencies", header, [row])
    rows = []
    for name, solution in names.items():
        exception = _exception(name, found.get(name), reasons.get(name))
        rows.append((name, solution.removesuffix(f"_{name}"), *(exception[1:] if exception else ("handshake", ""))))
    report.table("Definitions", ("definition", "solution", "method", "reason"), rows)


def _exception(name: str, trace: Trace | None, reason: str | None) -> tuple[str, str, str] | None:
    """Reason for not a device latency over changing inputs; None if it is timed so."""
    if trace is None:
        return name, "not evaluated", reason or "the budget was spent"
    if not trace.is_successful():
        return name, status_of(trace), evidence_of(trace)
    timing, flags = timing_of(trace), [flag for flag in flags_of(trace) if flag == "fixed_inputs"]
    if timing["method"] == "handshake" and not flags:
        return None
    return name, ", ".join((timing["method"], *flags)), _reason(trace)


def _reason(trace: Trace) -> str:
    extra = evaluation_extra(trace)
    parts = [str(timing_of(trace).get("not_captured", ""))[:200]]
    parts += [f"{name}: {why}" for name, why in extra.get("kept_integers", {}).items()]
    default = "a CPU device" if timing_of(trace)["method"] == "cpu" else "no input can change between calls"
    return "; ".join(part for part in parts if part) or default
