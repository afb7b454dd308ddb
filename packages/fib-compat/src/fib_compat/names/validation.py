"""Validation of a data set by definition: the findings of `fib_schema.validate`, baselines, and whether they run."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path, PurePosixPath

import attrs
from fib_bench import Benchmark, BenchmarkConfig
from fib_bench.references import run_references
from fib_compile import BuilderRegistry, BuildError
from fib_compile.device import list_cuda_devices
from fib_schema import (
    FibError,
    InvalidField,
    Problem,
    Solution,
    Trace,
    TraceSet,
    UnknownName,
    get_fib_dataset_path,
    validate,
)
from fib_schema.data_files import list_files, read_traces
from fib_schema.display import counted, escape_line
from fib_schema.files import write_output
from fib_schema.problems import Findings

from .records import Model

ALL_CHECKS = ("layout", "definition", "workload", "solution", "trace", "baseline", "benchmark")
CPU_CHECKS = ALL_CHECKS[:-1]
_LAYOUT_CODES = frozenset({"path-contradicts", "unusual-path", "other-suffix", "link-out", "no-file", "unreadable"})
_FOLDERS = {"definitions": "definition", "solutions": "solution", "workloads": "workload", "traces": "trace"}
_STATUS_OF_LEVEL = {"info": "passed", "warning": "warning", "error": "failed"}
_WORST_FIRST = ("failed", "warning", "passed", "skipped")


@attrs.frozen
class CheckMessage(Model):
    """A finding of a check."""

    level: str = attrs.field(validator=attrs.validators.in_(_STATUS_OF_LEVEL))
    """``info``, ``warning`` or ``error``."""
    message: str


@attrs.frozen
class CheckResult(Model):
    """The findings of one check."""

    status: str = attrs.field(default="passed", validator=attrs.validators.in_(_WORST_FIRST))
    """``passed``, ``warning``, ``failed`` or ``skipped``."""
    messages: tuple[CheckMessage, ...] = ()

    @classmethod
    def of(cls, messages: Sequence[CheckMessage]) -> CheckResult:
        """The result of a check that was run; the worst message decides."""
        statuses = {_STATUS_OF_LEVEL[message.level] for message in messages}
        return cls(_worst(statuses, "passed"), tuple(messages))


@attrs.frozen
class DefinitionReport(Model):
    """The checks of one definition."""

    name: str
    op_type: str
    status: str
    checks: dict[str, CheckResult] = attrs.field(factory=dict)


@attrs.frozen
class ReportConfig(Model):
    """Data set and checks of a report."""

    dataset: str
    checks: tuple[str, ...] = ()


@attrs.frozen
class DatasetReport(Model):
    """The report of a data set."""

    config: ReportConfig
    timestamp: str
    definitions: tuple[DefinitionReport, ...] = ()
    other: CheckResult = attrs.field(factory=CheckResult)
    """Findings in files that belong to no definition."""

    @property
    def status(self) -> str:
        """The worst status of the definitions and other files."""
        return _worst({self.other.status, *(definition.status for definition in self.definitions)}, "passed")


def compute_definition_status(checks: Mapping[str, CheckResult]) -> str:
    """The worst status of checks; ``skipped`` only if all were."""
    return _worst({check.status for check in checks.values()}, "skipped")


def _worst(statuses: set[str], default: str) -> str:
    return next((status for status in _WORST_FIRST if status in statuses), default)


def render_text_report(report: DatasetReport) -> str:
    """The report as text: a line for each definition, its findings below, and counts last."""
    lines = [f"data set {report.config.dataset}, checked {report.timestamp}: {', '.join(report.config.checks)}"]
    lines += [f"  {message.level}: {message.message}" for message in report.other.messages]
    for definition in report.definitions:
        lines.append(f"{definition.status}: {definition.op_type}/{definition.name}")
        for name, check in definition.checks.items():
            if check.status == "skipped":
                lines.append(f"  {name}: skipped")
            lines += [f"  {name}: {message.level}: {message.message}" for message in check.messages]
    counts = [(status, sum(d.status == status for d in report.definitions)) for status in _WORST_FIRST]
    shown = ", ".join(f"{count} {status}" for status, count in counts if count)
    checks = [report.other, *(check for definition in report.definitions for check in definition.checks.values())]
    errors = sum(message.level == "error" for check in checks for message in check.messages)
    lines.append(f"{counted(len(report.definitions), 'definition')}: {shown or 'none'}; {counted(errors, 'error')}")
    return "\n".join(map(escape_line, lines)) + "\n"


def render_report(report_json: str | os.PathLike[str], output: str | os.PathLike[str] | None = None) -> str:
    """The text form of a report that was written as JSON.

    Raises:
        InvalidField: The file is not a report (a ValueError).
        OSError: The file cannot be read, or the text cannot be written.
    """
    try:
        report = DatasetReport.model_validate_json(Path(report_json).read_bytes())
    except ValueError as error:
        raise InvalidField(str(report_json), f"is not a report of 'validate --outputs json': {error}") from error
    text = render_text_report(report)
    if output is not None:
        write_output(output, text.encode("utf-8", "backslashreplace"))
    return text


def validate_dataset(
    dataset: str | os.PathLike[str] | None = None,
    *,
    checks: Iterable[str] = ALL_CHECKS,
    op_types: Sequence[str] | None = None,
    definitions: Sequence[str] | None = None,
    disable_gpu: bool = False,
    device: str | None = None,
) -> DatasetReport:
    """Check a data set; None means ``FIB_DATASET_PATH`` or the default.

    Definitions of some `op_types` and those in `definitions` are checked, or all, without both. With `disable_gpu`, the
    check ``benchmark`` is skipped, and ``baseline`` builds nothing. The device of ``benchmark`` is by default the first
    GPU, without which it is skipped.

    Raises:
        DataSetNotFound: There is no such directory (a FileNotFoundError).
        UnknownName: There is no such check, definition or operation type (a KeyError).
    """
    root = get_fib_dataset_path() if dataset is None else Path(dataset)
    wanted = tuple(checks)
    for check in wanted:
        if check not in ALL_CHECKS:
            raise UnknownName("check", check, ALL_CHECKS)
    gpus = [] if disable_gpu else list_cuda_devices()
    run = _Validation(root, wanted, device or next(iter(gpus), None), builds_baselines=bool(gpus))
    known = _definition_files(root)
    selected = _select(known, op_types, definitions)
    findings, reports = run.findings(known), []
    other = [message for (name, _), messages in findings.items() if not name for message in messages]
    for name in selected:
        found = {check: run.result(check, name, findings.get((name, check), [])) for check in wanted}
        reports.append(DefinitionReport(name, known[name], compute_definition_status(found), found))
    timestamp = datetime.now(UTC).isoformat(timespec="seconds")
    return DatasetReport(ReportConfig(str(root), wanted), timestamp, tuple(reports), CheckResult.of(other))


def _definition_files(root: Path) -> dict[str, str]:
    """The operation type of each definition by file names, because damaged files have no readable names."""
    folder = root / "definitions"
    files = [path.relative_to(folder) for path in folder.rglob("*.json")]
    return {path.stem: path.parts[0] if len(path.parts) > 1 else "" for path in sorted(files)}


def _select(known: Mapping[str, str], op_types: Sequence[str] | None, names: Sequence[str] | None) -> list[str]:
    """The definitions of some types, and some by name; an unknown one is an `UnknownName`."""
    if op_types is None and names is None:
        return list(known)
    for kind, wanted, existing in (("op_type", op_types, set(known.values())), ("definition", names, set(known))):
        for name in wanted or ():
            if name not in existing:
                raise UnknownName(kind, name, tuple(sorted(existing)))
    return [name for name, op_type in known.items() if op_type in (op_types or ()) or name in (names or ())]


@attrs.frozen
class _Validation:
    """The state of one validation."""

    root: Path
    checks: tuple[str, ...]
    device: str | None
    builds_baselines: bool

    @cached_property
    def trace_set(self) -> TraceSet:
        """The data set."""
        return TraceSet.from_path(self.root)

    def findings(self, known: Mapping[str, str]) -> dict[tuple[str, str], list[CheckMessage]]:
        """The findings of `fib_schema.validate` by definition, if they belong to one, and check."""
        report = validate(self.root)
        found: dict[tuple[str, str], list[CheckMessage]] = {}
        for problem in (*report.problems, *report.warnings):
            owner, check = _owner(problem.file, known), _check_of(problem)
            if owner or check in self.checks or problem.code == "no-data-set":
                found.setdefault((owner, check), []).append(CheckMessage(str(problem.severity), str(problem)))
        return found

    def result(self, check: str, name: str, messages: list[CheckMessage]) -> CheckResult:
        """The result of one check of one definition."""
        if check == "benchmark" and self.device is None:
            return CheckResult("skipped", (CheckMessage("info", "no GPU is used"),))
        found = {"workload": self._empty_axes, "baseline": self._baseline, "benchmark": self._benchmark}.get(check)
        if found is not None and name in self.trace_set.definition_names():
            messages = [*messages, *found(name)]
        return CheckResult.of(messages)

    def _empty_axes(self, name: str) -> list[CheckMessage]:
        """An error for each axis of size 0."""
        workloads = [trace.workload for trace in self.trace_set.workloads.get(name, [])]
        empty = [(one.uuid, axis) for one in workloads for axis, size in one.axes.items() if size == 0]
        return [CheckMessage("error", f"workload {uuid}: axis {axis!r} is 0; it is at least 1") for uuid, axis in empty]

    def _baseline(self, name: str) -> list[CheckMessage]:
        """Findings of the solutions below ``solutions/baseline/`` and the traces below ``traces/baseline/``."""
        solutions, traces = self._baseline_solutions(name), self._baseline_traces(name)
        kinds = {"solution": solutions, "trace": traces}
        found = [CheckMessage("warning", f"there is no baseline {kind}") for kind in kinds if not kinds[kind]]
        for trace in traces:
            place = f"baseline trace of {trace.solution!r} on workload {trace.workload.uuid}"
            if trace.solution not in solutions:
                found.append(CheckMessage("error", f"{place}: there is no such baseline solution"))
            elif not trace.is_successful():
                status = "no evaluation" if trace.evaluation is None else str(trace.evaluation.status)
                found.append(CheckMessage("warning", f"{place}: {status}"))
        missing = {trace.workload.uuid for trace in self.trace_set.workloads.get(name, [])}
        missing -= {trace.workload.uuid for trace in traces}
        if traces and missing:
            found.append(CheckMessage("warning", f"there is no baseline trace of {counted(len(missing), 'workload')}"))
        for solution in solutions.values() if self.builds_baselines else ():
            try:
                BuilderRegistry.get_instance().build(self.trace_set.get_definition(name), solution)
            except (BuildError, FibError) as error:
                found.append(CheckMessage("error", f"baseline {solution.name!r} cannot be built: {error}"))
        return found

    def _baseline_solutions(self, name: str) -> dict[str, Solution]:
        return {s.name: s for s in self.trace_set.solutions.get(name, []) if s.author == "baseline"}

    def _baseline_traces(self, name: str) -> list[Trace]:
        files = list_files(str(self.root), "traces/baseline", ".jsonl", Findings())  # `validate` reports problems
        return [trace for file in files if file.stem == name for _, trace in read_traces(file, Findings())]

    def _benchmark(self, name: str) -> list[CheckMessage]:
        """An error for each workload that the reference or a baseline does not pass."""
        assert self.device is not None  # else the check is skipped
        config = BenchmarkConfig(device=self.device, quick=True)
        problems = [f"reference: {text}" for text in run_references(self.trace_set, config, [name]).get(name, ())]
        if baselines := tuple(self._baseline_solutions(name)):
            selected = config.with_fields(definitions=(name,), solutions=baselines)
            result = Benchmark(self.trace_set, selected).run(dump_traces=False)
            problems += [f"could not run: {skip}" for skip in result.skipped]
            failed = [(t, t.evaluation) for t in result.traces if t.evaluation and not t.is_successful()]
            problems += [f"{t.solution} on workload {t.workload.uuid}: {evaluation.status}" for t, evaluation in failed]
        return [CheckMessage("error", problem) for problem in problems]


def _check_of(problem: Problem) -> str:
    if problem.code in _LAYOUT_CODES:
        return "layout"
    return _FOLDERS.get(PurePosixPath(problem.file).parts[0] if problem.file else "", "layout")


def _owner(file: str, known: Mapping[str, str]) -> str:
    """The definition that a file belongs to, by its path; empty without one."""
    path = PurePosixPath(file)
    return next((name for name in (path.stem, *reversed(path.parts[:-1])) if name in known), "")
