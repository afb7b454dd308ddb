"""Quick evaluations of one solution for an edit-run loop, and the compiler errors of evaluations."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import attrs
from fib_schema import BuildSpec, EvaluationStatus, Solution, Trace, TraceSet, to_plain
from rich.console import Console

from ..authoring.compiler_errors import CompilerError, first_compiler_error
from ..config.benchmark import BenchmarkConfig
from .printing import output_console, print_json, safe_text
from .progress import format_trace, progress_on
from .run_options import default_device
from .tables import print_skipped

MAX_WORKLOADS = 3
"""The workloads of a quick evaluation, the first ones of the data set."""
_WITH_PLACE = frozenset({EvaluationStatus.COMPILE_ERROR, EvaluationStatus.RUNTIME_ERROR})


def run_quickly(
    root: Path, solution: Solution, device: str | None, errors: Console, plain: dict[str, object] | None = None
) -> int:
    """Evaluate a solution on some workloads, record it and print the results; returns the exit code.

    Args:
        root: The data set.
        solution: One of its solutions.
        device: Where to run; None is the default.
        errors: Gets the progress.
        plain: The results are added to it and it is printed as JSON, in place of text.
    """
    from ..benchmark import Benchmark

    trace_set = TraceSet.from_path(root)
    config = BenchmarkConfig(
        quick=True, solutions=(solution.name,), max_workloads=MAX_WORKLOADS, device=device or device_of(solution.spec)
    )
    with progress_on(errors) as observe, Benchmark(trace_set, config) as benchmark:
        result = benchmark.run(observe=observe)
    if plain is not None:
        skipped = [attrs.asdict(skip) for skip in result.skipped]
        print_json({**plain, "traces": [to_plain(trace) for trace in result.traces], "skipped": skipped})
    else:
        print_results(output_console(), result.traces, {solution.name: solution})
    print_skipped(errors, result.skipped)
    return 1 if result.failures or result.is_without_results else 0


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
