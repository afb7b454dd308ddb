"""One figure per call, in a process of its own: ``parts.py PART ROOT`` prints JSON."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

DEFINITION = "op_000_n128"


def seconds_of(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def interpreter(code: str) -> dict[str, float]:
    """The median of several starts of an interpreter that runs `code`."""
    times = sorted(seconds_of(lambda: subprocess.run([sys.executable, "-c", code], check=True)) for _ in range(9))
    return {"seconds": times[4]}


def resident() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def bare(_root: Path) -> dict[str, float]:
    return interpreter("pass")


def import_(_root: Path) -> dict[str, float]:
    return interpreter("import fib_schema")


def import_store(_root: Path) -> dict[str, float]:
    return interpreter("from fib_schema import TraceSet")


def open_(root: Path) -> dict[str, float]:
    from fib_schema import TraceSet

    return {"seconds": seconds_of(lambda: TraceSet.from_path(root).get_best_trace(DEFINITION))}


def parse(root: Path) -> dict[str, float]:
    from fib_schema import TraceSet

    def action() -> None:
        opened = TraceSet.from_path(root)
        count = sum(len(opened.traces[name]) for name in opened.definitions)
        assert count == 200_000, count

    return {"seconds": seconds_of(action), "mib": resident()}


def floor(root: Path) -> dict[str, float]:
    import msgspec

    def action() -> None:
        for path in sorted(root.glob("traces/**/*.jsonl")):
            for line in path.read_bytes().splitlines():
                msgspec.json.decode(line)

    return {"seconds": seconds_of(action)}


def peer_parse(root: Path) -> dict[str, float]:
    from peer import Trace

    kept: list[object] = []

    def action() -> None:
        for path in sorted(root.glob("traces/**/*.jsonl")):
            kept.extend(Trace.model_validate_json(line) for line in path.read_bytes().splitlines())

    return {"seconds": seconds_of(action), "mib": resident()}


def rank(root: Path) -> dict[str, float]:
    from fib_schema import TraceSet

    opened = TraceSet.from_path(root)
    for name in opened.definitions:
        _ = opened.traces[name]
    return {"seconds": seconds_of(opened.rank_authors)}


def append(root: Path) -> dict[str, float]:
    """10,000 appends one by one; the time inside their own fdatasync is taken out and shown apart."""
    from fib_schema import TraceSet

    source = TraceSet.from_path(root)
    traces = [t for name in list(source.definitions)[:10] for t in source.traces[name]][:10_000]
    syncing = 0.0
    system_call = os.fdatasync

    def fdatasync(descriptor: int) -> None:
        nonlocal syncing
        start = time.perf_counter()
        system_call(descriptor)
        syncing += time.perf_counter() - start

    with tempfile.TemporaryDirectory(prefix="fib-append-", dir=root) as folder:
        target = TraceSet.from_path(folder)
        names = dict.fromkeys(t.definition for t in traces)
        target.add_definitions([source.definitions[name] for name in names])
        target.add_solutions([s for name in names for s in source.solutions[name]])
        first_of_file = {(t.definition, t.solution): t for t in reversed(traces)}
        target.add_traces(first_of_file.values())  # files are made before, for that syncs folders too
        os.fdatasync = fdatasync
        total = seconds_of(lambda: [target.add_traces([trace]) for trace in traces])
    count = len(traces)
    return {"beyond_micros": (total - syncing) / count * 1e6, "sync_micros": syncing / count * 1e6}


PARTS = {
    "bare": bare, "import": import_, "import_store": import_store, "open": open_, "parse": parse, "floor": floor,
    "peer_parse": peer_parse, "rank": rank, "append": append,
}  # fmt: skip

if __name__ == "__main__":
    print(json.dumps(PARTS[sys.argv[1]](Path(sys.argv[2]))))
