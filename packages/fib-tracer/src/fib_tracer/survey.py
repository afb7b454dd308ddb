"""Survey of a data set's workloads: their sizes, inputs and tensors, and the share of traced calls that they cover."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import attrs
from fib_schema import Definition, SafetensorsInput, TraceSet, Workload
from fib_schema.traffic import DefinitionTraffic

_MAX_SINGLE_BINS = 8
"""Up to this many different sizes have a bin each; more are grouped by powers of two."""


@attrs.frozen
class Bin:
    """The number of workloads with a size in a range."""

    least: int
    most: int
    workloads: int

    def __str__(self) -> str:
        return str(self.least) if self.least == self.most else f"{self.least}-{self.most}"


@attrs.frozen
class DefinitionSurvey:
    """The workloads of one definition."""

    name: str
    op_type: str
    workloads: int
    distinct_axes: int
    """Different combinations of the variable axes' sizes."""
    axes: Mapping[str, Sequence[Bin]]
    inputs: Mapping[str, Mapping[str, int]]
    """Number of workloads that give each input as ``random``, ``scalar`` or ``safetensors``."""
    blobs: int
    """Files of tensors that exist."""
    blob_bytes: int
    missing: Sequence[str]
    """Files of tensors that workloads name and that do not exist."""
    calls: int
    """Calls that processes counted while they traced."""
    recorded_calls: int
    """Number of calls whose sizes and layout a workload has."""


def survey(
    trace_set: TraceSet, traffic: Mapping[str, DefinitionTraffic], names: Iterable[str] | None = None
) -> list[DefinitionSurvey]:
    """Survey the workloads of a data set, by definition.

    Raises:
        UnknownName: There is no such definition.
    """
    chosen = sorted(trace_set.definitions if names is None else set(names))
    return [_of_definition(trace_set, trace_set.get_definition(name), traffic.get(name)) for name in chosen]


def _of_definition(trace_set: TraceSet, definition: Definition, traffic: DefinitionTraffic | None) -> DefinitionSurvey:
    workloads = [trace.workload for trace in trace_set.workloads.get(definition.name, ())]
    axes = {axis: histogram([w.axes[axis] for w in workloads if axis in w.axes]) for axis in definition.var_axes}
    root = trace_set.workloads_path.parent
    sources = (source for workload in workloads for source in workload.inputs.values())
    named = sorted({source.path for source in sources if isinstance(source, SafetensorsInput)})
    files = [root / path for path in named if (root / path).is_file()]
    return DefinitionSurvey(
        name=definition.name,
        op_type=definition.op_type,
        workloads=len(workloads),
        distinct_axes=len({tuple(sorted(workload.axes.items())) for workload in workloads}),
        axes=axes if workloads else {},
        inputs=_input_types(definition, workloads),
        blobs=len(files),
        blob_bytes=sum(file.stat().st_size for file in files),
        missing=[path for path in named if not (root / path).is_file()],
        calls=0 if traffic is None else traffic.calls,
        recorded_calls=0 if traffic is None else round(sum(traffic.calls_by_workload(workloads).values())),
    )


def _input_types(definition: Definition, workloads: Sequence[Workload]) -> dict[str, dict[str, int]]:
    """Number of workloads that give an input in each way; inputs that no workload gives are left out."""
    names = dict.fromkeys([*definition.inputs, *(name for workload in workloads for name in workload.inputs)])
    types = {name: Counter(w.inputs[name].type for w in workloads if name in w.inputs) for name in names}
    return {name: dict(sorted(counts.items())) for name, counts in types.items() if counts}


def histogram(sizes: Sequence[int]) -> list[Bin]:
    """A histogram: a bin for each size if there are few, else one for each power of two that occurs."""
    counts = Counter(sizes)
    if len(counts) <= _MAX_SINGLE_BINS:
        return [Bin(size, size, counts[size]) for size in sorted(counts)]
    by_power: Counter[int] = Counter()
    for size, count in counts.items():
        by_power[size.bit_length()] += count
    return [Bin((1 << power) >> 1, (1 << power) - 1, by_power[power]) for power in sorted(by_power)]
