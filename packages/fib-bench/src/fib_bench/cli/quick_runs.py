"""Quick evaluations of one solution for an edit-run loop, and the compiler errors of evaluations."""

from __future__ import annotations

import resource
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
from fib_schema import BuildSpec, EvaluationStatus, Solution, Trace, TraceSet, to_plain
from rich.console import Console

from ..authoring.compiler_errors import CompilerError, first_compiler_error
from ..config.benchmark import BenchmarkConfig
from ..events import Phase
from ..step_timer import StepTimer
from .printing import output_console, print_json, safe_text
from .progress import format_trace, progress_on
from .run_options import default_device
from .tables import print_seconds, print_skipped, print_starts

if TYPE_CHECKING:
    from ..benchmark import RunResult

MAX_WORKLOADS = 3
"""The workloads of a quick evaluation, the first ones of the data set."""
_WITH_PLACE = frozenset({EvaluationStatus.COMPILE_ERROR, EvaluationStatus.RUNTIME_ERROR})


def run_quickly(
    root: Path,
    solution: Solution,
    device: str | None,
    errors: Console,
    plain: dict[str, object] | None = None,
    *,
    steps: StepTimer | None = None,
) -> int:
    """Evaluate a solution on some workloads, record it and print the results; returns the exit code.

    One judge runs all of them: each start of a judge takes seconds of several cores, an evaluation less than one.

    Args:
        root: The data set.
        solution: One of its solutions.
        device: Where to run; None is the default.
        errors: Gets the progress.
        plain: The results are added to it and it is printed as JSON, in place of text.
        steps: The steps of the command before; they are printed with those of the evaluation. None prints none.
    """
    from ..benchmark import Benchmark

    trace_set = TraceSet.from_path(root)
    config = BenchmarkConfig(
        quick=True,
        solutions=(solution.name,),
        max_workloads=MAX_WORKLOADS,
        device=device or device_of(solution.spec),
        concurrency=1,
    )
    with progress_on(errors) as observe, Benchmark(trace_set, config) as benchmark:
        result = benchmark.run(observe=observe)
    if plain is not None:
        skipped = [attrs.asdict(skip) for skip in result.skipped]
        print_json({**plain, "traces": [to_plain(trace) for trace in result.traces], "skipped": skipped})
    else:
        print_results(output_console(), result.traces, {solution.name: solution})
    print_skipped(errors, result.skipped)
    if steps is not None:
        _print_timeline(errors, steps, result)
    return 1 if result.failures or result.is_without_results else 0


def _print_timeline(console: Console, steps: StepTimer, result: RunResult) -> None:
    """Print the phases of the command, which add up to its wall time, and the CPU seconds of all its processes."""
    before = dict(steps.seconds)
    steps.finish("evaluate")
    phases = before | dict(result.seconds)
    rest = sum(steps.seconds.values()) - sum(phases.values())
    print_seconds(console, phases | {Phase.OTHER: phases.get(Phase.OTHER, 0.0) + max(rest, 0.0)})
    print_starts(console, result.starts)
    used = sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    console.print(f"{used:.1f} CPU seconds of all processes", markup=False, highlight=False)


def device_of(spec: BuildSpec) -> str:
    """The device of a command that names none: the CPU for a solution that runs nowhere else, else the default."""
    return "cpu" if spec.target_hardware == ("cpu",) else default_device()


def print_results(console: Console, traces: Iterable[Trace], solutions: dict[str, Solution]) -> None:
    """Print one line for each evaluation, and the first compiler error of each solution with its source line."""
    shown: set[str] = set()
    for trace in traces:
        console.print(safe_text(format_trace(trace)), soft_wrap=True)
        error = compiler_error_of(trace, solutions.get(trace.solution or ""))
        if error is not None and str(error) not in shown:
            shown.add(str(error))
            console.print(safe_text(str(error), "red"), soft_wrap=True)


def print_compiler_errors(console: Console, traces: Iterable[Trace], trace_set: TraceSet) -> None:
    """Print the first compiler error of each solution with its source line."""
    shown: set[str] = set()
    for trace in traces:
        if trace.evaluation is None or trace.evaluation.status is not EvaluationStatus.COMPILE_ERROR:
            continue
        if trace.solution is None or trace.solution in shown:
            continue
        shown.add(trace.solution)
        if (error := compiler_error_of(trace, trace_set.get_solution(trace.solution))) is not None:
            console.print(safe_text(f"{trace.solution}: {error}", "red"), soft_wrap=True)


def compiler_error_of(trace: Trace, solution: Solution | None) -> CompilerError | None:
    """The first error of the log that lies in a source of the solution."""
    evaluation = trace.evaluation
    if solution is None or evaluation is None or evaluation.status not in _WITH_PLACE:
        return None
    return first_compiler_error(evaluation.log, solution.sources)
