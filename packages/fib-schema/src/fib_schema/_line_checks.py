"""Validation of JSON Lines files: each line's text, record, references and place."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import attrs

from . import _layout
from ._blob_checks import BlobChecks
from ._fast_traces import NotOrdinary, trace_parser
from ._older import older_notices
from ._raw import lines, parse_line, report_repeated_keys
from ._report import Findings
from ._scan import Found
from ._structured import Known, structured
from ._workload_checks import WorkloadChecks
from .errors import UnknownName
from .trace import Performance, Trace
from .workload import Workload


class LineChecks:
    """Checks files of workloads and of traces, workloads first."""

    def __init__(self, known: Known, findings: Findings, blobs: BlobChecks) -> None:
        self._known = known
        self._findings = findings
        self._blobs = blobs
        self._parse_ordinary = trace_parser()
        self._of_traces: dict[tuple[str, str], Workload] = {}

    def check(self, file: Found) -> None:
        """Report everything that is wrong with a file and its records."""
        checks = _FileChecks(file, self._known, self._findings, self._blobs, self._of_traces)
        for number, line in lines(file, self._findings):
            place = f"{file.name}:{number}"
            trace = self._parse(line, place, checks.changes)
            if trace is not None:
                checks.check(trace, place)
        checks.finish()

    def _parse(self, line: bytes, place: str, changes: Counter[str]) -> Trace | None:
        try:
            trace = self._parse_ordinary(line)
        except NotOrdinary:
            plain = parse_line(line, "record", place, self._findings)
            if plain is None:
                return None
            made = structured(plain, Trace, place, self._findings)
            changes.update(made.changes)
            return made.record
        report_repeated_keys(line, place, self._findings)
        return trace


@attrs.define
class _FileChecks:
    """Checks of the records of one file; what recurs on many lines is reported once."""

    file: Found
    known: Known
    findings: Findings
    blobs: BlobChecks
    of_traces: dict[tuple[str, str], Workload]
    """Workloads that only traces have."""
    changes: Counter[str] = attrs.field(factory=Counter)
    """What made older records current."""
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
        """Report what recurs."""
        for (kind, name), (place, count) in self._once.items():
            more = f" (and on {count - 1} more lines)" if count > 1 else ""
            _RECURRING[kind](self, name, place, more)
        for notice in older_notices(self.file.name, self.changes):
            self.findings.add(notice)

    def _check_workload_record(self, trace: Trace, place: str) -> None:
        self.findings.counts["workloads"] += 1
        if not self.file.name.startswith((f"{_layout.WORKLOADS}/", _layout.OLDER_WORKLOADS)):
            self._count("misplaced-workload", "", place)
        elif not self.file.name.startswith(f"{_layout.WORKLOADS}/"):
            self._count("older-place", "", place)
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
                self.findings.notice(place, message, "performance", f"$.evaluation.performance.{field}")

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
        checks.findings.notice(place, message, "unusual-path")


def _unknown_definition(checks: _FileChecks, name: str, place: str, more: str) -> None:
    unknown = UnknownName("definition", name, tuple(checks.known.definitions))
    checks.findings.error(place, f"{unknown}{more}", "unknown-definition", "$.definition")


def _unknown_solution(checks: _FileChecks, name: str, place: str, more: str) -> None:
    unknown = UnknownName("solution", name, tuple(checks.known.solutions))
    checks.findings.error(place, f"{unknown}{more}", "unknown-solution", "$.solution")


def _unknown_workload(checks: _FileChecks, _: str, place: str, more: str) -> None:
    message = f"no workload file has a workload of this uuid{more}"
    checks.findings.notice(place, message, "unknown-workload", "$.workload.uuid")


def _other_workload(checks: _FileChecks, name: str, place: str, more: str) -> None:
    message = f"has the uuid of {name} and differs from it; give it another uuid{more}"
    checks.findings.notice(place, message, "other-workload", "$.workload")


def _misplaced(where: str) -> Callable[[_FileChecks, str, str, str], None]:
    def report(checks: _FileChecks, _: str, place: str, more: str) -> None:
        checks.findings.error(place, f"{where}{more}", "path-contradicts")

    return report


def _older_place(checks: _FileChecks, _: str, place: str, more: str) -> None:
    message = f"workloads below traces/ are of an older layout{more}; rewrite the set with 'fib-bench migrate'"
    checks.findings.notice(place, message, "older-schema")


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
    "older-place": _older_place,
    "author": _folder("solution's author"),
    "op_type": _folder("definition's op_type"),
}
