"""Reads what FlashInfer has dumped into a data set: definitions, and calls, which become workloads.

Calls go to readers (`recorded_calls`), who tell what they compute, and then through the same policies as live traffic.
Whatever is not taken is counted by function and reason; what is damaged is reported, and the rest goes on.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import attrs
from fib_schema import FibError, Problem, TraceSet

from ..config import Settings, TracingConfig
from ..errors import InvalidSetting
from ..recorded_calls import GROUP, CallReader, NotCovered, ReadCall, RecordedCall
from ..runtime import TracingRuntime
from ..tallies import DefinitionStats
from .adding import Added, add_definition
from .calls import CallFolders, DamagedCall, NeverWritten, in_order, is_call_folder

MOST_BYTES = 8 << 30
"""How much of one call's tensors is read unless the user says otherwise."""
WAIT_SECONDS = 5.0
"""How long a call waits for earlier ones to be stored; with a sample that holds all memory, it would be for ever."""
TAKEN = "given to the policies"
LEFT_OUT = "the settings leave its definition out"
PREPARES = "computes nothing itself"
NO_READER = "no reader knows it"
READERS_PACKAGE = "fib-integrations"


@attrs.define
class ImportReport:
    """What became of everything that was there."""

    definitions: list[Added] = attrs.field(factory=list)
    calls: Counter[tuple[str, str]] = attrs.field(factory=Counter)
    """How many, by function and what became of them: `TAKEN`, `PREPARES`, or why they were not."""
    problems: list[Problem] = attrs.field(factory=list)
    """What is damaged or was refused."""
    readers: list[str] = attrs.field(factory=list)
    stats: Mapping[str, DefinitionStats] = attrs.field(factory=dict)
    """What became of the calls that policies were given, by definition."""
    drafts: list[str] = attrs.field(factory=list)
    """Names of definitions that drafts were made of."""
    passed_over: list[str] = attrs.field(factory=list)
    """JSON files that are no definitions."""

    @property
    def is_ok(self) -> bool:
        """Whether nothing was damaged, refused or lost."""
        refused = any(added.is_refused for added in self.definitions)
        lost = any(stats.dropped for stats in self.stats.values())
        return not (self.problems or refused or lost or self.lacks_readers)

    @property
    def lacks_readers(self) -> bool:
        """Whether there are calls and nobody to read them."""
        return bool(self.calls) and not self.readers

    def to_plain(self) -> dict[str, Any]:
        """As plain objects, for JSON."""
        calls = [{"function": f, "outcome": o, "calls": n} for (f, o), n in sorted(self.calls.items())]
        return {
            "is_ok": self.is_ok,
            "definitions": [attrs.asdict(added) for added in self.definitions],
            "calls": calls,
            "workloads": {name: stats.to_plain() for name, stats in self.stats.items()},
            "drafts": self.drafts,
            "readers": self.readers,
            "passed_over": self.passed_over,
            "problems": [{"source": p.source, "message": p.message, "code": p.code} for p in self.problems],
        }


@attrs.frozen
class ImportOptions:
    """What a user decides about an import."""

    config: Settings = attrs.field(factory=lambda: TracingConfig("dump_int", filter_policy="keep_all"))
    """As for live traffic; without it, every call once, with its integer tensors."""
    has_drafts: bool = False
    """Whether drafts are made of definitions that the data set lacks."""
    most_bytes: int = MOST_BYTES
    """How many bytes of tensors a call may have."""

    def __attrs_post_init__(self) -> None:
        if self.most_bytes < 1:
            raise InvalidSetting("most_bytes", self.most_bytes, "bytes from 1 on")


def import_dumps(
    source: str | os.PathLike[str],
    dataset: str | os.PathLike[str],
    options: ImportOptions | None = None,
    readers: Mapping[str, CallReader] | None = None,
) -> ImportReport:
    """Read definitions and calls that FlashInfer has dumped into a data set.

    Args:
        source: A folder with dumps at any depth, one call's folder, or a definition's file.
        dataset: The data set's root.
        options: What to keep of calls.
        readers: By name; None means those that are installed (entry points of `recorded_calls.GROUP`).

    Raises:
        InvalidSetting: There is no such source, or a setting is wrong.
        DataSetNotFound: There is no such data set.
        UnknownName: Settings name a definition or an input that the data set lacks, even after the import.
    """
    options = options or ImportOptions()
    root = Path(source)
    if not root.exists():
        raise InvalidSetting("source", os.fspath(source), "a folder or file that exists")
    report = ImportReport()
    trace_set = TraceSet.from_path(dataset)
    found = _Found()
    found.look(root, report.problems)
    for file in found.files:
        added = add_definition(trace_set, file)
        if added is None:
            report.passed_over.append(os.fspath(file))
        else:
            report.definitions.append(added)
    found_readers = _installed(report.problems) if readers is None else dict(readers)
    report.readers = sorted(found_readers)
    _CallImport(trace_set, options, list(found_readers.values()), report).take(found.sessions)
    return report


# -- finding -----------------------------------------------------------------------------------------


@attrs.define
class _Found:
    """What lies below a source."""

    files: list[Path] = attrs.field(factory=list)
    """JSON files."""
    sessions: dict[Path, list[Path]] = attrs.field(factory=dict)
    """The folders of calls, by the folder that they lie in."""

    def look(self, path: Path, problems: list[Problem]) -> None:
        """Take note of everything at any depth; links are not followed, and reported where they lead out."""
        if path.is_file():
            self.files += [path]
        elif is_call_folder(path):
            self.sessions[path.parent] = [path]
        else:
            self._look_into(path, os.path.realpath(path), problems)

    def _look_into(self, folder: Path, root: str, problems: list[Problem]) -> None:
        calls: list[Path] = []
        try:
            inner = sorted(folder.iterdir())
        except OSError as error:
            problems.append(Problem(str(folder), "$", f"cannot be read: {error.strerror}", code="unreadable"))
            return
        for path in inner:
            if path.is_symlink():
                if not _is_below(path, root):
                    message = "is a link that leads out of the source; copy what it points to instead"
                    problems.append(Problem(str(path), "$", message, code="link-out"))
            elif path.is_dir() and is_call_folder(path):
                calls.append(path)
            elif path.is_dir() and not path.name.startswith("."):
                self._look_into(path, root, problems)
            elif path.suffix == ".json" and path.is_file():
                self.files.append(path)
        if calls:
            self.sessions[folder] = calls


def _is_below(path: Path, root: str) -> bool:
    return os.path.realpath(path).startswith(root.rstrip(os.sep) + os.sep)


def _installed(problems: list[Problem]) -> dict[str, CallReader]:
    readers: dict[str, CallReader] = {}
    for point in entry_points(group=GROUP):
        try:
            readers[point.name] = point.load()()
        except Exception as error:  # noqa: BLE001 of another package; others' readers are to be asked all the same
            message = f"cannot be loaded: {type(error).__name__}: {error}"
            problems.append(Problem(f"call reader {point.name!r}", "$", message, code="bad-reader"))
    return readers


# -- calls -------------------------------------------------------------------------------------------


class _CallImport:
    """Has calls read, and gives what they compute to policies."""

    def __init__(
        self, trace_set: TraceSet, options: ImportOptions, readers: Sequence[CallReader], report: ImportReport
    ) -> None:
        self._trace_set = trace_set
        self._options = options
        self._readers = readers
        self._report = report
        self._runtime = TracingRuntime(
            trace_set,
            options.config,
            max_bytes=options.most_bytes + (1 << 20),  # what is beside the tensors of the largest call
            wait_seconds=WAIT_SECONDS,
            drafts=options.has_drafts,
        )

    def take(self, sessions: Mapping[Path, Iterable[Path]]) -> None:
        """All calls of all sessions."""
        for session, folders in sessions.items():
            reader = CallFolders(os.fspath(session), self._options.most_bytes)
            for folder in in_order(session, folders, self._report.problems):
                for function, outcome in self._outcome(reader, folder):
                    self._report.calls[function, outcome] += 1
        self._report.stats = {name: stats for name, stats in self._runtime.flush().items() if stats.calls}

    def _outcome(self, folders: CallFolders, folder: Path) -> Iterator[tuple[str, str]]:
        """The function and what becomes of the call; nothing if it is damaged, which is reported."""
        try:
            call = folders.read(folder)
        except NeverWritten as error:
            yield error.function, str(error).removeprefix(f"{error.function}: ")
        except DamagedCall as error:
            self._report.problems.append(Problem(os.fspath(folder), "$", error.problem, code="damaged-call"))
        else:
            yield f"{call.module}.{call.function}", self._read(call)

    def _read(self, call: RecordedCall) -> str:
        """What becomes of a call."""
        try:
            reader = next((reader for reader in self._readers if reader.knows(call.module, call.function)), None)
            if reader is None:
                return NO_READER
            read = reader.read(call)
        except NotCovered as error:
            return error.reason
        except Exception as error:  # noqa: BLE001 a reader of another package; the rest is to be imported
            return self._failed(call, f"its reader fails: {type(error).__name__}: {error}")
        return PREPARES if read is None else self._collect(call, read)

    def _failed(self, call: RecordedCall, problem: str) -> str:
        source = f"{call.module}.{call.function}"
        if problem not in {p.message for p in self._report.problems if p.source == source}:
            self._report.problems.append(Problem(source, "$", problem, code="reader"))
        return problem

    def _collect(self, call: RecordedCall, read: ReadCall) -> str:
        name = read.definition
        if name not in self._trace_set.definitions:
            self._draft(read)
            return f"the data set has no definition {name!r}"
        before = self._dropped(name)
        try:
            self._runtime.collect(name, kwargs=read.inputs)
        except (TypeError, FibError) as error:  # arguments of another definition, or one that is damaged
            return self._failed(call, f"not of definition {name!r}: {error}")
        if name not in self._runtime.stats():
            return LEFT_OUT
        new = self._dropped(name) - before
        return next(iter(new), TAKEN)

    def _dropped(self, name: str) -> Counter[str]:
        stats = self._runtime.stats().get(name)
        return Counter() if stats is None else Counter(stats.dropped)

    def _draft(self, read: ReadCall) -> None:
        if not self._options.has_drafts:
            return
        note = self._runtime.bind(read.definition, tuple(read.inputs))
        if note is not None:
            note(*read.inputs.values())
            if read.definition not in self._report.drafts:
                self._report.drafts.append(read.definition)
