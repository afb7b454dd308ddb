"""Import of FlashInfer's dumps into a data set: definitions, and calls, which become workloads.

Readers (`dump_calls`) map calls to definitions; then the calls pass through the same recorders and policies as live
traffic. Calls that are not recorded are counted by function and reason. Damaged files are reported and skipped.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
from fib_schema import FibError, Problem, TraceSet
from fib_schema.entry_points import find_entry_points, load_entry_point
from fib_schema.settings import InvalidSetting

from .counts import DefinitionStats
from .dump_calls import (
    GROUP,
    CallFolders,
    CallReader,
    DamagedCall,
    NotCovered,
    ReadCall,
    RecordedCall,
    in_call_order,
    is_call_folder,
)
from .dump_definitions import DefinitionImport, import_definition
from .runtime import TracingRuntime, definition_errors
from .settings import Settings, TracingConfig

MAX_CALL_BYTES = 8 << 30
"""The default limit of the tensors of one call."""
RECORDED = "given to the policies"
NOT_TRACED = "the settings do not trace its definition"
NO_COMPUTATION = "computes nothing itself"
NO_READER = "no reader knows the function"
READERS_PACKAGE = "fib-integrations"


@attrs.define
class ImportReport:
    """The result of an import."""

    definitions: list[DefinitionImport] = attrs.field(factory=list)
    calls: Counter[tuple[str, str]] = attrs.field(factory=Counter)
    """The number of calls by function and outcome: `RECORDED`, `NO_COMPUTATION`, or why they were not recorded."""
    problems: list[Problem] = attrs.field(factory=list)
    """The damaged objects, in the dumps and in the data set."""
    readers: list[str] = attrs.field(factory=list)
    stats: Mapping[str, DefinitionStats] = attrs.field(factory=dict)
    """Counts of the recorded calls, by definition."""
    skipped: list[str] = attrs.field(factory=list)
    """JSON files that are not definitions."""

    @property
    def is_ok(self) -> bool:
        """Whether nothing was damaged, refused or lost."""
        refused = any(result.is_refused for result in self.definitions)
        lost = any(stats.dropped for stats in self.stats.values())
        return not (self.problems or refused or lost or self.lacks_readers)

    @property
    def lacks_readers(self) -> bool:
        """Whether there are calls and no reader is installed."""
        return bool(self.calls) and not self.readers

    def to_plain(self) -> dict[str, Any]:
        """As plain objects, for JSON."""
        calls = [{"function": f, "outcome": o, "calls": n} for (f, o), n in sorted(self.calls.items())]
        return {
            "is_ok": self.is_ok,
            "definitions": [attrs.asdict(result) for result in self.definitions],
            "calls": calls,
            "workloads": {name: attrs.asdict(stats) for name, stats in self.stats.items()},
            "readers": self.readers,
            "skipped": self.skipped,
            "problems": [{"source": p.source, "message": p.message, "code": p.code} for p in self.problems],
        }


DEFAULT_CONFIG = TracingConfig("dump_int", filter_policy="keep_all")
"""Every call once, with its integer tensors."""


def import_dumps(
    source: str | os.PathLike[str],
    dataset: str | os.PathLike[str],
    config: Settings = DEFAULT_CONFIG,
    *,
    max_bytes: int = MAX_CALL_BYTES,
    readers: Mapping[str, CallReader] | None = None,
) -> ImportReport:
    """Import definitions and calls that FlashInfer has dumped.

    Args:
        source: A folder with dumps at any depth, one call's folder, or a definition's file.
        dataset: The data set's root.
        config: As for live traffic.
        max_bytes: The most bytes of tensors that a call may have.
        readers: By name; None means the installed ones (entry points of `dump_calls.GROUP`).

    Raises:
        InvalidSetting: There is no such source, or a setting is wrong.
        DataSetNotFound: There is no such data set.
        UnknownName: Settings name a definition or an input that the data set lacks, even after the import.
    """
    if max_bytes < 1:
        raise InvalidSetting("max_bytes", max_bytes, "at least 1 byte")
    root = Path(source)
    if not root.exists():
        raise InvalidSetting("source", os.fspath(source), "a folder or file that exists")
    report = ImportReport()
    trace_set = TraceSet.from_path(dataset)
    files, sessions = _dump_files(root, report.problems)
    for file in files:
        result = import_definition(trace_set, file)
        if result is None:
            report.skipped.append(os.fspath(file))
        else:
            report.definitions.append(result)
    used = _installed_readers(report.problems) if readers is None else dict(readers)
    report.readers = sorted(used)
    _CallImport(trace_set, config, max_bytes, list(used.values()), report).run(sessions)
    report.problems += definition_errors(trace_set)
    return report


# -- finding files -----------------------------------------------------------------------------------


def _dump_files(source: Path, problems: list[Problem]) -> tuple[list[Path], dict[Path, list[Path]]]:
    """The JSON files below a source, and the folders of calls by the folder that contains them."""
    if source.is_file():
        return [source], {}
    if is_call_folder(source):
        return [], {source.parent: [source]}
    files: list[Path] = []
    sessions: dict[Path, list[Path]] = {}
    for folder, folders, names in os.walk(source, onerror=lambda error: problems.append(_unreadable(error))):
        entries = [Path(folder, name) for name in sorted(folders + names)]
        for link in filter(Path.is_symlink, entries):
            message = "is a link, which is not followed; copy what it points to instead"
            problems.append(Problem(str(link), "$", message, code="link"))
        own = [entry for entry in entries if not entry.is_symlink()]
        files += [entry for entry in own if entry.suffix == ".json" and entry.is_file()]
        if calls := [entry for entry in own if entry.is_dir() and is_call_folder(entry)]:
            sessions[Path(folder)] = calls
        folders[:] = [e.name for e in own if e.is_dir() and e not in calls and not e.name.startswith(".")]
    return files, sessions


def _unreadable(error: OSError) -> Problem:
    return Problem(str(error.filename), "$", f"cannot be read: {error.strerror}", code="unreadable")


def _installed_readers(problems: list[Problem]) -> dict[str, CallReader]:
    readers: dict[str, CallReader] = {}
    for point in find_entry_points(GROUP):
        try:
            readers[point.name] = load_entry_point(point)()
        except Exception as error:  # noqa: BLE001 of another package; other readers must still be used
            message = f"cannot be loaded: {type(error).__name__}: {error}"
            problems.append(Problem(f"call reader {point.name!r}", "$", message, code="bad-reader"))
    return readers


# -- calls -------------------------------------------------------------------------------------------


class _CallImport:
    """Reads calls and records them."""

    def __init__(
        self, trace_set: TraceSet, config: Settings, max_bytes: int, readers: Sequence[CallReader], report: ImportReport
    ) -> None:
        self._trace_set = trace_set
        self._max_bytes = max_bytes
        self._readers = readers
        self._report = report
        self._runtime = TracingRuntime(
            trace_set,
            config,
            max_bytes=max_bytes + (1 << 20),  # for what the largest call needs beside its tensors
            saves_traffic=False,  # a dump has some calls of an engine, and may be imported again
            probes_all=True,  # no engine waits
        )

    def run(self, sessions: Mapping[Path, Iterable[Path]]) -> None:
        """Import the calls of all sessions."""
        for session, folders in sessions.items():
            reader = CallFolders(os.fspath(session), self._max_bytes)
            for folder in in_call_order(session, folders, self._report.problems):
                for function, outcome in self._outcome(reader, folder):
                    self._report.calls[function, outcome] += 1
        self._runtime.stop()  # records that cannot be written are lost, and not retried
        self._report.stats = {name: stats for name, stats in self._runtime.stats().items() if stats.calls}

    def _outcome(self, folders: CallFolders, folder: Path) -> Iterator[tuple[str, str]]:
        """The function and the outcome of a call; nothing if the folder is damaged, which is reported."""
        try:
            call = folders.read(folder)
        except NotCovered as error:
            yield error.function, error.reason
        except DamagedCall as error:
            self._report.problems.append(Problem(os.fspath(folder), "$", error.problem, code="damaged-call"))
        else:
            yield f"{call.module}.{call.function}", self._read(call)

    def _read(self, call: RecordedCall) -> str:
        """Record a call; returns the outcome."""
        try:
            reader = next((reader for reader in self._readers if reader.knows(call.module, call.function)), None)
            if reader is None:
                return NO_READER
            read = reader.read(call)
        except NotCovered as error:
            return error.reason
        except Exception as error:  # noqa: BLE001 a reader of another package; the other calls must still be imported
            return self._failed(call, f"its reader fails: {type(error).__name__}: {error}")
        return NO_COMPUTATION if read is None else self._collect(call, read)

    def _failed(self, call: RecordedCall, problem: str) -> str:
        source = f"{call.module}.{call.function}"
        if problem not in {p.message for p in self._report.problems if p.source == source}:
            self._report.problems.append(Problem(source, "$", problem, code="reader"))
        return problem

    def _collect(self, call: RecordedCall, read: ReadCall) -> str:
        name = read.definition
        if name not in self._trace_set.definitions:
            return f"the data set has no definition {name!r}"
        before = self._dropped(name)
        try:
            self._runtime.collect(name, kwargs=read.inputs)
            self._runtime.settle()  # the next call may need all memory
        except (TypeError, FibError) as error:  # arguments of another definition, or a damaged definition
            return self._failed(call, f"does not fit definition {name!r}: {error}")
        if name not in self._runtime.stats():
            return NOT_TRACED
        new = self._dropped(name) - before
        return next(iter(new), RECORDED)

    def _dropped(self, name: str) -> Counter[str]:
        stats = self._runtime.stats().get(name)
        return Counter() if stats is None else Counter(stats.dropped)
