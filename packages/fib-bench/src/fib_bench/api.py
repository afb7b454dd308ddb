"""One quick answer, for a notebook or a program that tries out solutions: no data set, nothing recorded.

The judge's process stays, so that only the first answer waits for it.
"""

from __future__ import annotations

import atexit
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from fib_schema import Definition, Solution, Workload

from .benchmark import RunResult
from .config.model import BenchmarkConfig
from .errors import JudgeFailed
from .events import Evaluated, Skipped
from .execution.judge_process import JudgeProcess
from .plan import DefinitionPlan

_QUICK_SECONDS = 0.2
_judges: dict[str, tuple[BenchmarkConfig, JudgeProcess]] = {}
_keeper = ThreadPoolExecutor(1, "fib-bench")  # the system ends a judge with the thread that has started it


def evaluate(
    definition: Definition, solution: Solution, workloads: Sequence[Workload], config: BenchmarkConfig | None = None
) -> RunResult:
    """Evaluate one solution, with all checks.

    Calls from several threads wait for each other. The process is started again where a call has
    another configuration for the same device.

    Args:
        definition: What the solution computes.
        solution: In any language that has a builder here.
        workloads: On what; each has a uuid of its own.
        config: How; the default measures for at most 0.2 s, on the CPU. It is always one judge in a process of its
            own: `devices`, `executor` and `in_process_trusted` are for runs, and change nothing here.

    Returns:
        A trace for each workload, and those that could not run, with the reasons.

    Raises:
        UnsupportedDevice: There is no such device here.
        JudgeFailed: The judge's process does not run.
    """
    config = config or BenchmarkConfig(measure_seconds=_QUICK_SECONDS)
    part = DefinitionPlan(definition, tuple(workloads), {w.uuid: (solution,) for w in workloads})
    return _keeper.submit(_run, config, part).result()


def _run(config: BenchmarkConfig, part: DefinitionPlan) -> RunResult:
    try:
        events = list(_judge(config).execute(part))
    except JudgeFailed:  # it was killed while it was idle
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
    """End the processes that `evaluate` has left running."""
    while _judges:
        _judges.popitem()[1][1].close()
