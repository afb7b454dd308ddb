"""Times the append of one trace against its floor: a bare open, write, fdatasync and close of the same bytes.

    python packages/fib-schema/benchmarks/bench_append.py [--appends N] [--folder DIR]

Both sides alternate in one process, append by append. The time inside `fdatasync` is measured apart, because it is that
of the disk. Medians are shown, and the processor time of the thread, on which other processes have less influence.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import cycle, islice
from pathlib import Path

import attrs
from data_set import write_data_set
from fib_schema import TraceSet, format_json

LIMIT_MICROS = 50
WARM_UP = 100


@attrs.define
class Side:
    """The appends of one side, in microseconds."""

    beyond: list[float] = attrs.field(factory=list)
    """Without the time in `fdatasync`."""
    processor: list[float] = attrs.field(factory=list)
    syncing: list[float] = attrs.field(factory=list)

    def time(self, append: Callable[[], object]) -> None:
        """Time one append."""
        Sync.seconds = Sync.processor_seconds = 0.0
        start, processor_start = time.perf_counter(), time.thread_time()
        append()
        seconds, processor = time.perf_counter() - start, time.thread_time() - processor_start
        self.beyond.append((seconds - Sync.seconds) * 1e6)
        self.processor.append((processor - Sync.processor_seconds) * 1e6)
        self.syncing.append(Sync.seconds * 1e6)


class Sync:
    """The time of the calls of `fdatasync`."""

    seconds = 0.0
    processor_seconds = 0.0
    system_call = staticmethod(os.fdatasync)

    @classmethod
    def measured(cls, descriptor: int) -> None:
        """Replace `os.fdatasync`."""
        start, processor_start = time.perf_counter(), time.thread_time()
        cls.system_call(descriptor)
        cls.seconds += time.perf_counter() - start
        cls.processor_seconds += time.thread_time() - processor_start


def bare_append(path: str, line: bytes) -> None:
    """The floor: durable, but neither locked nor whole after an error."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, line)
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


def measure(folder: Path, appends: int) -> tuple[Side, Side]:
    """Alternate both sides; ours appends to the files of ten authors of one definition."""
    write_data_set(folder, definitions=1)
    (known,) = TraceSet.from_path(folder).traces.values()
    traces = list(islice(cycle(known), appends + WARM_UP))
    store = TraceSet.from_path(folder)
    bare_path = os.fspath(folder / "bare.jsonl")
    ours, bare = Side(), Side()
    os.fdatasync = Sync.measured
    for number, trace in enumerate(traces):
        if number == WARM_UP:
            ours, bare = Side(), Side()
        ours.time(lambda trace=trace: store.add_traces([trace]))  # type: ignore[misc]
        line = format_json(trace).encode() + b"\n"
        bare.time(lambda line=line: bare_append(bare_path, line))  # type: ignore[misc]
    os.fdatasync = Sync.system_call
    return ours, bare


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--appends", type=int, default=3000)
    parser.add_argument("--folder", type=Path, help="on the disk to measure (default: the temporary folder)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fib-append-", dir=arguments.folder) as folder:
        ours, bare = measure(Path(folder), arguments.appends)
    print(f"{'median of one append (us)':44} {'ours':>8} {'bare':>8} {'at most':>8}")
    for name, field, limit in (
        ("beyond its fdatasync", "beyond", str(LIMIT_MICROS)),
        ("  processor time of that", "processor", ""),
        ("the fdatasync", "syncing", ""),
    ):
        medians = (statistics.median(getattr(side, field)) for side in (ours, bare))
        print(f"{name:44} {' '.join(f'{median:8.1f}' for median in medians)} {limit:>8}")


if __name__ == "__main__":
    main()
