"""Cost of the checks against exploits in an honest run on the CPU, as a table in Markdown.

The same pairs run with all checks and without those that only find exploits: masked inputs, fresh answers of
the reference, known-answer slots, background activity, precision. The comparison of outputs on input sets
remains in both. Run it with
``python packages/fib-bench/benchmarks/bench_checks.py`` on an idle machine; it takes some minutes.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from fib_bench import BenchmarkConfig
from fib_bench.execution.execution import Execution
from fib_bench.judge.background_activity import BackgroundActivity
from fib_bench.judge.verification import Verifier
from fib_bench.plan import DefinitionPlan
from fib_bench.selftest import load_cases
from fib_bench.selftest.definitions import OPS
from fib_bench.transport.slots import Slots
from fib_bench.worker.tamper_check import Watch
from fib_schema import EvaluationStatus, Solution, Workload

OP_NAMES = ("scale", "rmsnorm", "softmax", "gemm", "moments")
LIMIT = 1.25


def pairs(count: int) -> list[tuple[str, Workload, Solution]]:
    """Honest solutions in Python on workloads of growing size, `count` pairs."""
    cases = [c for c in load_cases() if c.suite == "honest" and c.language == "python" and not c.slow_build]
    chosen = [case for case in cases if case.definition in OP_NAMES and "cpu" in case.devices]
    found = []
    for factor in (1, 2, 3, 4, 6, 8, 12, 16):
        for case in chosen:
            base = OPS[case.definition].workload(case.definition, "cpu")
            axes = {axis: size * factor for axis, size in base.axes.items()}
            workload = Workload(axes, base.inputs, f"{base.uuid}-{factor}")
            found.append((case.definition, workload, case.solution()))
    return found[:count]


def plans(chosen: list[tuple[str, Workload, Solution]]) -> Iterator[DefinitionPlan]:
    """The same as a judge gets them."""
    for name in OP_NAMES:
        mine = [(workload, solution) for definition, workload, solution in chosen if definition == name]
        workloads = {workload.uuid: workload for workload, _ in mine}
        pending = {uuid: tuple(s for w, s in mine if w.uuid == uuid) for uuid in workloads}
        yield DefinitionPlan(OPS[name].definition(name), tuple(workloads.values()), pending)


@contextmanager
def without_checks() -> Iterator[None]:
    """Leave out the checks that only find exploits."""
    nothing: Callable[..., Any] = lambda *_, **__: None  # noqa: E731
    with (
        patch.object(Slots, "mask", lambda *_: ()),
        patch.object(Verifier, "_may_ask", lambda *_: False),
        patch.object(Verifier, "_choose_known", lambda *_: {}),
        patch.object(Verifier, "is_enough", True),
        patch.object(BackgroundActivity, "begin", nothing),
        patch.object(BackgroundActivity, "check", nothing),
        patch("fib_bench.judge.prepare.error_bounds", lambda *_: {}),
    ):
        yield


def run(chosen: list[tuple[str, Workload, Solution]], settings: dict[str, Any]) -> tuple[float, int]:
    """Seconds for all pairs, start of the workers excluded, and how many passed."""
    with tempfile.TemporaryDirectory() as folder, Execution(BenchmarkConfig(**settings), Path(folder), {}) as execution:
        execution._judge.context  # noqa: B018, SLF001 starts the worker server and calibrates
        begin, passed = time.perf_counter(), 0
        for plan in plans(chosen):
            for event in execution.execute(plan):
                trace = getattr(event, "trace", None)
                passed += trace is not None and trace.evaluation.status is EvaluationStatus.PASSED
        return time.perf_counter() - begin, passed


def watch_us() -> float:
    """Microseconds that a worker looks around after each request."""
    watch = Watch()
    begin = time.perf_counter()
    for _ in range(1000):
        watch.findings()
    return (time.perf_counter() - begin) * 1e3


def main() -> None:
    """Run both ways in turns, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=100)
    parser.add_argument("--repetitions", type=int, default=2)
    parser.add_argument("--measure-seconds", type=float, default=None, help="in place of the default")
    arguments = parser.parse_args()
    settings = {} if arguments.measure_seconds is None else {"measure_seconds": arguments.measure_seconds}
    chosen = pairs(arguments.pairs)
    with_all, without = [], []
    for index in range(arguments.repetitions):
        with without_checks():
            seconds, _ = run(chosen, settings)
            without.append(seconds)
        seconds, passed = run(chosen, settings)
        with_all.append(seconds)
        print(f"round {index + 1}: {with_all[-1]:.1f} s with, {without[-1]:.1f} s without, {passed} passed", flush=True)
    ratio = statistics.median(with_all) / statistics.median(without)
    print("\n| pairs | with all checks | without | ratio | at most | looking around, per request |")
    print("| --- | --- | --- | --- | --- | --- |")
    medians = f"{statistics.median(with_all):.1f} s | {statistics.median(without):.1f} s"
    print(f"| {len(chosen)} | {medians} | {ratio:.3f} | {LIMIT} | {watch_us():.0f} us |")


if __name__ == "__main__":
    main()
