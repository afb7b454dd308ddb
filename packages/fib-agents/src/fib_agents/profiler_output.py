"""Parser of the CSV of Nsight Compute (``ncu --csv --page raw``). It is untrusted text, like all output of a solution.

The first record has the names of the columns, the second their units; then comes one record for each kernel. Lines that
begin with ``==`` are messages of the tool.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

import attrs

from .results import untrusted

SECTIONS = ("SpeedOfLight", "MemoryWorkloadAnalysis", "WarpStateStats", "LaunchStats", "Occupancy")
"""The sections that are collected by default."""
_MAX_KERNELS = 200
_STALL = re.compile(r"smsp__average_warps_issue_stalled_(\w+?)(?:_not_issued)?_per_issue_active\.ratio")
_FORBIDDEN = re.compile(r"ERR_NVGPUCTRPERM|insufficient (?:permissions|privileges)", re.I)
_TIME_NS = {"nsecond": 1.0, "ns": 1.0, "usecond": 1e3, "us": 1e3, "msecond": 1e6, "ms": 1e6, "second": 1e9, "s": 1e9}
_BYTES = {
    "byte": 1.0,
    "B": 1.0,
    "Kbyte": 1e3,
    "KB": 1e3,
    "Mbyte": 1e6,
    "MB": 1e6,
    "Gbyte": 1e9,
    "GB": 1e9,
    "Tbyte": 1e12,
}
_DURATION = "gpu__time_duration.sum"
_PERCENT = {
    "compute": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "memory": "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "dram": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "l1_hit": "l1tex__t_sector_hit_rate.pct",
    "l2_hit": "lts__t_sector_hit_rate.pct",
    "occupancy": "sm__warps_active.avg.pct_of_peak_sustained_active",
}
_LAUNCH = {
    "registers": "launch__registers_per_thread",
    "block_threads": "launch__block_size",
    "grid_blocks": "launch__grid_size",
    "waves": "launch__waves_per_multiprocessor",
}
_SHARED = ("launch__shared_mem_per_block_static", "launch__shared_mem_per_block_dynamic")
_LIMITS = {
    "registers": "launch__occupancy_limit_registers",
    "shared memory": "launch__occupancy_limit_shared_mem",
    "warps": "launch__occupancy_limit_warps",
    "blocks": "launch__occupancy_limit_blocks",
}


@attrs.frozen
class Kernel:
    """The metrics of one kernel launch; None where the profile has no such metric."""

    name: str = untrusted()
    duration_us: float | None = None
    percent: Mapping[str, float] = attrs.Factory(dict)
    """Percentages of the peak (compute, memory, dram), hit rates, achieved occupancy."""
    launch: Mapping[str, float] = attrs.Factory(dict)
    """Registers per thread, threads of a block, blocks of the grid, waves."""
    shared_bytes: float | None = None
    """Shared memory of a block, static and dynamic."""
    limiter: str | None = None
    """The resource that bounds the occupancy."""
    stalls: tuple[tuple[str, float], ...] = ()
    """Reasons why warps waited, with cycles per issued instruction, most first."""


@attrs.frozen
class Table:
    """The records of a profile."""

    kernels: tuple[Kernel, ...]
    raw: tuple[Mapping[str, str], ...]
    """All columns of each kernel as text."""
    is_forbidden: bool
    """Whether the tool says that the driver refuses performance counters."""


def forbids_counters(text: str) -> bool:
    """Whether the tool says that the driver refuses performance counters."""
    return _FORBIDDEN.search(text) is not None


def parse_profile(text: str) -> Table:
    """The kernels of a profile; at most 200 are read.

    Args:
        text: What ``ncu --csv --page raw`` writes.
    """
    is_forbidden = forbids_counters(text)
    records = list(islice(csv.reader(_csv_lines(text), strict=False), _MAX_KERNELS + 2))
    if len(records) < 3 or "Kernel Name" not in records[0]:
        return Table((), (), is_forbidden)
    columns, units = records[0], dict(zip(records[0], records[1], strict=False))
    rows = [dict(zip(columns, record, strict=False)) for record in records[2:] if len(record) == len(columns)]
    return Table(tuple(_kernel(row, units) for row in rows), tuple(rows), is_forbidden)


def _csv_lines(text: str) -> Iterator[str]:
    """The lines of the table: from the one that names the columns on, without messages and those that csv refuses."""
    is_table = False
    for line in text.splitlines():
        is_table = is_table or line.startswith('"ID",')
        if is_table and line.startswith('"') and len(line) <= csv.field_size_limit():
            yield line


def _kernel(row: Mapping[str, str], units: Mapping[str, str]) -> Kernel:
    def number(name: str) -> float | None:
        try:
            value = float(row[name].replace(",", ""))
        except (KeyError, ValueError):
            return None
        return value if 0 <= value < math.inf else None

    def numbers(names: Mapping[str, str]) -> dict[str, float]:
        return {key: value for key, name in names.items() if (value := number(name)) is not None}

    duration, scale_ns = number(_DURATION), _TIME_NS.get(units.get(_DURATION, ""))
    shared = [
        value * _BYTES.get(units.get(name, "byte").partition("/")[0], 1.0)
        for name in _SHARED
        if (value := number(name)) is not None
    ]
    limits = numbers(_LIMITS)
    return Kernel(
        name=row["Kernel Name"][:300],
        duration_us=None if duration is None or scale_ns is None else duration * scale_ns / 1e3,
        percent=numbers(_PERCENT),
        launch=numbers(_LAUNCH),
        shared_bytes=sum(shared) if shared else None,
        limiter=min(limits, key=lambda name: limits[name]) if limits else None,
        stalls=_stalls(row, number),
    )


def _stalls(row: Mapping[str, str], number: object) -> tuple[tuple[str, float], ...]:
    assert callable(number)
    found = [
        (match[1].replace("_", " "), value)
        for name in row
        if (match := _STALL.fullmatch(name)) and "not_issued" not in name and (value := number(name)) is not None
    ]
    return tuple(sorted((one for one in found if one[1] > 0 and one[0] != "selected"), key=lambda one: -one[1]))


def total_us(kernels: Sequence[Kernel]) -> float:
    """The sum of the durations."""
    return sum(kernel.duration_us or 0.0 for kernel in kernels)
