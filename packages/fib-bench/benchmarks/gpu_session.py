"""Sessions of the GPU benchmarks. Judges that evaluate solutions until a time budget is spent."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import attrs
from fib_bench import BenchmarkConfig
from fib_bench.events import Evaluated, PhaseTimes, Skipped
from fib_bench.execution.scheduler import Scheduler, make_scheduler
from fib_bench.plan import DefinitionPlan, Skip
from fib_compile.device import hardware_from_device
from fib_schema import BuildSpec, Definition, Solution, SourceFile, Trace, TraceSet, Workload
from gpu_report import Budget, Report, ends_of, evidence_of, status_of

sys.path.append(str(Path(__file__).parents[3] / "tests-integration" / "support"))
from solution_table import capturable_entry, entry_of, solution_table

RMSNORM, GEMM = r"(fused_add_)?rmsnorm_h\d+", r"gemm_.*"
PLAIN_RMSNORM = r"rmsnorm_h\d+"
_GRACE_SECONDS = 5.0  # for the evaluations that run when a budget is spent
_PROGRESS_SECONDS = 20.0
T = TypeVar("T")


class Terminated(Exception):
    """The process was asked to end: what is measured is reported."""


class Session:
    """Evaluations on one device, several in flight, until a budget is spent.

    Args:
        config: Settings of all evaluations.
        root: The data set's folder, for blobs.
        budget: When it is spent, no further evaluation starts; those that run are ended 5 s later.
    """

    def __init__(self, config: BenchmarkConfig, root: Path | None, budget: Budget) -> None:
        self._config, self._root = config, root
        self.budget = budget
        self.traces: list[Trace] = []
        self.skipped: list[Skip] = []
        self.seconds: Counter[str] = Counter()

    def run(self, plans: Sequence[DefinitionPlan]) -> list[Trace]:
        """Run plans on judges that start now; returns the traces of the evaluations that ended in time."""
        found: list[Trace] = []
        if self.budget.is_spent:
            return found
        wanted, told = sum(plan.count for plan in plans), time.monotonic()
        try:
            with make_scheduler(self._config, self._root, {}) as scheduler, _ended_with(self.budget, scheduler):
                for event in scheduler.execute(plans):
                    match event:
                        case Evaluated(trace=trace):
                            found.append(trace)
                            _tell(trace)
                        case Skipped(skip=skip):
                            self.skipped.append(skip)
                        case PhaseTimes(seconds=seconds):
                            self.seconds.update({str(phase): taken for phase, taken in seconds.items()})
                    if time.monotonic() > told + _PROGRESS_SECONDS:
                        told = time.monotonic()
                        print(f"  {self.budget.used:.0f} s: {len(found)} of {wanted}", flush=True)
        except Terminated:
            print("  stopped by a signal", flush=True)
            self.budget = attrs.evolve(self.budget, seconds=0.0)
        self.traces += found
        return found


@contextmanager
def _ended_with(budget: Budget, scheduler: Scheduler) -> Iterator[None]:
    """Stop a scheduler when the budget is spent, and close it a little later."""
    timers = [
        threading.Timer(budget.left, scheduler.stop),
        threading.Timer(budget.left + _GRACE_SECONDS, scheduler.close),
    ]
    for timer in timers:
        timer.daemon = True
        timer.start()
    try:
        yield
    finally:
        for timer in timers:
            timer.cancel()


def plan_of(definition: Definition, solutions: Sequence[Solution], workloads: Sequence[Workload]) -> DefinitionPlan:
    """The plan for solutions of a definition, each on all of some workloads."""
    return DefinitionPlan(definition, tuple(workloads), {w.uuid: tuple(solutions) for w in workloads})


def _tell(trace: Trace) -> None:
    if not trace.is_successful():
        print(f"  {trace.solution} {dict(trace.workload.axes)}: {status_of(trace)}: {evidence_of(trace)}", flush=True)


@attrs.frozen(kw_only=True)
class Bench:
    """Device, data set, budget and report of a section."""

    data_set: TraceSet
    out: Path
    device: str
    budget_seconds: float
    evaluations: int
    """Largest number of evaluations that `honest` makes."""
    concurrency: int | None = None
    """Evaluations in flight; None depends on the cores."""
    words: Sequence[str] = ()
    """Words that choose cases of `exploits`; all without any."""
    solutions: Path = Path("solutions")
    """Folder with the solutions of `real`."""
    traces: list[Trace] = attrs.field(factory=list)
    """All that the sections of this run have evaluated."""
    report: Report = attrs.field(default=attrs.Factory(lambda self: Report(self.out), takes_self=True))
    """Of the section that runs."""

    @property
    def is_cuda(self) -> bool:
        """Whether the device is a CUDA device."""
        return self.device.startswith("cuda")

    def session(self, budget: Budget, **settings: Any) -> Session:
        """A session on the device; what the data set lacks is synthesized."""
        fixed = {"timeout_seconds": 60.0, "concurrency": self.concurrency, **settings}
        config = BenchmarkConfig(device=self.device, synthesize_missing=True, **fixed)
        return Session(config.for_data_set(self.data_set), self.data_set.root, budget)

    def note(self, session: Session) -> None:
        """State the phases of a session and what it skipped."""
        self.traces.extend(session.traces)
        seconds = self.report.numbers.setdefault("phases", Counter())
        seconds.update({phase: round(taken, 2) for phase, taken in session.seconds.items()})
        for skip in session.skipped[:40]:
            self.report.say(f"- not run: {ends_of(str(skip))}")

    def collect(self, pattern: str) -> dict[str, tuple[Definition, list[Workload]]]:
        """The definitions whose names match and that have recorded workloads, with these."""
        found = {}
        for name, definition in self.data_set.definitions.items():
            workloads = [trace.workload for trace in self.data_set.workloads.get(name, [])]
            if re.fullmatch(pattern, name) and workloads:
                found[name] = (definition, workloads)
        return found

    def solution(self, name: str, definition: Definition, file: str, source: str, *, returns: bool) -> Solution:
        """A solution of one file for this device; the language goes by the file's name."""
        language = "cuda" if file.endswith(".cu") else "triton" if "triton" in file else "python"
        hardware = (hardware_from_device(self.device),)
        spec = BuildSpec(language, hardware, f"{file}::run", destination_passing_style=not returns)
        return Solution(name, definition.name, "fib", spec, (SourceFile(file, source),))

    def reference(self, definition: Definition) -> Solution:
        """The definition's own code as a solution."""
        return self.solution(f"same_{definition.name}", definition, "reference.py", definition.reference, returns=True)

    def from_file(self, file: str, definition: Definition) -> Solution:
        """One of the solutions of the integration tests."""
        return entry_of(file).solution(definition, hardware_from_device(self.device))

    def files_of(self, family: str) -> tuple[str, ...]:
        """The solutions of all definitions of a family that run on the device, such as ``rmsnorm`` or ``gemm``."""
        kind = "cuda" if self.is_cuda else "cpu"
        entries = [entry for entry in solution_table() if entry.definitions == f"{family}_.*"]
        return tuple(entry.file for entry in entries if kind in entry.devices and entry.language != "cpp")

    def capturable(self, definition: Definition) -> Solution:
        """An honest solution that a CUDA graph can capture; the definition's own code where there is none."""
        entry = capturable_entry(definition.name)
        if entry is None or not self.is_cuda:
            return self.reference(definition)
        return entry.solution(definition, hardware_from_device(self.device))


def spread(items: Iterable[T], size: Callable[[T], float]) -> list[T]:
    """Order items so that each prefix is spread over their sizes."""
    ordered = sorted(items, key=size)
    if len(ordered) < 3:
        return ordered
    last = ordered.pop()
    width = max((len(ordered) - 1).bit_length(), 1)
    places = sorted(range(len(ordered)), key=lambda index: int(f"{index:0{width}b}"[::-1], 2))
    first, *others = (ordered[index] for index in places)
    return [first, last, *others]


def volume(workload: Workload) -> float:
    """A measure of a workload's size: the product of its axes."""
    product = 1.0
    for axis in workload.axes.values():
        product *= max(axis, 1)
    return product
