"""Self-test run. Evaluates the cases in a benchmark and compares the verdicts with the expected ones."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
from fib_schema import Evaluation, Trace, TraceSet

from ..benchmark import Benchmark
from ..config.model import BenchmarkConfig
from ..events import Evaluated, Event, Observer, Skipped
from ..report import error_line
from .cases import HONEST, Case
from .definitions import OPS

_ABOUT_INPUTS = ("fixed_inputs", "insensitive")
"""Prefixes of flags that concern the inputs and not the solution."""
_QUICK_SECONDS = 4.0
SETTINGS: Mapping[str, Any] = {"warmup_runs": 5, "iterations": 20, "measure_seconds": 0.25}
"""In place of the defaults: what comes out does not depend on them."""
NOT_RUN = "NOT_RUN"


@attrs.frozen
class Outcome:
    """The verdict about one case."""

    case: Case
    status: str
    flags: tuple[str, ...]
    """Those about the solution."""
    evidence: str
    """The first line of the log, or why it did not run."""
    seconds: float
    isolation: Mapping[str, Any] | None = None

    @property
    def holds(self) -> bool:
        """Whether it is an expected one."""
        return self.case.holds(self.status, self.flags)

    @property
    def found(self) -> str:
        """Status and flags in words."""
        return ", ".join((self.status, *self.flags))

    def to_plain(self) -> dict[str, Any]:
        """The outcome for programs."""
        case = self.case
        about: dict[str, Any] = {"suite": case.suite, "row": case.row, "name": case.file, "title": case.title}
        about |= {"definition": case.definition, "language": case.language, "expected": sorted(case.expect)}
        found = {"status": self.status, "flags": list(self.flags), "evidence": self.evidence}
        return {**about, **found, "seconds": round(self.seconds, 3), "holds": self.holds}


@attrs.frozen
class SelfTest:
    """The outcomes of both suites on one device."""

    device: str
    outcomes: tuple[Outcome, ...]

    @property
    def holds(self) -> bool:
        """Whether all exploits and all honest solutions ended as expected."""
        return all(outcome.holds for outcome in self.outcomes)

    @property
    def adversaries(self) -> tuple[Outcome, ...]:
        """The outcomes of the exploits."""
        return tuple(o for o in self.outcomes if o.case.suite != HONEST)

    @property
    def honest(self) -> tuple[Outcome, ...]:
        """The outcomes of the honest solutions."""
        return tuple(o for o in self.outcomes if o.case.suite == HONEST)

    @property
    def isolation(self) -> Mapping[str, Any] | None:
        """The lowest level that a worker had; None if none said so."""
        told = [outcome.isolation for outcome in self.outcomes if outcome.isolation is not None]
        return min(told, key=lambda isolation: int(isolation["level"]), default=None)

    def to_plain(self) -> dict[str, Any]:
        """Everything for programs."""
        return {
            "device": self.device,
            "isolation": None if self.isolation is None else dict(self.isolation),
            "holds": self.holds,
            "cases": [outcome.to_plain() for outcome in self.outcomes],
        }


def run_selftest(cases: Sequence[Case], device: str, observe: Observer = lambda _: None, **settings: Any) -> SelfTest:
    """Run cases on a device.

    Args:
        cases: Which; those that are for other devices, or need what is not installed, are left out.
        device: ``cpu`` or ``cuda:N``.
        observe: Called with each event.
        settings: Fields of `BenchmarkConfig`.

    Raises:
        UnsupportedDevice: There is no such device here.
    """
    kind = "cuda" if device.startswith("cuda") else "cpu"
    chosen = [case for case in cases if kind in case.devices and case.is_possible]
    config = BenchmarkConfig(device=device, **{**SETTINGS, **settings})
    quick = attrs.evolve(config, timeout_seconds=min(_QUICK_SECONDS, config.timeout_seconds))
    found: dict[str, Outcome] = {}
    with tempfile.TemporaryDirectory(prefix="fib-selftest-") as folder:
        trace_set = _write(Path(folder), chosen, kind)
        for group, settled in ((False, config), (True, quick)):
            some = [case for case in chosen if case.is_quick is group]
            found |= _run(trace_set, some, settled, observe) if some else {}
    return SelfTest(device, tuple(found[case.name] for case in chosen))


def _write(root: Path, cases: Iterable[Case], kind: str) -> TraceSet:
    """Make the data set: definitions, one workload each, solutions."""
    trace_set = TraceSet.from_path(root)
    names = list(dict.fromkeys(case.definition for case in cases))
    trace_set.add_definitions([OPS[name].definition(name) for name in names])
    trace_set.add_traces([Trace(name, OPS[name].workload(name, kind)) for name in names])
    trace_set.add_solutions([case.solution() for case in cases])
    return trace_set


def _run(trace_set: TraceSet, cases: Sequence[Case], config: BenchmarkConfig, observe: Observer) -> dict[str, Outcome]:
    collector = _Collector({case.name: case for case in cases}, observe)
    with Benchmark(trace_set, attrs.evolve(config, solutions=tuple(case.name for case in cases))) as benchmark:
        result = benchmark.run(dump_traces=False, observe=collector)
    outcomes = collector.outcomes
    for case in cases:
        if case.name not in outcomes:
            reasons = [skip.reason for skip in result.skipped if skip.solution in {None, case.name}]
            why = next(iter(reasons), "it was not planned").partition("\n")[0]
            outcomes[case.name] = Outcome(case, NOT_RUN, (), why, 0.0)
    return outcomes


class _Collector:
    """Makes outcomes of a run's events."""

    def __init__(self, cases: Mapping[str, Case], observe: Observer) -> None:
        self._cases = cases
        self._observe = observe
        self._since = time.monotonic()
        self.outcomes: dict[str, Outcome] = {}

    def __call__(self, event: Event) -> None:
        self._observe(event)
        now = time.monotonic()
        if isinstance(event, Evaluated) and (trace := event.trace).evaluation is not None:
            case = self._cases[str(trace.solution)]
            self.outcomes[case.name] = _outcome(case, trace.evaluation, now - self._since)
        if isinstance(event, Evaluated | Skipped) or getattr(event, "solution", "") is None:
            self._since = now


def _outcome(case: Case, evaluation: Evaluation, seconds: float) -> Outcome:
    extra: Mapping[str, Any] = evaluation.extra or {}
    flags = tuple(flag for flag in extra.get("flags", ()) if not flag.startswith(_ABOUT_INPUTS))
    evidence = "" if evaluation.status == "PASSED" else error_line(evaluation)
    return Outcome(case, str(evaluation.status), flags, evidence, seconds, extra.get("isolation"))
