"""Evaluation without a data set, for notebooks and programs that try out solutions. Nothing is recorded.

The judge process stays alive between calls, so only the first call waits for its start.
"""

from __future__ import annotations

import atexit
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from fib_schema import Definition, Solution, Workload

from .benchmark import RunResult
from .config.benchmark import BenchmarkConfig
from .errors import JudgeFailed
from .events import Evaluated, Skipped
from .execution.judge_process import JudgeProcess
from .plan import DefinitionPlan

_QUICK_SECONDS = 0.2
_judges: dict[str, tuple[BenchmarkConfig, JudgeProcess]] = {}
_judge_thread = ThreadPoolExecutor(1, "fib-bench")  # a judge process is killed when the thread that started it ends


def evaluate(
    definition: Definition, solution: Solution, workloads: Sequence[Workload], config: BenchmarkConfig | None = None
) -> RunResult:
    """Evaluate one solution, with all checks.

    Calls from several threads are serialised. The process is restarted if a call has another configuration for the
    same device.

    Args:
        definition: The definition that the solution implements.
        solution: In any language that has a builder here.
        workloads: The workloads; their uuids differ.
        config: Settings; the default measures for at most 0.2 s, on the CPU. `devices`, `executor` and
            `in_process_trusted` have no effect: there is always one judge process.

    Returns:
        A trace for each workload, and the workloads that could not run, with the reasons.

    Raises:
        UnsupportedDevice: There is no such device here.
        JudgeFailed: The judge process does not start.
    """
    config = config or BenchmarkConfig(measure_seconds=_QUICK_SECONDS)
    part = DefinitionPlan(definition, tuple(workloads), {w.uuid: (solution,) for w in workloads})
    return _judge_thread.submit(_run, config, part).result()


def _run(config: BenchmarkConfig, part: DefinitionPlan) -> RunResult:
    try:
        events = list(_judge(config).execute(part))
    except JudgeFailed:  # the idle process was killed
        close()
        events = list(_judge(config).execute(part))
    traces = tuple(event.trace for event in events if isinstance(event, Evaluated))
    return RunResult(traces, tuple(event.skip for event in events if isinstance(event, Skipped)))


def _judge(config: BenchmarkConfig) -> JudgeProcess:
    kept = _judges.get(config.device)
    if kept is not None and kept[0] == config:
        return kept[1]
    if kept is not None:
        _judges.pop(config.device)[1].close()
    judge = JudgeProcess(config, None, {})
    _judges[config.device] = (config, judge)
    return judge


@atexit.register
def close() -> None:
    """Terminate the judge processes of `evaluate`."""
    while _judges:
        _judges.popitem()[1][1].close()
