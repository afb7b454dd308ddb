"""Targets: what is done with a mutated data set, and what must hold.

A target raises `Finding` if a promise is broken. Any other exception than a documented one is a finding too.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import stat
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
from bad_sets.case import MAIN
from bad_sets.healthy import HARDWARE, trace
from fib_schema import DataWarning, Definition, FibError, Solution, Trace, TraceSet
from fib_schema import _reader as reader
from fib_schema import _trace_lines as trace_lines
from fib_schema._record import Record
from fib_schema.codec import format_json, parse_json
from fib_schema.errors import DataSetNotFound, DuplicateName, InvalidRecord, Severity

MAX_READ_BYTES = 2_000_000


class Finding(Exception):
    """A promise that is broken; the first argument says which."""


def _regular_files(root: Path, suffixes: tuple[str, ...]) -> Iterator[tuple[Path, bytes]]:
    folders = [root]  # not `os.walk`, which recurses into nested folders
    while folders:
        with contextlib.suppress(OSError):
            for path in folders.pop().iterdir():
                status = path.lstat()
                if stat.S_ISDIR(status.st_mode) and len(path.parts) < 100:
                    folders.append(path)
                elif path.suffix in suffixes and stat.S_ISREG(status.st_mode) and status.st_size <= MAX_READ_BYTES:
                    yield path, path.read_bytes()


def codec(root: Path) -> None:
    """Both decoders agree, what is read is written unchanged, and only `InvalidRecord` is raised."""
    parse = reader.trace_parser()  # one for all lines: it shares records between them
    for path, data in _regular_files(root, (".json", ".jsonl")):
        if path.suffix == ".jsonl":
            for line in data.splitlines()[:50]:
                _check_line(line, parse)
        else:
            kind = Definition if "definitions" in path.parts else Solution
            with contextlib.suppress(InvalidRecord):
                record = parse_json(data, kind)
                _check_round_trip(data, format_json(record), record, lambda text, kind=kind: parse_json(text, kind))


def _ordered(text: bytes | str) -> Any:
    """Parsed JSON with the order of keys."""
    return json.loads(text, object_pairs_hook=list)


def _check_line(line: bytes, parse: Callable[[bytes], Trace]) -> None:
    fast = slow = None
    with contextlib.suppress(reader.FastPathMiss):
        fast = parse(line)
    with contextlib.suppress(InvalidRecord):
        slow = parse_json(line, Trace)
    if fast is not None and slow is None:
        raise Finding("the fast decoder accepts a line that the slow one refuses")
    if slow is None:
        return
    if fast is not None and _plain(fast) != _plain(slow):
        raise Finding("both decoders read different records")
    if fast is not None and format_json(fast) != format_json(slow):
        raise Finding("the fast decoder changes the order of keys or the kind of a number")
    formatted = trace_lines.TraceFormatter()(slow)
    if _ordered(formatted) != _ordered(format_json(slow)):  # exponents may be spelt 1e+16 or 1e16
        raise Finding("both formatters write different lines")
    _check_round_trip(line, format_json(slow), slow, lambda text: parse_json(text, Trace))


def _check_round_trip(data: bytes, text: str, record: Any, parse: Callable[[str], object]) -> None:
    again, values = parse(text), repr(attrs.asdict(record))
    # NaN is unequal to itself; infinity below `extra` is read as the string that is written.
    if again != record and "nan" not in values and "inf" not in values:
        raise Finding("a record is not what is read after writing it")
    if format_json(again) != format_json(record):  # type: ignore[arg-type]
        raise Finding("a record is written in another way the second time")
    before, after = _pairs(data), _pairs(text)
    if before is not None and before != after:
        raise Finding("reading and writing changes a record")


def _plain(record: Record) -> str:
    return json.dumps(json.loads(format_json(record)), sort_keys=True)


class _Unfit(Exception):
    """The text has a repeated key or a number that JSON cannot say."""


def _pairs(text: bytes | str) -> Any:
    """The values with the order of keys; None for texts that cannot be written unchanged by design."""

    def pairs(items: list[tuple[str, Any]]) -> Any:
        if len({key for key, _ in items}) != len(items):
            raise _Unfit
        return ("object", items)

    def number(text: str) -> Any:
        value = float(text)
        if value in (float("inf"), -float("inf")):
            raise _Unfit
        return repr(value)

    def integer(text: str) -> Any:
        if abs(value := int(text)) > 2**53:
            raise _Unfit  # a float field rounds it
        return repr(float(value))  # a float field is written as 2.0 for 2

    def constant(_: str) -> Any:
        raise _Unfit

    try:
        return json.loads(text, object_pairs_hook=pairs, parse_float=number, parse_int=integer, parse_constant=constant)
    except (_Unfit, ValueError, RecursionError):
        return None


def listings(root: Path) -> None:
    """Opening a set and all listings: bad files cost themselves, the keeper is there, problems are known."""
    with _opened(root) as trace_set:
        if trace_set is None:
            return
        definitions = dict(trace_set.definitions.items())
        names = {name: [item.name for item in trace_set.solutions[name]] for name in trace_set.solutions}
        assert names is not None
        found = {kind: {n: list(v) for n, v in getattr(trace_set, kind).items()} for kind in ("workloads", "traces")}
        for name in (*definitions, "nobody"):
            trace_set.get_best_trace(name)
            trace_set.filter_traces(name)
        for solution in trace_set.solution_names():
            with contextlib.suppress(InvalidRecord):  # asked for by its name
                trace_set.get_solution(solution)
        trace_set.to_dict()
        repr(trace_set)
        trace_set.summary()
        assert all(str(problem) for problem in trace_set.problems)
        if EXPECTS_KEEPER and not (
            "keeper" in definitions
            and "keeper_py" in names.get("keeper", ())
            and found["workloads"].get("keeper")
            and found["traces"].get("keeper")
        ):
            raise Finding("the keeper is missing in the listings")


@contextlib.contextmanager
def _opened(root: Path) -> Iterator[TraceSet | None]:
    try:
        trace_set = TraceSet.from_path(root)
    except (DuplicateName, DataSetNotFound):
        trace_set = None
    yield trace_set


EXPECTS_KEEPER = True
"""Whether no mutation can hide the keeper; set for each case."""


def validating(root: Path) -> None:
    """`validate` ends, and reports errors where reading found problems."""
    from fib_schema.validation import validate

    report = validate(root)
    assert all(str(problem) for problem in (*report.problems, *report.warnings))
    assert report.to_text()
    with _opened(root) as trace_set:
        if trace_set is None:
            if report.is_ok:
                raise Finding("validate finds nothing in a set that cannot be opened")
            return
        for kind in ("definitions", "solutions", "workloads", "traces"):
            list(getattr(trace_set, kind).values())
        if any(problem.severity is Severity.ERROR for problem in trace_set.problems) and report.is_ok:
            raise Finding("validate finds nothing where reading found problems")
        if trace_set.problems and not (report.problems or report.warnings):
            raise Finding("validate does not warn where reading warned")


def command(*words: str) -> Callable[[Path], None]:
    """A command on the set: no traceback, a documented exit code."""

    def run(root: Path) -> None:
        places = {"{set}": str(root), "{out}": str(root.parent / f"out-{words[1]}-{words[2]}")}
        sys.argv = [places.get(word, word) for word in words]
        stdout, stderr = io.StringIO(), io.StringIO()
        try:
            with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
                code = MAIN[words[0]]() or 0
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
        if code not in (0, 1, 2):
            raise Finding(f"exit code {code} of {words[0]} {words[1]}")
        output = stdout.getvalue() + stderr.getvalue()
        if "Traceback (most recent call last)" in output:
            raise Finding("a traceback in the output: " + output.strip().splitlines()[-1][:100])
        if "--json" in words and code == 0:
            json.loads(stdout.getvalue())

    return run


def _readable_traces(root: Path) -> list[str]:
    with _opened(root) as trace_set:
        if trace_set is None:
            return []
        kinds = (trace_set.workloads, trace_set.traces)
        return sorted(_plain(item) for kind in kinds for group in kind.values() for item in group)


def appending(root: Path) -> None:
    """After an append everything is readable that was before, and what was appended."""
    before = _readable_traces(root)
    with _opened(root) as trace_set:
        if trace_set is None:
            return
        new = parse_json(json.dumps(trace("victim", "victim-new", "cpu")), Trace)
        is_added = False
        with contextlib.suppress(FibError, OSError):
            trace_set.add_traces([new])
            is_added = True
    if is_added and not _can_be_listed(root / "traces"):
        return  # the record is in a file that its owner hides from readers
    after = _readable_traces(root)
    wanted = [*before, _plain(new)] if is_added else before
    _check_subset(wanted, after, "an append")


def _can_be_listed(folder: Path) -> bool:
    """Whether readers find all files below a folder."""
    folders = [folder]  # not `os.walk`, which recurses into nested folders
    with contextlib.suppress(FileNotFoundError):
        while folders:
            try:
                found = list(folders.pop().iterdir())
            except (PermissionError, NotADirectoryError):
                return False
            folders += [path for path in found if path.is_dir() and not path.is_symlink() and len(path.parts) < 100]
    return True


def rewriting(root: Path) -> None:
    """``fib-tracer dedup`` loses no trace, and no workload but duplicates."""
    before = {json.loads(text)["definition"] for text in _readable_traces(root)}
    traces_before = [text for text in _readable_traces(root) if '"evaluation"' in text]
    command("fib-tracer", "dedup", "{set}", "--orphans", "--json")(root)
    after = _readable_traces(root)
    _check_subset(traces_before, [text for text in after if '"evaluation"' in text], "dedup")
    if not before <= {json.loads(text)["definition"] for text in after}:
        raise Finding("dedup has removed all workloads of a definition")


def migrating(root: Path) -> None:
    """A migration keeps every readable trace of a set whose definitions can be read."""
    before = [text for text in _readable_traces(root) if '"evaluation"' in text]
    command("fib-bench", "migrate", "{set}", "{out}")(root)
    out = root.parent / "out-migrate-{set}"
    if EXPECTS_KEEPER and out.exists():
        kept = [text for text in before if '"definition": "keeper"' in text]
        _check_subset(kept, _readable_traces(out), "migrate")


def _check_subset(wanted: list[str], found: list[str], what: str) -> None:
    left = list(found)
    for text in wanted:
        if text not in left:
            raise Finding(f"{what} loses a record")
        left.remove(text)


TARGETS: dict[str, Callable[[Path], None]] = {
    "codec": codec,
    "listings": listings,
    "validate": validating,
    "apply table": command("fib-apply", "table", "{set}", "--hardware", HARDWARE, "--json"),
    "summary": command("fib-bench", "report", "summary", "{set}", "--json"),
    "summary text": command("fib-bench", "report", "summary", "{set}"),
    "best": command("fib-bench", "report", "best", "{set}", "--json"),
    "compare": command("fib-bench", "report", "compare", "{set}", "{set}", "--json"),
    "html": command("fib-bench", "report", "html", "{set}", "--output", "{out}"),
    "merge": command("fib-bench", "report", "merge", "{set}", "--into", "{out}"),
    "stats": command("fib-tracer", "stats", "{set}", "--json"),
    "sample": command("fib-tracer", "sample", "{set}", "--output", "{out}", "-k", "3"),
    "baselines": command("fib-integrations", "baselines", "{set}", "--dry-run", "--json"),
    "migrate": migrating,
    "append": appending,
    "dedup": rewriting,
}
"""By name, in the order in which a case runs them; the last ones change the set."""


_ALWAYS = ("codec", "listings", "validate")


def draw(rng: random.Random) -> tuple[str, ...]:
    """Targets for one case: those that find most, and a few of the others."""
    return (*_ALWAYS, *rng.sample([name for name in TARGETS if name not in _ALWAYS], 4))


def run_all(root: Path, report: Callable[[str, BaseException | None], None], only: tuple[str, ...] = ()) -> None:
    """Run the targets on one set; `report` gets each name before it starts, then what it raised."""
    warnings.simplefilter("ignore", DataWarning)
    for name, target in TARGETS.items():
        if only and name not in only:
            continue
        report(name, None)
        try:
            target(root)
        except BaseException as error:  # noqa: BLE001 - everything that escapes is a finding
            report(name, error)
