"""Validation of the records of JSON Lines files: their references, values and places."""

from __future__ import annotations

import math
from collections.abc import Callable

import attrs

from . import _layout
from ._blob_checks import BlobChecks
from ._layout import DataFile
from ._reader import TraceReader
from ._report import Findings
from ._workload_checks import WorkloadChecks
from .definition import Definition
from .errors import UnknownName
from .trace import Performance, Trace
from .workload import Workload


@attrs.frozen
class KnownSolution:
    """The fields of a solution that traces refer to."""

    name: str
    definition: str
    author: str


@attrs.define
class Known:
    """Records of a data set by name; None where the record is bad."""

    definitions: dict[str, Definition | None] = attrs.field(factory=dict)
    definition_files: dict[str, str] = attrs.field(factory=dict)
    solutions: dict[str, KnownSolution | None] = attrs.field(factory=dict)
    solution_files: dict[str, str] = attrs.field(factory=dict)
    workloads: dict[tuple[str, str], Workload] = attrs.field(factory=dict)
    """By the names of their definitions and their uuids."""
    workload_places: dict[tuple[str, str], str] = attrs.field(factory=dict)


class LineChecks:
    """Checks files of workloads and of traces, workloads first."""

    def __init__(self, known: Known, findings: Findings, blobs: BlobChecks) -> None:
        self._known = known
        self._findings = findings
        self._blobs = blobs
        self._reader = TraceReader(checks_keys=True)
        self._of_traces: dict[tuple[str, str], Workload] = {}

    def check(self, file: DataFile) -> None:
        """Report everything that is wrong with a file and its records."""
        checks = _FileChecks(file, self._known, self._findings, self._blobs, self._of_traces)
        for number, trace in self._reader.read(file, self._findings):
            checks.check(trace, f"{file.name}:{number}")
        checks.finish()


@attrs.define
class _FileChecks:
    """Checks of the records of one file; a problem that many lines share is reported once."""

    file: DataFile
    known: Known
    findings: Findings
    blobs: BlobChecks
    of_traces: dict[tuple[str, str], Workload]
    """Workloads of traces that are in no workload file."""
    _once: dict[tuple[str, str], tuple[str, int]] = attrs.field(factory=dict)
    """Per kind of problem and name: the first line and how many there are."""

    def check(self, trace: Trace, place: str) -> None:
        """Report what is wrong with one record."""
        if trace.definition != self.file.stem:
            self._count("stem", trace.definition, place)
        if trace.definition not in self.known.definitions:
            self._count("definition", trace.definition, place)
        if trace.evaluation is None:
            self._check_workload_record(trace, place)
        else:
            self._check_trace(trace, place)

    def finish(self) -> None:
        """Report the problems that many lines share."""
        for (kind, name), (place, count) in self._once.items():
            more = f" (and on {count - 1} more lines)" if count > 1 else ""
            _RECURRING[kind](self, name, place, more)

    def _check_workload_record(self, trace: Trace, place: str) -> None:
        self.findings.counts["workloads"] += 1
        if not self.file.name.startswith((f"{_layout.WORKLOADS}/", _layout.LEGACY_WORKLOADS)):
            self._count("misplaced-workload", "", place)
        elif not self.file.name.startswith(f"{_layout.WORKLOADS}/"):
            self._count("legacy-place", "", place)
        key = trace.definition, trace.workload.uuid
        if key in self.known.workloads:
            message = f"the uuid {key[1]!r} is that of {self.known.workload_places[key]} too; give one of them another"
            self.findings.error(place, message, "duplicate-workload", "$.workload.uuid")
            return
        self.known.workloads[key] = trace.workload
        self.known.workload_places[key] = place
        self._check_workload(trace, place)

    def _check_trace(self, trace: Trace, place: str) -> None:
        self.findings.counts["traces"] += 1
        if self.file.name.startswith(f"{_layout.WORKLOADS}/"):
            self._count("misplaced-trace", "", place)
        if trace.solution not in self.known.solutions:
            self._count("solution", str(trace.solution), place)
        elif (solution := self.known.solutions[str(trace.solution)]) and solution.definition != trace.definition:
            message = f"solution {solution.name!r} is for {solution.definition!r}, not for {trace.definition!r}"
            self.findings.error(place, message, "solution-contradicts", "$.solution")
        if trace.evaluation and trace.evaluation.performance:
            self._check_performance(trace.evaluation.performance, place)
        self._check_workload_of(trace, place)
        self._check_folders(trace, place)

    def _check_workload_of(self, trace: Trace, place: str) -> None:
        """Compare a trace's workload with the workload of that uuid, or check it where there is none."""
        key = trace.definition, trace.workload.uuid
        known = self.known.workloads.get(key)
        if known is None:
            self._count("unknown-workload", "", place)
            if self.of_traces.get(key) == trace.workload:
                return
            self.of_traces[key] = trace.workload
            self._check_workload(trace, place)
        elif known != trace.workload:
            self._count("other-workload", self.known.workload_places[key], place)
            self._check_workload(trace, place)

    def _check_workload(self, trace: Trace, place: str) -> None:
        if definition := self.known.definitions.get(trace.definition):
            WorkloadChecks(definition, trace.workload, place, self.findings, self.blobs).run()

    def _check_performance(self, performance: Performance, place: str) -> None:
        for field in ("latency_ms", "reference_latency_ms", "speedup_factor"):
            value = getattr(performance, field)
            if not 0 < value < math.inf:
                message = f"is {value}, which no measurement gives; the trace counts in no ranking: remove or repeat it"
                self.findings.warning(place, message, "performance", f"$.evaluation.performance.{field}")

    def _check_folders(self, trace: Trace, place: str) -> None:
        """Compare ``traces/<author>/<op_type>/`` with the record."""
        if len(self.file.parts) != 4 or self.file.parts[0] != _layout.TRACES:
            return
        solution = self.known.solutions.get(str(trace.solution))
        if solution and solution.author != self.file.parts[1]:
            self._count("author", solution.author, place)
        definition = self.known.definitions.get(trace.definition)
        if definition and definition.op_type != self.file.parts[2]:
            self._count("op_type", definition.op_type, place)

    def _count(self, kind: str, name: str, place: str) -> None:
        first, count = self._once.get((kind, name), (place, 0))
        self._once[kind, name] = first, count + 1


def _stem(checks: _FileChecks, name: str, place: str, more: str) -> None:
    if checks.file.stem in checks.known.definitions:
        message = f"is of {name!r}, and its file is named for {checks.file.stem!r}; move it to a file of its own{more}"
        checks.findings.error(place, message, "path-contradicts", "$.definition")
    elif name in checks.known.definitions:
        message = f"the file is named for no definition, so every reader reads it: call it {name}.jsonl{more}"
        checks.findings.warning(place, message, "unusual-path")


def _unknown_definition(checks: _FileChecks, name: str, place: str, more: str) -> None:
    unknown = UnknownName("definition", name, tuple(checks.known.definitions))
    checks.findings.error(place, f"{unknown}{more}", "unknown-definition", "$.definition")


def _unknown_solution(checks: _FileChecks, name: str, place: str, more: str) -> None:
    unknown = UnknownName("solution", name, tuple(checks.known.solutions))
    checks.findings.error(place, f"{unknown}{more}", "unknown-solution", "$.solution")


def _unknown_workload(checks: _FileChecks, _: str, place: str, more: str) -> None:
    message = f"no workload file has a workload of this uuid{more}"
    checks.findings.warning(place, message, "unknown-workload", "$.workload.uuid")


def _other_workload(checks: _FileChecks, name: str, place: str, more: str) -> None:
    message = f"has the uuid of {name} and differs from it; give it another uuid{more}"
    checks.findings.warning(place, message, "other-workload", "$.workload")


def _misplaced(where: str) -> Callable[[_FileChecks, str, str, str], None]:
    def report(checks: _FileChecks, _: str, place: str, more: str) -> None:
        checks.findings.error(place, f"{where}{more}", "path-contradicts")

    return report


def _legacy_place(checks: _FileChecks, _: str, place: str, more: str) -> None:
    message = f"workloads below traces/ have a legacy layout{more}; rewrite the set with 'fib-bench migrate'"
    checks.findings.warning(place, message, "legacy-schema")


def _folder(word: str) -> Callable[[_FileChecks, str, str, str], None]:
    def report(checks: _FileChecks, name: str, place: str, more: str) -> None:
        found = checks.file.parts[1 if word.endswith("author") else 2]
        message = f"its path says {found!r}, and the {word} is {name!r}; move it{more}"
        checks.findings.error(place, message, "path-contradicts")

    return report


_RECURRING: dict[str, Callable[[_FileChecks, str, str, str], None]] = {
    "stem": _stem,
    "definition": _unknown_definition,
    "solution": _unknown_solution,
    "unknown-workload": _unknown_workload,
    "other-workload": _other_workload,
    "misplaced-workload": _misplaced("is a workload (it has no evaluation); move it below workloads/"),
    "misplaced-trace": _misplaced("is a trace (it has an evaluation); move it below traces/"),
    "legacy-place": _legacy_place,
    "author": _folder("solution's author"),
    "op_type": _folder("definition's op_type"),
}
