"""Memory of processes: what is allocated, what the system has given, and slopes over time or rounds."""

from __future__ import annotations

import ctypes
import gc
import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import attrs
from service import print_table


class _Mallinfo(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    )  # fmt: skip


def resident_mib(pid: int) -> float:
    """Private memory of a process, in MiB."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in text.splitlines() if line.startswith("RssAnon")).split()[1]) / 1024


def slope_with_error(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Slope of a line through points, and twice its standard error as if they were independent."""
    if len(points) < 3:
        return 0.0, float("inf")
    places, values = zip(*points, strict=True)
    slope, intercept = statistics.linear_regression(places, values)
    rest = sum((value - slope * place - intercept) ** 2 for place, value in points) / (len(points) - 2)
    spread = sum((place - statistics.fmean(places)) ** 2 for place in places)
    return slope, 2 * (rest / spread) ** 0.5


@attrs.frozen
class Sample:
    """Memory of this process after a number of rounds: the first two are in use, the last one the system has given."""

    rounds: int
    blocks: int
    """Of the allocator of CPython: objects up to 512 bytes."""
    malloc_kib: float
    """Everything else, such as longer objects and SQLite."""
    private_kib: float

    @classmethod
    def take(cls, rounds: int) -> Sample:
        """Collect garbage, and measure."""
        gc.collect()
        library = ctypes.CDLL(None)
        library.mallinfo2.restype = _Mallinfo
        found = library.mallinfo2()
        used = (found.uordblks + found.hblkhd) / 1024
        return cls(rounds, sys.getallocatedblocks(), used, resident_mib(os.getpid()) * 1024)


def print_growth(samples: Sequence[Sample]) -> None:
    """Print the samples, and the slopes of the second half: caches and the heap are filled by then."""
    rows = [("rounds", "blocks of CPython", "malloc, KiB", "private memory, KiB")]
    rows += [(f"{one.rounds}", f"{one.blocks}", f"{one.malloc_kib:.0f}", f"{one.private_kib:.0f}") for one in samples]
    print_table("Memory by rounds", rows)
    half = samples[len(samples) // 2 :]
    rows = [("number", "in 1,000 rounds")]
    for name, field in (("blocks", "blocks"), ("malloc, KiB", "malloc_kib"), ("private memory, KiB", "private_kib")):
        slope, error = slope_with_error([(one.rounds / 1000, getattr(one, field)) for one in half])
        rows.append((name, f"{slope:+.1f} ± {error:.1f}"))
    print_table(f"Slopes from {half[0].rounds:,} rounds on", rows)
