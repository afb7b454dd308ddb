"""Counts the workloads of a data set for which `light`, the share of the attainable speed, can be stated.

It is stated where the work of a call is known (`fib_bench.timing.work`). Work that depends on page tables, offsets and
choices of experts is counted from such inputs, which are synthesized here as ``--synthesize-missing`` does. Nothing is
measured, so that no GPU is needed. Usage: ``python bench_light.py DATA_SET``.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from pathlib import Path

from fib_bench.inputs.synthesis import InputDraft, SynthesisError, synthesis_order, synthesize_input
from fib_bench.timing.work import Values, work_of
from fib_schema import Definition, ScalarInput, TraceSet, Workload

_MAX_ELEMENTS = 1 << 24
"""Larger inputs are left out: no work is counted from the values of caches and weights."""


def has_work(definition: Definition, workload: Workload) -> bool:
    """Whether the work of a workload is known, and is not nothing; not where no valid inputs can be made."""
    try:
        values = _values(definition, workload)
    except SynthesisError:
        return False
    work = work_of(definition, workload.axes, values)
    return work is not None and work.read_bytes + work.written_bytes > 0


def _values(definition: Definition, workload: Workload) -> Values:
    draft = InputDraft(definition, {**definition.const_axes, **workload.axes}, seed=0)
    scalars = {name: source.value for name, source in workload.inputs.items() if isinstance(source, ScalarInput)}
    draft.values.update(scalars)
    names = [name for name in workload.inputs if math.prod(draft.shape(name)) <= _MAX_ELEMENTS]
    for name in synthesis_order(definition, (name for name in names if name not in scalars)):
        synthesize_input(draft, name)
    return draft.values


def count(root: Path) -> Mapping[str, tuple[int, int]]:
    """By op_type: the workloads whose work is known, and all."""
    trace_set, found = TraceSet.from_path(root), dict[str, tuple[int, int]]()
    for name, traces in trace_set.workloads.items():
        definition = trace_set.get_definition(name)
        known, total = found.get(definition.op_type, (0, 0))
        known += sum(has_work(definition, trace.workload) for trace in traces)
        found[definition.op_type] = known, total + len(traces)
    return found


def main() -> None:
    """Print the counts of each op_type and of the whole data set."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data_set", metavar="DATA_SET", type=Path)
    found = count(parser.parse_args().data_set)
    for op_type, (known, total) in sorted(found.items()):
        print(f"{op_type:16} {known} of {total}")
    known, total = (sum(counts[index] for counts in found.values()) for index in (0, 1))
    print(f"light can be stated for {known} of {total} workloads ({known / total:.1%})")


if __name__ == "__main__":
    main()
