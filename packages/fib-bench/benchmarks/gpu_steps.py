"""Section about the judge's own time: how often each step of an evaluation is made, and how long it takes."""

from __future__ import annotations

import cProfile
import pstats
import time
from collections.abc import Iterator
from pathlib import Path

import fib_bench
from fib_bench import BenchmarkConfig
from fib_bench.judge.evaluate import Judge
from fib_schema import Definition, Solution, Workload
from gpu_report import Budget
from gpu_sections import chosen_or_own
from gpu_session import Bench, spread, volume

_PACKAGE = str(Path(fib_bench.__file__).parent)
_FOLDERS = ("judge", "checking", "timing", "worker")
_WORKLOADS, _ROWS = 4, 60


def steps(bench: Bench) -> None:
    """Evaluate in this process under a profiler; the first definition only warms up."""
    budget, profile = Budget(bench.budget_seconds), cProfile.Profile()
    config = BenchmarkConfig(device=bench.device, synthesize_missing=True, timeout_seconds=60.0)
    pairs = seconds = 0.0
    with Judge(config.for_data_set(bench.data_set), root=bench.data_set.root) as judge:
        for index, (definition, solutions, workloads) in enumerate(_work(bench)):
            if budget.is_spent:
                break
            if index == 1:
                profile.enable()
                judge.phases.take()
            begin = time.perf_counter()
            prepared = [judge.prepare(definition, workload) for workload in workloads]
            found = [e for solution in solutions for _, e in judge.evaluate(definition, solution, prepared)]
            if index:
                pairs, seconds = pairs + len(found), seconds + time.perf_counter() - begin
        profile.disable()
        bench.report.numbers["phases"] = {str(phase): taken for phase, taken in judge.phases.take().items()}
    bench.report.say(f"{pairs:.0f} evaluations in {seconds:.1f} s, at most {_WORKLOADS} workloads for each solution.")
    bench.report.say()
    if pairs:
        header = ("step", "calls", "ms each", "share of the time, inner steps included")
        bench.report.table("Steps of an evaluation", header, _steps(profile, seconds))


def _work(bench: Bench) -> Iterator[tuple[Definition, list[Solution], list[Workload]]]:
    pattern = "rmsnorm_h4096|gemm_n4096_k4096|gemm_n128_k2048"
    for definition, workloads in chosen_or_own(bench, pattern, "rmsnorm").values():
        family = "gemm" if definition.name.startswith("gemm") else "rmsnorm"
        some = spread(workloads, volume)[:_WORKLOADS]
        yield definition, [bench.from_file(file, definition) for file in bench.files_of(family)[:2]], some
    if not bench.is_cuda:  # the one definition of the CPU, once more
        yield definition, [bench.from_file("rmsnorm_torch.py", definition)], some


def _steps(profile: cProfile.Profile, seconds: float) -> Iterator[tuple[str, int, str, str]]:
    """The functions of the package by the time that they take."""
    found = []
    for (file, _, name), (_, calls, _, taken, _) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        path = Path(file)
        if file.startswith(_PACKAGE) and path.relative_to(_PACKAGE).parts[0] in _FOLDERS and name[0] != "<":
            found.append((taken, calls, f"{path.relative_to(_PACKAGE).with_suffix('')}.{name}"))
    for taken, calls, name in sorted(found, reverse=True)[:_ROWS]:
        yield name, calls, f"{taken / calls * 1e3:.2f}", f"{taken / seconds:.1%}"
