"""Traffic counts of a data set: how often calls of each size and layout occurred while an engine was traced.

Each process that traces writes one file, ``traffic/<name>.json``, which only this process replaces. A file states, by
definition, all of its calls and the calls of each combination of axis sizes and layout:

    {"version": 1, "host": "node-1", "pid": 4242, "definitions": {"gemm_n4096": {
      "calls": 1000, "sizes": [{"axes": {"M": 8}, "layout": {}, "calls": 990}]}}}

``layout`` has the form of a workload's ``extra["layout"]``, ``{}`` where all inputs are contiguous; it is null where
calls of these sizes were counted whatever their layout. Calls that no combination counts are in ``calls`` only.

`load_traffic` sums all files: a call that each of eight ranks makes counts eight times, once for each device that ran
it. `DefinitionTraffic.calls_by_workload` divides the calls of a combination evenly among its workloads. Workloads
themselves state no counts, so that two runs that trace equal workloads still write equal lines.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Annotated, Any, TypeAlias

import attrs
import msgspec

from .data_files import list_files
from .errors import InvalidField, Problem
from .files import read_regular
from .problems import Findings
from .strides import LAYOUT, Strides, stated_strides
from .trace import Workload

FOLDER = "traffic"
"""Below the data set's root."""
VERSION = 1
"""Version of the format of the files."""
MAX_FILE_BYTES = 256 << 20
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
"""Sums of counts must be numbers that can be multiplied with latencies."""

Layout: TypeAlias = "tuple[tuple[str, Strides], ...] | None"
"""The strides of inputs that are not contiguous, in the order of names; None for any layout."""
Axes: TypeAlias = "tuple[tuple[str, int], ...]"
"""The sizes of the variable axes, in the order of names."""
Size: TypeAlias = "tuple[Axes, Layout]"


@attrs.frozen
class DefinitionTraffic:
    """The calls of one definition."""

    calls: int
    """All calls, also those that no size counts."""
    sizes: Mapping[Size, int]
    """Number of calls by axis sizes and layout."""

    def calls_by_workload(self, workloads: Iterable[Workload]) -> dict[str, float]:
        """The calls of workloads by uuid; workloads whose size was not counted are left out.

        Workloads of one size and layout share its calls evenly, because sizes are all that is counted. Sizes and
        layouts are compared as they are written.
        """
        by_size: dict[Size, list[str]] = {}
        for workload in {workload.uuid: workload for workload in workloads}.values():
            axes = axes_key(workload.axes)
            by_size.setdefault((axes, None), []).append(workload.uuid)
            with contextlib.suppress(InvalidField):  # which the validation of the set reports
                by_size.setdefault((axes, layout_key(stated_strides(workload.extra))), []).append(workload.uuid)
        found: dict[str, float] = {}
        for size, calls in self.sizes.items():
            for uuid in (uuids := by_size.get(size, [])):
                found[uuid] = found.get(uuid, 0.0) + calls / len(uuids)
        return found


@attrs.frozen
class Traffic:
    """The calls of all processes that traced into a data set."""

    definitions: Mapping[str, DefinitionTraffic]
    problems: tuple[Problem, ...] = ()
    """Files that could not be read and were left out."""


def axes_key(axes: Mapping[str, int]) -> Axes:
    """The sizes of axes as a key."""
    return tuple(sorted(axes.items()))


def layout_key(strides: Mapping[str, Strides]) -> tuple[tuple[str, Strides], ...]:
    """A layout as a key."""
    return tuple(sorted((name, tuple(values)) for name, values in strides.items()))


# -- files -------------------------------------------------------------------------------------------


class _Size(msgspec.Struct):
    axes: dict[str, int]
    calls: Count
    layout: dict[str, list[int]] | None = None


class _Definition(msgspec.Struct):
    calls: Count
    sizes: list[_Size]


class _File(msgspec.Struct):
    version: int
    definitions: dict[str, _Definition]


_decode = msgspec.json.Decoder(_File).decode


def plain_size(axes: Mapping[str, int], layout: Layout, calls: int) -> dict[str, Any]:
    """The calls of one combination as plain objects, for a file."""
    strides = None if layout is None else {name: list(values) for name, values in layout}
    return {"axes": dict(axes), LAYOUT: strides, "calls": calls}


def load_traffic(root: str | os.PathLike[str]) -> Traffic:
    """The sum of all files below ``traffic/`` of a data set; without files, there are no definitions."""
    calls: dict[str, int] = {}
    sizes: dict[str, dict[Size, int]] = {}
    findings = Findings()
    for file in list_files(os.fspath(root), FOLDER, ".json", findings):
        try:
            content = _read(file.path)
        except (OSError, ValueError, RecursionError, msgspec.MsgspecError) as error:
            reason = error.strerror or error if isinstance(error, OSError) else error
            findings.error(file.name, f"cannot be read as counts: {reason}; it was left out", "traffic")
            continue
        for name, definition in content.definitions.items():
            calls[name] = calls.get(name, 0) + definition.calls
            counted = sizes.setdefault(name, {})
            for size in definition.sizes:
                layout = None if size.layout is None else {name: tuple(item) for name, item in size.layout.items()}
                key = axes_key(size.axes), None if layout is None else layout_key(layout)
                counted[key] = counted.get(key, 0) + size.calls
    found = {name: DefinitionTraffic(calls[name], MappingProxyType(sizes[name])) for name in sorted(calls)}
    return Traffic(MappingProxyType(found), tuple(findings.problems))


def _read(path: str) -> _File:
    content = _decode(read_regular(path, MAX_FILE_BYTES))
    if content.version != VERSION:
        raise ValueError(f"it has version {content.version}, and this release reads {VERSION}")
    for name, definition in content.definitions.items():
        if sum(size.calls for size in definition.sizes) > definition.calls:
            raise ValueError(f"the calls of {name!r} are not the sum of its sizes and other calls")
    return content
