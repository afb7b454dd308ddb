"""Evaluation without a plan: `evaluate` for notebooks and programs. Services start a `JudgeProcess`. Nothing is kept.

The judge process stays alive between calls, so only the first call waits for its start.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor, wait
from pathlib import Path

import attrs
from fib_schema import Definition, Solution, Workload

from .benchmark import RunResult
from .caches import CacheOwner, remove_caches
from .config.model import BenchmarkConfig
from .errors import JudgeFailed
from .events import Evaluated, Event, Observer, Skipped
from .execution.judge_process import JudgeProcess

_QUICK_SECONDS = 0.2
_POLL_SECONDS = 0.05
"""The time between two looks at the event that cancels; a result is returned at once."""
_Job = tuple[BenchmarkConfig, Path | None, dict[str, Solution]]
"""The settings of a judge process; other ones need another process."""
_Work = tuple[Definition, Solution, Sequence[Workload]]
_judges: dict[str, tuple[_Job, JudgeProcess]] = {}
_judge_thread = ThreadPoolExecutor(1, "fib-bench")  # a judge process is killed when the thread that started it ends


def evaluate(
    definition: Definition,
    solution: Solution,
    workloads: Sequence[Workload],
    config: BenchmarkConfig | None = None,
    *,
    root: Path | None = None,
    baseline: Solution | None = None,
    observe: Observer = lambda _: None,
    cancelled: threading.Event | None = None,
) -> RunResult:
    """Evaluate one solution, with all checks.

    Calls from several threads are serialised. The process is restarted if a call has another configuration, data set
    or baseline for the same device.

    Args:
        definition: The definition that the solution implements.
        solution: In any language that has a builder here.
        workloads: The workloads; their uuids differ.
        config: Settings; the default measures for at most 0.2 s, on the CPU. `devices` and `executor`
            have no effect: there is always one judge process.
        root: The folder of a data set, for workloads whose inputs are in its blobs. Solutions cannot read it.
        baseline: A solution of the same definition that is timed interleaved with this one, beside the reference.
        observe: Called with each event, in a thread of this module.
        cancelled: When it is set, the evaluation ends at once; the next one starts a new process.

    Returns:
        A trace for each workload, in their order, and the workloads that could not run, with the reasons.

    Raises:
        UnsupportedDevice: There is no such device here.
        JudgeFailed: The judge process does not start.
        CancelledError: It was cancelled.
    """
    config = config or BenchmarkConfig(measure_seconds=_QUICK_SECONDS)
    if baseline is not None:
        config = config.with_fields(baseline=baseline.name)
    job = config, root, {} if baseline is None else {baseline.definition: baseline}
    work = definition, solution, workloads
    future = _judge_thread.submit(_run, job, work, observe, cancelled or threading.Event())
    while cancelled is not None and not wait([future], _POLL_SECONDS).done:
        if cancelled.is_set() and not future.cancel():
            close()  # it is this evaluation that runs; again and again, because a process may be starting
    events = future.result()
    traces = {event.trace.workload.uuid: event.trace for event in events if isinstance(event, Evaluated)}
    ordered = tuple(traces[workload.uuid] for workload in workloads if workload.uuid in traces)
    return RunResult(ordered, tuple(event.skip for event in events if isinstance(event, Skipped)))


def _run(job: _Job, work: _Work, observe: Observer, cancelled: threading.Event) -> list[Event]:
    try:
        return _events(job, work, observe, cancelled)
    except JudgeFailed:
        if cancelled.is_set():
            raise CancelledError from None
        close()  # the idle process was killed
        return _events(job, work, observe, cancelled)


def _events(job: _Job, work: _Work, observe: Observer, cancelled: threading.Event) -> list[Event]:
    events = []
    try:
        for event in _judge(job).run(*work):
            if cancelled.is_set():
                raise CancelledError
            observe(event)
            events.append(event)
    except BaseException:
        close()  # events that nobody has read would be taken for those of the next call
        raise
    return events


def _judge(job: _Job) -> JudgeProcess:
    device = job[0].device
    kept = _judges.pop(device, None)
    if kept is None or kept[0] != job:
        if kept is not None:
            kept[1].close()
        kept = job, JudgeProcess(*job)
    _judges[device] = kept
    return kept[1]


@atexit.register
def close() -> None:
    """Terminate the judge processes of `evaluate`."""
    while _judges:
        _judges.popitem()[1][1].close()


def remove_build_cache(solution: Solution, cache_key: str) -> None:
    """Remove what a solution has built in evaluations with a cache key, the empty one included; none may be running."""
    remove_caches(CacheOwner.of_solution(solution, cache_key))


@attrs.frozen
class IsolationReport:
    """The isolation that workers get on this machine."""

    level: int
    """0 to 3; 3 is the strongest."""
    text: str
    """A line for each measure."""
    exposed: tuple[Path, ...]
    """The given paths that a worker could open."""


def probe_isolation(device: str, private: Sequence[Path]) -> IsolationReport:
    """Start a worker without a solution, and report its isolation; `JudgeFailed` if it does not start.

    `private` has files and folders that exist and that no worker may open; at least one.
    """
    command = [sys.executable, "-P", "-m", "fib_bench.sandbox.policy", device, *map(os.fspath, private)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode or not done.stdout:
        raise JudgeFailed(f"no worker could be started to try the sandbox: {done.stderr.strip()[-500:]}")
    found = json.loads(done.stdout)
    return IsolationReport(found["level"], found["text"], tuple(map(Path, found["exposed"])))
