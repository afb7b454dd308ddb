"""Self-test run. Evaluates the cases in a benchmark and compares the verdicts with the expected ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
from fib_schema import Evaluation, Trace, TraceSet
from fib_schema.trace_facts import Timing, timing_of

from ..benchmark import Benchmark
from ..config.model import BenchmarkConfig
from ..events import Observer
from ..report import error_line
from ..temporary_folders import TemporaryFolder
from .cases import ROW_NAMES, Case, Gain, with_twins
from .definitions import OPS

_INPUT_FLAGS = ("fixed_inputs", "insensitive", "constant")
"""Prefixes of flags that concern the inputs and not the solution."""
SETTINGS: Mapping[str, Any] = {"warmup_runs": 5, "iterations": 96, "cpu_processes": 1, "measure_seconds": 0.25}
"""Fewer calls than by default; verdicts do not depend on them."""
NOT_RUN = "NOT_RUN"


@attrs.frozen
class Outcome:
    """The verdict about one case."""

    case: Case
    status: str
    flags: tuple[str, ...]
    """Flags of the solution; those of the inputs are left out."""
    evidence: str
    """First line of the log, or the reason for which it did not run."""
    isolation: Mapping[str, Any] | None = None
    timing: Timing | None = None
    gain: Gain | None = None

    @classmethod
    def of(cls, case: Case, evaluation: Evaluation) -> Outcome:
        """The outcome of an evaluation; not yet compared with a twin."""
        extra: Mapping[str, Any] = evaluation.extra or {}
        flags = tuple(flag for flag in extra.get("flags", ()) if not flag.startswith(_INPUT_FLAGS))
        evidence = "" if evaluation.status == "PASSED" else error_line(evaluation)
        timing = None if evaluation.performance is None else timing_of(evaluation.performance)
        return cls(case, str(evaluation.status), flags, evidence, extra.get("isolation"), timing)

    @property
    def holds(self) -> bool:
        """Whether the verdict is an expected one."""
        return self.case.holds(self.status, self.flags, self.gain)

    @property
    def found(self) -> str:
        """Status and flags in words."""
        return ", ".join((self.status, *self.flags))

    def to_plain(self) -> dict[str, Any]:
        """The outcome as plain values."""
        case, timing = self.case, self.timing
        names = ("suite", "row", "title", "definition", "language", "twin", "no_gain")
        about: dict[str, Any] = {name: getattr(case, name) for name in names}
        about |= {"name": case.file, "expected": sorted(case.expect), "row_title": ROW_NAMES.get(case.row or 0)}
        return {
            **about,
            "status": self.status,
            "flags": list(self.flags),
            "evidence": self.evidence,
            "latency_ms": None if timing is None else timing.latency_ms,
            "method": None if timing is None else timing.method,
            "gain": None if self.gain is None else round(self.gain.factor, 4),
            "holds": self.holds,
        }

    def compared_with(self, twin: Outcome | None) -> Outcome:
        """The outcome with the gain over its twin, if both passed; otherwise with the reason as evidence."""
        if self.timing is None or twin is None:
            return self
        if twin.timing is None or not twin.holds:
            return attrs.evolve(self, evidence=f"no latency to compare with: twin {twin.case.file} is {twin.found}")
        gain = Gain.between(self.timing, twin.timing)
        return attrs.evolve(self, gain=gain, evidence=f"gain {gain} over twin {twin.case.file}")


@attrs.frozen
class SelfTest:
    """The outcomes of all suites on one device."""

    device: str
    outcomes: tuple[Outcome, ...]

    @property
    def holds(self) -> bool:
        """Whether all cases ended as expected."""
        return all(outcome.holds for outcome in self.outcomes)

    @property
    def isolation(self) -> Mapping[str, Any] | None:
        """The lowest isolation level of a worker; None if no outcome states one."""
        known = [outcome.isolation for outcome in self.outcomes if outcome.isolation is not None]
        return min(known, key=lambda isolation: int(isolation["level"]), default=None)

    def to_plain(self) -> dict[str, Any]:
        """All outcomes as plain values."""
        return {
            "device": self.device,
            "isolation": None if self.isolation is None else dict(self.isolation),
            "holds": self.holds,
            "cases": [outcome.to_plain() for outcome in self.outcomes],
        }


def run_selftest(cases: Sequence[Case], device: str, observe: Observer = lambda _: None, **settings: Any) -> SelfTest:
    """Run cases on a device, with the twins that their exploits are compared with, and further fields of the settings.

    Cases for other devices and those whose modules are not installed are skipped.
    """
    kind = "cuda" if device.startswith("cuda") else "cpu"
    chosen = with_twins([case for case in cases if kind in case.devices and case.is_possible])
    config = BenchmarkConfig(device=device, **{**SETTINGS, **settings})
    limits = sorted({case.limit_seconds or math.inf for case in chosen}, reverse=True)
    found: dict[str, Outcome] = {}
    with TemporaryFolder() as folder:
        trace_set = _write(folder.path, chosen, kind)
        for limit in limits:
            some = [case for case in chosen if (case.limit_seconds or math.inf) == limit]
            limited = config.with_fields(timeout_seconds=min(limit, config.timeout_seconds))
            found |= _run(trace_set, some, limited, observe)
    outcomes = (found[case.name].compared_with(found.get(case.twin_name or "")) for case in chosen)
    return SelfTest(config.device, tuple(outcomes))


def _write(root: Path, cases: Iterable[Case], kind: str) -> TraceSet:
    trace_set = TraceSet.from_path(root)
    names = list(dict.fromkeys(case.definition for case in cases))
    trace_set.add_definitions([OPS[name].definition(name) for name in names])
    for name in names:
        if OPS[name].recorded:
            OPS[name].record(name, kind, root)
    trace_set.add_traces([Trace(name, OPS[name].workload(name, kind)) for name in names])
    trace_set.add_solutions([case.solution() for case in cases])
    return trace_set


def _run(trace_set: TraceSet, cases: Sequence[Case], config: BenchmarkConfig, observe: Observer) -> dict[str, Outcome]:
    with Benchmark(trace_set, config.with_fields(solutions=tuple(case.name for case in cases))) as benchmark:
        result = benchmark.run(dump_traces=False, observe=observe)
    evaluations = {trace.solution: trace.evaluation for trace in result.traces if trace.evaluation is not None}
    outcomes = {case.name: Outcome.of(case, evaluations[case.name]) for case in cases if case.name in evaluations}
    for case in cases:
        if case.name not in outcomes:
            reasons = [skip.reason for skip in result.skipped if skip.solution in {None, case.name}]
            why = next(iter(reasons), "the plan does not contain it").partition("\n")[0]
            outcomes[case.name] = Outcome(case, NOT_RUN, (), why)
    return outcomes
