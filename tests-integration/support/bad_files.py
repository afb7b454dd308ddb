"""Bad data sets: a small good set, what can lie in it, and the operations that read sets."""

from __future__ import annotations

import copy
import json
import os
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

DEFINITION: dict[str, Any] = {
    "name": "gemm",
    "op_type": "gemm",
    "axes": {"M": {"type": "var"}, "K": {"type": "const", "value": 4}},
    "inputs": {"A": {"shape": ["M", "K"], "dtype": "float32"}, "s": {"shape": None, "dtype": "float32"}},
    "outputs": {"C": {"shape": ["M"], "dtype": "float32"}},
    "reference": "def run(A, s):\n    return A.sum(1) * s\n",
    "extra": {"note": 1},
}
SOLUTION: dict[str, Any] = {
    "name": "fast",
    "definition": "gemm",
    "author": "ada",
    "spec": {
        "language": "python",
        "target_hardware": ["cpu"],
        "entry_point": "main.py::run",
        "destination_passing_style": False,
    },
    "sources": [{"path": "main.py", "content": "def run(A, s):\n    return A.sum(1) * s\n"}],
    "extra": {"note": 1},
}
WORKLOAD: dict[str, Any] = {
    "definition": "gemm",
    "workload": {
        "axes": {"M": 2},
        "inputs": {"A": {"type": "random"}, "s": {"type": "scalar", "value": 2.0}},
        "uuid": "w0",
    },
    "solution": None,
    "evaluation": None,
}
TRACE: dict[str, Any] = {
    **WORKLOAD,
    "solution": "fast",
    "evaluation": {
        "status": "PASSED",
        "environment": {"hardware": "cpu", "libs": {"torch": "2"}},
        "timestamp": "2026-01-01T00:00:00",
        "log": "",
        "correctness": {"max_relative_error": 0.0, "max_absolute_error": 0.0, "extra": {"atol": 0.1, "rtol": 0.1}},
        "performance": {
            "latency_ms": 1.0,
            "reference_latency_ms": 2.0,
            "speedup_factor": 2.0,
            "extra": {"timing": {"interval_ms": [0.9, 1.1], "method": "host", "detected_share": 0.05, "samples": 3}},
        },
        "extra": {"flags": [], "solution_hash": "x", "isolation": {"level": 1}},
    },
}
RECORDS = {"definition": DEFINITION, "solution": SOLUTION, "workload": WORKLOAD, "trace": TRACE}
PLACES = {
    "definition": "definitions/gemm/bad.json",
    "solution": "solutions/ada/gemm/gemm/bad.json",
    "workload": "workloads/gemm/bad.jsonl",
    "trace": "traces/ada/gemm/bad.jsonl",
}
DIGITS = "9" * 5000
VALUES: dict[str, str] = {
    "400 digits": "9" * 400, "-400 digits": "-" + "9" * 400, "5000 digits": DIGITS, "-5000 digits": "-" + DIGITS,
    "5000 decimals": f"0.{DIGITS}", "5000 digits and a fraction": f"{DIGITS}.5", "NaN": "NaN", "Infinity": "Infinity",
    "-Infinity": "-Infinity", "1e999": "1e999", "-1e999": "-1e999", "1e308": "1e308", "-1": "-1", "-0.0": "-0.0",
    "true": "true", "null": "null", "a digit": '"1"', "a word": '"NaN"', "a half": '"\\ud800"', "2**63": str(2**63),
    "2**64": str(2**64), "a list": "[]", "an object": "{}", "900 levels": "[" * 900 + "]" * 900,
    "100000 levels": "[" * 100_000 + "]" * 100_000, "900 objects": '{"a":' * 900 + "1" + "}" * 900,
}  # fmt: skip
"""JSON of values that some field does not allow."""


def write_good_set(root: Path) -> None:
    """Write one definition, one solution, two workloads and two traces."""
    _write(root / "definitions/gemm/gemm.json", json.dumps(DEFINITION))
    _write(root / "solutions/ada/gemm/gemm/fast.json", json.dumps(SOLUTION))
    _write(root / "workloads/gemm/gemm.jsonl", json.dumps(WORKLOAD) + "\n")
    _write(root / "traces/ada/gemm/gemm.jsonl", json.dumps(TRACE) + "\n")


def _write(path: Path, text: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())


# -- values -------------------------------------------------------------------------------------------


def fields_of(plain: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value in plain objects, and one more for an unknown field of each object."""
    if path:
        yield path
    if isinstance(plain, dict):
        for key, value in plain.items():
            yield from fields_of(value, (*path, key))
        yield (*path, "unknown")
    elif isinstance(plain, list):
        for index, value in enumerate(plain):
            yield from fields_of(value, (*path, index))


def with_value(plain: Any, path: tuple[Any, ...], value: str) -> bytes:
    """The JSON of plain objects with other JSON at a path."""
    changed = copy.deepcopy(plain)
    inner = changed
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = "@@"
    return json.dumps(changed, separators=(",", ":")).replace('"@@"', value).encode()


def bad_records(kind: str) -> Iterator[tuple[str, bytes]]:
    """A name and the JSON of every combination of a field and a bad value."""
    for path in fields_of(RECORDS[kind]):
        for name, value in VALUES.items():
            yield f"{'.'.join(map(str, path))} is {name}", with_value(RECORDS[kind], path, value)


def write_bad_records(root: Path, kind: str) -> None:
    """Write all bad records of a kind into a set: lines of one file, or a file each."""
    texts = [text for _, text in bad_records(kind) if len(text) < 20_000]
    if PLACES[kind].endswith(".jsonl"):
        _write(root / PLACES[kind], b"\n".join(texts) + b"\n")
        return
    for index, text in enumerate(texts):
        name = RECORDS[kind]["name"]
        renamed = text.replace(f'"name":"{name}"'.encode(), f'"name":"bad-{index}"'.encode())
        _write((root / PLACES[kind]).with_name(f"bad-{index}.json"), renamed)


# -- objects of the file system -----------------------------------------------------------------------


@attrs.frozen
class Case:
    """Something bad at a place of a good set."""

    kind: str
    """The expected content of the file."""
    make: Callable[[Path], None]
    """Makes it at a path."""
    shown: str = "bad"
    """Words that messages about it contain; empty if there need be none."""
    place: str = ""
    """Below the root; empty for the usual place of its kind."""

    def write(self, root: Path) -> None:
        """Write the whole set."""
        write_good_set(root)
        path = root / (self.place or PLACES[self.kind])
        path.parent.mkdir(parents=True, exist_ok=True)
        if self.place in {"definitions", "solutions", "workloads", "traces"}:
            path.rename(root / "moved")
        self.make(path)


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:  # the path of a socket is limited to 107 bytes
        link = Path(folder) / "x"
        link.symlink_to(path.parent)
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(link / path.name))


def _content(text: bytes) -> Callable[[Path], None]:
    return lambda path: _write(path, text)


def _link(target: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


def _sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 70 << 20)


def _outside(path: Path) -> None:
    outside = path.parents[len(path.parts) - 3] / f"outside-{os.getpid()}"
    outside.mkdir(exist_ok=True)
    path.symlink_to(outside)


def _nested_folders(path: Path) -> None:
    """1,500 folders in each other, deeper than one path can name."""
    path.mkdir()
    folder = os.open(path, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("nested", dir_fd=folder)
        inner = os.open("nested", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(folder)


def _named(name: bytes, text: bytes) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        with open(os.path.join(os.fsencode(path.parent), name), "wb") as file:
            file.write(text)

    return make


OBJECTS: dict[str, Callable[[Path], None]] = {
    "pipe": _fifo,
    "socket": _socket,
    "link to nothing": _link("nowhere"),
    "link to itself": _link("bad.json"),
    "link to a device": _link("/dev/zero"),
    "link to a file outside": _link("/etc/hostname"),
    "blank": _content(b" "),
    "zeros": _content(bytes(1000)),
    "noise": _content(bytes(range(256)) * 4),
    "half a record": _content(b'{"name": "bad'),
    "a number": _content(b"1"),
    "a list": _content(b"[]"),
    "another record": _content(b'{"name": "bad"}'),
    "a pointer": _content(b"version https://git-lfs.github.com/spec/v1\n"),
    "100,000 levels": _content(b"[" * 100_000 + b"]" * 100_000),
    "5,000 digits": _content(b'{"name":"bad","extra":' + DIGITS.encode() + b"}"),
    "70 MiB": _sparse,
}
CASES: dict[str, Case] = {
    f"{name} as a {kind}": Case(kind, make)
    for kind in RECORDS
    for name, make in OBJECTS.items()
    if name != "blank" or kind not in {"trace", "workload"}  # a file of lines may have none
}
CASES |= {
    f"{folder} is {name}": Case(kind, make, folder, folder)
    for kind, folder in (
        ("definition", "definitions"), ("solution", "solutions"), ("workload", "workloads"), ("trace", "traces"),
    )
    for name, make in {
        "a file": _content(b"x"), "a pipe": _fifo, "a link to nothing": _link("nowhere"),
        "a link to itself": _link(folder), "a link to a folder outside": _link("/etc"),
    }.items()
}  # fmt: skip
CASES |= {
    f"{kind} below 1,500 folders": Case(kind, _nested_folders, "nested", str(Path(PLACES[kind]).with_name("bad")))
    for kind in RECORDS
}
CASES |= {
    f"{kind} with a line break in its name": Case(kind, _named(b"bad\nname" + Path(PLACES[kind]).suffix.encode(), b"x"))
    for kind in RECORDS
}
CASES |= {
    f"{kind} with bytes in its name that are no text": Case(
        kind, _named(b"bad\xff" + Path(PLACES[kind]).suffix.encode(), b"x")
    )
    for kind in RECORDS
}
CASES |= {
    f"two {kind}s of one name": Case(
        kind, _content(json.dumps(RECORDS[kind]).encode()), f"named {RECORDS[kind]['name']!r}"
    )
    for kind in ("definition", "solution")
}


# -- operations ---------------------------------------------------------------------------------------


def _read_all(root: Path) -> list[str]:
    from fib_schema import TraceSet

    trace_set = TraceSet.from_path(root)
    for mapping in (trace_set.definitions, trace_set.solutions, trace_set.workloads, trace_set.traces):
        assert len(list(mapping.values())) == len(list(mapping.items())) == len(list(mapping)) == len(mapping)
        assert all(name in mapping for name in mapping)
        assert all(mapping.get(name) is not None for name in mapping)
        for name in mapping:
            mapping[name]
    trace_set.definitions.get("bad"), "bad" in trace_set.definitions
    trace_set.to_dict()
    trace_set.summary()
    trace_set.get_best_trace("gemm")
    repr(trace_set)
    return [str(problem) for problem in trace_set.problems]


def _validate(root: Path) -> list[str]:
    from fib_schema import validate

    return validate(root).to_text().splitlines()


def _migrate(root: Path) -> list[str]:
    from fib_schema import migrate

    with tempfile.TemporaryDirectory() as target:
        return [str(problem) for problem in migrate(root, Path(target) / "new").rejected]


def _report(root: Path) -> list[str]:
    from fib_bench.report import best, summarise
    from fib_bench.report.page import page_of
    from fib_bench.report.page_data import page_data
    from fib_bench.report.results import Options
    from fib_schema import TraceSet

    trace_set = TraceSet.from_path(root)
    summarise(trace_set)
    best(trace_set)
    page_of(page_data(trace_set, Options())).encode()
    return [str(problem) for problem in trace_set.all_problems()]


def _plan(root: Path) -> list[str]:
    from fib_bench import BenchmarkConfig
    from fib_bench.plan import make_plan
    from fib_schema import TraceSet

    trace_set = TraceSet.from_path(root)
    plan = make_plan(trace_set, BenchmarkConfig(), "cpu", resume=True)
    skipped = [line for skip in plan.skipped for line in str(skip).splitlines()]
    return [*map(str, trace_set.problems), *skipped]


def _apply(root: Path) -> list[str]:
    from fib_apply.selection.table import ApplyTable

    with tempfile.TemporaryDirectory() as cache:
        table = ApplyTable.load_or_build(root, cache_root=cache)
        assert ApplyTable.load_or_build(root, cache_root=cache).problems == table.problems
    for name in table.definitions:
        table.rankings(name)
        table.definition(name)
    return list(table.problems)


def _build(root: Path) -> list[str]:
    from fib_compile.cli import _selected
    from fib_schema import TraceSet

    trace_set = TraceSet.from_path(root)
    _selected(trace_set, None, None)
    return [str(problem) for problem in trace_set.problems]


def _survey(root: Path) -> list[str]:
    from fib_schema import TraceSet
    from fib_tracer.maintenance.survey import survey

    trace_set = TraceSet.from_path(root)
    survey(trace_set)
    return [str(problem) for problem in trace_set.problems]


def _dedup(root: Path) -> list[str]:
    from fib_tracer.maintenance.dedup import dedup

    return [str(problem) for problem in dedup(root, is_dry=True).problems]


def _view(root: Path) -> list[str]:
    from fib_compat.cli.data_sets import load_traces

    return [str(problem) for problem in load_traces([root]).all_problems()]


@attrs.frozen
class Operation:
    """Something that reads a set."""

    run: Callable[[Path], list[str]]
    """Returns the lines that it shows."""
    reads: frozenset[str]
    """The kinds of records that it always reads."""


_ALL = frozenset(RECORDS)
OPERATIONS = {
    "read": Operation(_read_all, _ALL),
    "validate": Operation(_validate, _ALL),
    "migrate": Operation(_migrate, _ALL),
    "report": Operation(_report, _ALL),
    "plan": Operation(_plan, _ALL),
    "apply": Operation(_apply, _ALL - {"workload"}),
    "build": Operation(_build, frozenset({"definition", "solution"})),
    "survey": Operation(_survey, _ALL - {"solution"}),
    "dedup": Operation(_dedup, frozenset({"workload"})),
    "view": Operation(_view, frozenset({"definition", "solution"})),
}


@contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Interrupt a block that waits, for a pipe for instance."""

    def interrupt(*_: object) -> None:
        raise TimeoutError(f"took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
