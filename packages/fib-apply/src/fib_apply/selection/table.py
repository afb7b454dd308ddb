"""Apply table: for each definition, hardware and key, the ranked solutions that may serve it.

A table is made once from a data set and its settings, and cached below ``FIB_CACHE_PATH`` as one file with a checksum.
The file is valid while no file of the data set changes its size, modification time or inode, and no relevant setting
or key builder changes. The rankings of a definition are decoded on first access.

If the settings require a signature, only files that the owner signed are listed, and each is verified when it is read,
on the bytes that are used.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

import attrs
import msgspec
from fib_schema import (
    DataSetNotFound,
    Definition,
    FibError,
    InvalidRecord,
    Problem,
    Solution,
    Trace,
    TraceSet,
    UnknownName,
    get_fib_cache_path,
)
from fib_schema.codec import MAX_RECORD_BYTES, parse_json, paused_gc
from fib_schema.data_files import list_data_files
from fib_schema.display import escape_line
from fib_schema.files import explain_os_error, read_regular
from fib_schema.package_init import installed_version
from fib_schema.solution import framed

from ..config import (
    CACHE_FOLDER,
    ApplyConfig,
    ApplyConfigRegistry,
    Settings,
    publish,
    read_published,
    required_signers,
    to_registry,
)
from ..errors import ConfigProblem
from ..events import logger
from ..key import ApplyKey, ApplyKeyFactory
from .rankings import SELECTION_SETTINGS, Candidate, HardwareRankings, Ranking

if TYPE_CHECKING:
    from fib_schema.signing import SignedFiles

    from .rules import SolutionFacts

# -- the data set -----------------------------------------------------------------------------------

R = TypeVar("R", Definition, Solution)

FOLDERS = {"definitions": ".json", "solutions": ".json", "traces": ".jsonl"}
"""The folders that a table depends on, and the suffixes of their files."""
_MAX_TRACES_BYTES = 2 << 30


def digest_of(parts: Iterable[str | bytes]) -> str:
    """A hash of a sequence of parts; parts are length-prefixed, so different sequences differ."""
    return hashlib.blake2b(framed(parts), digest_size=32).hexdigest()


class _Place(msgspec.Struct, array_like=True, frozen=True):
    """The place of a record; without a path and a digest in memory."""

    path: bytes = b""
    """Relative to the root."""
    digest: str = ""
    """Digest of the file's content."""


@attrs.define
class DatasetFiles:
    """The files of a data set that a table depends on."""

    root: str
    files: dict[str, list[str]]
    """Sorted paths by folder of `FOLDERS`."""
    problems: list[Problem]
    """Records that are not used, and why; grows while files are read."""
    _states: list[str] = attrs.field(factory=list)
    _signed: SignedFiles | None = None

    @classmethod
    def of(cls, root: str | os.PathLike[str], signers: Sequence[str] | None = None) -> DatasetFiles:
        """List a data set as `fib_schema` reads it: at any depth, without hidden files and links to the outside.

        Raises:
            NotSigned: None of the signers has signed it, or the manifest or its signature is not valid.
        """
        real = os.path.realpath(root)
        listed, problems = list_data_files(real, FOLDERS)
        files = {folder: [file.path for file in found] for folder, found in listed.items()}
        states = [
            f"{file.path[len(real) + 1 :]}\0{file.size_bytes} {file.modified_ns} {file.inode}"
            for found in listed.values()
            for file in found
        ]
        made = cls(real, files, problems, [*states, *map(str, problems)])
        if signers is not None:
            made._require_signature(signers)
        return made

    def _require_signature(self, signers: Sequence[str]) -> None:
        from fib_schema.signing import SignedFiles

        signed = self._signed = SignedFiles.open(self.root, signers)
        self._states.append(signed.digest)
        unsigned = [p for paths in self.files.values() for p in paths if self.relative(p) not in signed.hashes]
        self.problems += [Problem(path, "$", "ignored: not signed: added after signing") for path in unsigned]
        self.files = {
            folder: [f"{self.root}{os.sep}{path}" for path in signed.paths(folder, suffix)]
            for folder, suffix in FOLDERS.items()
        }

    def fingerprint(self) -> str:
        """Fingerprint of the path, size, modification time and inode of every file, of problems and of a signature."""
        return digest_of(self._states)

    def relative(self, path: str) -> str:
        """A listed path, relative to the root."""
        return path[len(self.root) + 1 :]

    def records(self, folder: str, cls: type[R]) -> dict[str, tuple[R, _Place]]:
        """Read the records of a folder by name. A name in two files is ambiguous, so neither counts."""
        found: dict[str, tuple[R, _Place]] = {}
        paths: dict[str, str] = {}
        ambiguous: set[str] = set()
        for path in self.files[folder]:
            if (content := self._content(path)) is None:
                continue
            try:
                record = parse_json(content, cls, source=path)
            except InvalidRecord as error:
                self.problems += error.problems
                continue
            if record.name in paths:
                ambiguous.add(record.name)
                message = f"another {cls.__name__.lower()} is named {record.name!r}: {paths[record.name]}"
                self.problems.append(Problem(path, "$", message))
            paths.setdefault(record.name, path)
            found[record.name] = record, _Place(os.fsencode(self.relative(path)), digest_of([content]))
        return {name: one for name, one in found.items() if name not in ambiguous}

    def traces(self, path: str) -> list[Trace]:
        """Read the evaluations of a file."""
        found = []
        for number, text in enumerate((self._content(path) or b"").split(b"\n"), start=1):
            if not text or text.isspace():
                continue
            try:
                trace = parse_json(text, Trace, source=f"{path}:{number}")
            except InvalidRecord as error:
                self.problems.append(_first(error))
                continue
            if trace.evaluation is not None:
                found.append(trace)
        return found

    def _content(self, path: str) -> bytes | None:
        """The content of a listed file; None, with a problem, if it is not used."""
        try:
            return _read_file(path) if self._signed is None else self._verified(path, self._signed)
        except OSError as error:
            self.problems.append(Problem(path, "$", f"cannot be read: {error.strerror}"))
        return None

    def _verified(self, path: str, signed: SignedFiles) -> bytes | None:
        """The signed content of a file.

        Raises:
            NotSigned: Traces are not as signed. Without them a solution that failed could look right.
        """
        from fib_schema.signing import NotAsSigned, NotSigned

        try:
            return signed.read(self.relative(path), _limit_bytes(path))
        except NotAsSigned as error:
            if not path.endswith(".json"):
                raise NotSigned(self.root, str(error)) from error
            self.problems.append(Problem(path, "$", f"ignored: {error.problem}"))
        return None


def _first(error: InvalidRecord) -> Problem:
    """The first problem of a line, with the number of the others."""
    problem, more = error.problems[0], len(error.problems) - 1
    return attrs.evolve(problem, message=f"{problem.message} (and {more} more)") if more else problem


def _read_file(path: str) -> bytes:
    return read_regular(path, _limit_bytes(path))


def _limit_bytes(path: str) -> int:
    return MAX_RECORD_BYTES if path.endswith(".json") else _MAX_TRACES_BYTES


def traces_by_definition(files: DatasetFiles, definitions: Iterable[str]) -> Iterator[tuple[str, list[Trace]]]:
    """The traces of one definition at a time, so that not all are in memory at once.

    A file belongs to the definition that its stem names. Traces of another definition, which only foreign tools write
    there, are kept for it; a definition that came before is yielded again, with all of its traces.
    """
    names = sorted(definitions)
    paths: dict[str, list[str]] = {name: [] for name in names}
    others: list[str] = []
    strays: dict[str, list[Trace]] = {name: [] for name in names}
    for path in files.files["traces"]:
        paths.get(Path(path).stem, others).append(path)

    def read(name: str, named: Iterable[str]) -> list[Trace]:
        found = [trace for path in named for trace in files.traces(path)]
        for trace in found:
            if trace.definition != name and trace.definition in strays:
                strays[trace.definition].append(trace)
        return found

    read("", others)
    used = {}
    for name in names:
        found = read(name, paths[name])
        used[name] = len(strays[name])
        yield name, strays[name] + found
    for name in names:
        if len(strays[name]) > used[name]:
            yield name, strays[name] + [trace for path in paths[name] for trace in files.traces(path)]


_NO_RANKINGS: Mapping[str, HardwareRankings] = MappingProxyType({})
_FORMAT = "10"
"""1, the first. 2, times of the fallback. 3, capture only of what was verified in replays; keys with layouts. 4, keys
of padded indices. 5, MessagePack. 7, no refused candidate. 8, numbers. 9, no batch axes. 10, setups among captured.
"""


class _Entry(msgspec.Struct, array_like=True, frozen=True):
    """A definition."""

    place: _Place
    wins: dict[str, dict[str, int]]
    """By hardware and solution, the number of keys that it wins."""
    rankings: memoryview
    """Encoded `_Rankings`, decoded when they are used."""


class _Content(msgspec.Struct, array_like=True, frozen=True):
    """All of a table."""

    digest: str
    problems: list[tuple[str, str, str]]
    """Source, path and message."""
    definitions: dict[str, _Entry]
    solutions: dict[str, _Place]


_Pairs = tuple[tuple[str, int], ...]
_Features = tuple[tuple[str, str | int | float | bool | None], ...]
_Rankings = list[tuple[str, list[tuple[_Pairs, _Features, Ranking]], Ranking | None]]
"""For each hardware: its name, the rankings by sizes and features, and the ranking over all keys."""
_encode = msgspec.msgpack.Encoder().encode
_decode_content = msgspec.msgpack.Decoder(_Content).decode
_decode_rankings = msgspec.msgpack.Decoder(_Rankings).decode


def local_hardware() -> tuple[str, ...]:
    """The hardware names of this machine's devices, the CPU last."""
    from fib_compile.device import hardware_from_device, list_cuda_devices

    return tuple(dict.fromkeys(hardware_from_device(device) for device in (*list_cuda_devices(), "cpu")))


class ApplyTable:
    """The selected solutions of a data set, for every hardware that its traces name; made by `load_or_build`."""

    def __init__(self, content: _Content, source: TraceSet | str, config: ApplyConfigRegistry) -> None:
        self._content = content
        self._source = source
        self.config = config
        self._rankings: dict[str, Mapping[str, HardwareRankings]] = {}

    @classmethod
    def load_or_build(
        cls,
        trace_set: TraceSet | str | os.PathLike[str],
        config: Settings = None,
        *,
        cache_root: str | os.PathLike[str] | None = None,
    ) -> ApplyTable:
        """Load the table of a data set from the cache, or build it.

        Args:
            trace_set: The data set or its root. Of an opened set the files are read, not the objects in memory,
                unless the set has no root; then nothing is cached.
            config: Settings for all definitions or by definition; None means the defaults.
            cache_root: The root of caches; None means `fib_schema.get_fib_cache_path`.

        Raises:
            InvalidSetting: `config` is neither settings nor None.
            DataSetNotFound: The root is not a directory.
            NotSigned: A signature is required, and there is no valid one (a ValueError).
        """
        registry = to_registry(config)
        signers = required_signers()
        root = trace_set.root if isinstance(trace_set, TraceSet) else Path(trace_set)
        if isinstance(trace_set, TraceSet) and root is None:
            if signers is not None:
                from fib_schema.signing import NotSigned

                raise NotSigned("in memory", "only files are signed; pass the folder of the set")
            return cls(_build_from_memory(trace_set, registry), trace_set, registry)
        assert root is not None  # checked above
        if not os.path.isdir(root):  # noqa: PTH112 never raises
            raise DataSetNotFound(str(root.absolute()))
        # Listed before they are read: a later change is stored under the state of the older files, and built again.
        files = DatasetFiles.of(root, signers)
        settings = list(_settings(registry, signers))
        name = digest_of([os.fsencode(files.root), *settings])[:40] + ".table"
        digest = digest_of([*_state(files), *settings])
        cache = get_fib_cache_path() if cache_root is None else Path(cache_root)
        content = _cached(cache, name)
        if content is None or content.digest != digest:
            content = _build_from_files(files, registry, digest)
            try:
                data = _encode(content)
                publish(cache, name, zlib.crc32(data).to_bytes(4) + data)
            except OSError as error:
                logger.warning("the table cannot be cached and will be rebuilt each time: %s", explain_os_error(error))
        return cls(content, files.root, registry)

    @property
    def digest(self) -> str:
        """Equal for tables of the same data, settings and key builders."""
        return self._content.digest

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Problems of the data set; each left something out. Those of a definition have its name as their source."""
        return tuple(Problem(*problem) for problem in self._content.problems)

    @property
    def definitions(self) -> tuple[str, ...]:
        """The names of the definitions."""
        return tuple(self._content.definitions)

    def rankings(self, definition: str) -> Mapping[str, HardwareRankings]:
        """The rankings of a definition by hardware; empty if it is unknown or has no traces."""
        if definition not in self._rankings:
            if definition not in self._content.definitions:
                return _NO_RANKINGS
            self._rankings[definition] = MappingProxyType(_decoded(self._content.definitions[definition].rankings))
        return self._rankings[definition]

    @property
    def index(self) -> Mapping[str, Mapping[ApplyKey, str]]:
        """By definition and key, the solution for plain calls on this machine. Decodes the whole table."""
        found = {}
        for name, rankings in self._on_local_hardware():
            plain = ((key, ranking.plain) for key, ranking in rankings.by_key.items())
            found[name] = {key: candidate.solution for key, candidate in plain if candidate is not None}
        return found

    @property
    def def_best(self) -> Mapping[str, str]:
        """By definition, the best solution over all keys on this machine. Decodes the whole table."""
        best = {name: found.best for name, found in self._on_local_hardware()}
        return {name: one.plain.solution for name, one in best.items() if one is not None and one.plain is not None}

    def _on_local_hardware(self) -> Iterator[tuple[str, HardwareRankings]]:
        """Rankings by definition; the first of this machine's devices with traces counts."""
        devices = local_hardware()
        for name in self.definitions:
            found = self.rankings(name)
            yield from [(name, found[one]) for one in devices if one in found][:1]

    def match_solution(self, definition: str, key: ApplyKey, hardware: str | None = None) -> str | None:
        """The solution for plain calls of a recorded key; None on a miss."""
        for name in local_hardware() if hardware is None else (hardware,):
            rankings = self.rankings(definition).get(name)
            ranking = None if rankings is None else rankings.by_key.get(key.recorded)
            if ranking is not None and ranking.plain is not None:
                return ranking.plain.solution
        return None

    def winners(self, hardware: str) -> list[tuple[str, str, int]]:
        """Definition, solution and number of keys that it wins, most keys first. Decodes nothing.

        A solution wins a key if it is the first candidate, or the first that needs no plan, of eager or captured calls.
        """
        found = [
            (definition, solution, keys)
            for definition, entry in self._content.definitions.items()
            for solution, keys in entry.wins.get(hardware, {}).items()
        ]
        return sorted(found, key=lambda winner: (-winner[2], winner[0], winner[1]))

    def definition(self, name: str) -> Definition:
        """Load a definition; reads its file only.

        Raises:
            UnknownName: There is no such definition.
            InvalidRecord: Its file has changed since the table was made, or cannot be read any more.
        """
        if isinstance(self._source, TraceSet):
            return self._source.get_definition(name)
        if name not in self._content.definitions:
            raise UnknownName("definition", name, self.definitions)
        return self._read(self._content.definitions[name].place, Definition)

    def solution(self, name: str) -> Solution:
        """Load a solution; reads its file only.

        Raises:
            UnknownName: There is no such solution.
            InvalidRecord: Its file has changed since the table was made, or cannot be read any more.
        """
        if isinstance(self._source, TraceSet):
            found = self._source.get_solution(name)
            if found is None:
                raise UnknownName("solution", name, self._source.solution_names())
            return found
        if name not in self._content.solutions:
            raise UnknownName("solution", name, tuple(self._content.solutions))
        return self._read(self._content.solutions[name], Solution)

    def _read(self, place: _Place, cls: type[R]) -> R:
        """A record whose file must be unchanged since the table was made: only measured code may run."""
        path = f"{self._source}{os.sep}{os.fsdecode(place.path)}"
        try:
            content = _read_file(path)
        except OSError as error:
            raise InvalidRecord(cls.__name__, (Problem(path, "$", f"cannot be read: {error.strerror}"),)) from error
        if digest_of([content]) != place.digest:
            problem = Problem(path, "$", "changed after the table was made; reload the runtime")
            raise InvalidRecord(cls.__name__, (problem,))
        return parse_json(content, cls, source=path)


# -- the cached file ---------------------------------------------------------------------------------


def _cached(cache: Path, name: str) -> _Content | None:
    """The content of a cached file; None if there is none, or it is not usable."""
    try:
        data = memoryview(read_published(cache, name))
        if zlib.crc32(data[4:]) != int.from_bytes(data[:4]):
            raise ValueError("it is damaged")
        return _decode_content(data[4:])
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        logger.warning("the cached table %s is not usable (%s) and is rebuilt", cache / CACHE_FOLDER / name, error)
        return None


def _decoded(encoded: memoryview) -> dict[str, HardwareRankings]:
    found = {}
    for hardware, by_key, best in _decode_rankings(encoded):
        rankings = {ApplyKey(axes, feats): ranking for axes, feats, ranking in by_key}
        found[hardware] = HardwareRankings(hardware, MappingProxyType(rankings), best)
    return found


def _encoded(rankings: Mapping[str, HardwareRankings]) -> memoryview:
    plain = [
        (hardware, [(key.axes, key.feats, one) for key, one in found.by_key.items()], found.best)
        for hardware, found in rankings.items()
    ]
    return memoryview(_encode(plain))


def _settings(config: ApplyConfigRegistry, signers: Sequence[str] | None) -> Iterator[str]:
    """The settings that decide on the content."""
    for name, settings in [("", config.default), *sorted(config.per_definition.items())]:
        yield repr((name, [getattr(settings, field) for field in SELECTION_SETTINGS]))
    yield repr(signers)


def _state(files: DatasetFiles) -> Iterator[str | bytes]:
    """Everything else that the content depends on."""
    yield from (_FORMAT, installed_version("fib-apply"), os.fsencode(files.root), files.fingerprint())
    for op_type, cls in sorted(ApplyKeyFactory.registered().items()):
        yield f"{op_type}={cls.__module__}.{cls.__qualname__} {_source_of(cls)}"


def _source_of(cls: type) -> str:
    """The source of a class and its bases, as far as there is one: a changed builder makes other keys."""
    texts = []
    for base in cls.__mro__[:-1]:
        if base.__module__.partition(".")[0] in ("fib_apply", "abc"):
            continue  # the package's version covers it; reading its source takes longer than loading the table
        try:
            texts.append(inspect.getsource(base))
        except (OSError, TypeError):  # defined interactively, or in an extension
            texts.append(base.__qualname__)
    return "\n".join(texts)


# -- building ----------------------------------------------------------------------------------------


@attrs.define
class _Builder:
    """Builds the content definition by definition."""

    config: ApplyConfigRegistry
    problems: list[Problem]
    entries: dict[str, _Entry] = attrs.field(factory=dict)

    def add(
        self, definition: Definition, traces: list[Trace], facts: list[SolutionFacts], place: _Place | None = None
    ) -> None:
        """Select solutions for one definition; a second call for it replaces the first."""
        from .rules import select  # only needed to build a table

        name = definition.name
        rankings: Mapping[str, HardwareRankings] = {}
        try:
            builder = ApplyKeyFactory.specialize(definition)
        except Exception as error:  # noqa: BLE001 a registered key builder may raise anything
            self.note(name, f"its key builder raised {type(error).__name__}: {error}")
        else:
            selection = select(definition, traces, facts, self.config.get(name), builder)
            self.problems += [Problem(name, "$", text.removeprefix(f"{name}: ")) for text in selection.problems]
            rankings = selection.rankings
        try:
            encoded = _encoded(rankings)
        except ValueError as error:  # e.g. a hardware name that UTF-8 cannot encode
            self.note(name, f"the rankings cannot be encoded: {error}")
            rankings, encoded = {}, _encoded({})
        self.entries[name] = _Entry(place or _Place(), _wins(rankings), encoded)

    def note(self, definition: str, problem: str) -> None:
        self.problems.append(Problem(definition, "$", problem))

    def finished(self, digest: str | None, solutions: Mapping[str, _Place]) -> _Content:
        """The content. Without a digest, that of the rankings is used."""
        problems = dict.fromkeys((escape_line(p.source), p.path, escape_line(p.message)) for p in self.problems)
        parts = [part for name, entry in self.entries.items() for part in (name, bytes(entry.rankings))]
        return _Content(digest or digest_of(parts), list(problems), self.entries, dict(solutions))


def _wins(rankings: Mapping[str, HardwareRankings]) -> dict[str, dict[str, int]]:
    """By hardware and solution, the number of keys where it is first, of all, without a plan or in captures."""
    counts: dict[str, dict[str, int]] = {}
    for hardware, of_hardware in rankings.items():
        of_solution = counts.setdefault(hardware, {})
        for ranking in of_hardware.by_key.values():
            first: Sequence[Candidate] = () if ranking.is_padded else ranking.candidates[:1]  # no plan serves these
            served = (*first, ranking.plain, ranking.of_captured().plain)
            for name in {candidate.solution for candidate in served if candidate is not None}:
                of_solution[name] = of_solution.get(name, 0) + 1
    return counts


def _build_from_files(files: DatasetFiles, config: ApplyConfigRegistry, digest: str) -> _Content:
    builder = _Builder(config, files.problems)
    with paused_gc():
        definitions = files.records("definitions", Definition)
        solutions = files.records("solutions", Solution)
        facts = _facts_by_definition(solution for solution, _ in solutions.values())
        for name, traces in traces_by_definition(files, definitions):
            definition, place = definitions[name]
            builder.add(definition, traces, facts.get(name, []), place)
        return builder.finished(digest, {name: place for name, (_, place) in solutions.items()})


def _facts_by_definition(solutions: Iterable[Solution]) -> dict[str, list[SolutionFacts]]:
    from .rules import SolutionFacts

    found: dict[str, list[SolutionFacts]] = {}
    for solution in solutions:
        found.setdefault(solution.definition, []).append(SolutionFacts.from_solution(solution))
    return found


def _build_from_memory(trace_set: TraceSet, config: ApplyConfigRegistry) -> _Content:
    builder = _Builder(config, [])
    with paused_gc():
        for name in trace_set.definitions:
            facts = _facts_by_definition(trace_set.solutions.get(name, ()))
            builder.add(trace_set.definitions[name], trace_set.traces.get(name, []), facts.get(name, []))
    return builder.finished(None, {})


# -- settings that do not fit the data set -----------------------------------------------------------


def setting_problems(registry: ApplyConfigRegistry, table: ApplyTable) -> Iterator[ConfigProblem]:
    """The problems of all settings, each with the path of the setting in a configuration file."""
    default = registry.default
    yield from _problems_of("default", default, ApplyConfig(), table, table.definitions)
    for name, config in registry.per_definition.items():
        path = f"definitions.{name}"
        if name in table.definitions:
            yield from _problems_of(path, config, default, table, (name,))
        else:
            yield ConfigProblem(None, path, str(UnknownName("definition", name, tuple(table.definitions))))


def _problems_of(
    path: str, config: ApplyConfig, inherited: ApplyConfig, table: ApplyTable, definitions: tuple[str, ...]
) -> Iterator[ConfigProblem]:
    """The problems of settings of some definitions, without those that they inherit."""
    for setting in ("baseline", "exclude", "only"):
        for name in sorted(_names(getattr(config, setting)) - _names(getattr(inherited, setting))):
            if (problem := _problem_of_solution(name, table, definitions)) is not None:
                yield ConfigProblem(None, f"{path}.{setting}", problem)


def _names(value: str | tuple[str, ...] | None) -> set[str]:
    return {value} if isinstance(value, str) else set(value or ())


def _problem_of_solution(name: str, table: ApplyTable, definitions: tuple[str, ...]) -> str | None:
    try:
        solution = table.solution(name)
    except UnknownName as error:
        return str(error)
    except FibError:  # a problem of the file, which is reported where it is read
        return None
    return None if solution.definition in definitions else f"{name!r} is a solution of {solution.definition!r}"
