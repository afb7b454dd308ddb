"""The data set of a published run. Definitions of a public data set with workloads and our own solutions.

`write_set` writes it. The solutions are those that ``tests-integration/solutions/table.json`` names for a definition.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import attrs
from fib_bench.transport.arenas import call_bytes
from fib_compile.registry import reference_solution
from fib_schema import Definition, RandomInput, Solution, Trace, TraceSet, Workload
from gpu_session import spread, volume
from solution_table import capturable_entry, entries_for

RECORDED, CHOSEN = "recorded", "chosen"
"""Origins of the sizes of a workload: the public data set, or `sizes_of`."""
_COST_OF_REFERENCE = {
    "rmsnorm": 1, "rope": 1, "gemm": 2, "sampling": 4, "mamba_ssu": 4, "gqa_ragged": 8, "mla_ragged": 8,
    "dsa_paged": 16, "gqa_paged": 16, "mla_paged": 16, "gdn": 32, "moe": 64,
}  # fmt: skip
"""Ranks of op_types by the time of a reference for inputs of one size: loops in Python take long."""
_MAX_BYTES = 4 << 30
"""Of one call: those of four evaluations in flight, with the copies that checks need, fit the memory of a device."""


@attrs.frozen
class Chosen:
    """A definition with its workloads and solutions."""

    definition: Definition
    workloads: tuple[Workload, ...]
    sizes: str
    """One of `RECORDED` and `CHOSEN`."""
    solutions: tuple[Solution, ...]

    @property
    def cost(self) -> float:
        """A rank by the time of an evaluation."""
        size = max(call_bytes(self.definition, workload) for workload in self.workloads)
        return _COST_OF_REFERENCE.get(self.definition.op_type, 32) * (size + (1 << 20))


def choose(
    public: TraceSet, hardware: str, workloads: int, names: Iterable[str] = (), *, one_each: bool = False
) -> list[Chosen]:
    """Choose workloads and solutions of definitions, the cheapest definition first.

    Args:
        public: The public data set.
        hardware: The device, as `hardware_from_device` names it.
        workloads: The number of workloads of each definition.
        names: Definitions; all by default. Calls of more than 4 GiB are left out.
        one_each: Choose the solution that a CUDA graph can capture, and no other.
    """
    chosen = []
    for name in list(names) or public.definition_names():
        definition = public.get_definition(name)
        some, sizes = workloads_of(public, definition, workloads)
        if some:
            solutions = solutions_of(definition, hardware)
            if one_each and (entry := capturable_entry(name)):
                solutions = [one for one in solutions if one.name == f"{name}_{word_of(entry.file)}"] or solutions
            chosen.append(Chosen(definition, tuple(some), sizes, tuple(solutions)))
    return sorted(chosen, key=lambda one: (one.cost, one.definition.name))


def write_set(root: Path, chosen: Sequence[Chosen]) -> TraceSet:
    """Write the data set into a new folder."""
    root.mkdir()
    trace_set = TraceSet.from_path(root)
    for one in chosen:
        trace_set.add_definitions([one.definition])
        trace_set.add_solutions(one.solutions)
        trace_set.add_traces([Trace(one.definition.name, workload) for workload in one.workloads])
    return trace_set


# -- workloads -----------------------------------------------------------------------------------


def workloads_of(public: TraceSet, definition: Definition, count: int) -> tuple[list[Workload], str]:
    """The recorded workloads, spread by size with the smallest and the largest first; without any, chosen ones.

    Recorded ones with an empty axis, such as a cache without pages, are left out: no input can be valid.
    """
    recorded = [trace.workload for trace in public.workloads.get(definition.name, [])]
    if recorded:
        some = [workload for workload in recorded if all(workload.axes.values()) and _fits(definition, workload)]
        return spread(some, volume)[:count], RECORDED
    inputs = {name: RandomInput() for name in definition.inputs}
    made = [
        Workload(axes, inputs, f"{definition.name}-{'-'.join(map(str, axes.values()))}")
        for axes in sizes_of(definition)
    ]
    return spread([workload for workload in made if _fits(definition, workload)], volume)[:count], CHOSEN


def _fits(definition: Definition, workload: Workload) -> bool:
    return call_bytes(definition, workload) <= _MAX_BYTES


def sizes_of(definition: Definition) -> list[dict[str, int]]:
    """Three sizes of each op_type, small to large."""
    page = definition.const_axes.get("page_size", 1)
    return [_axes_of(definition, index, page) for index in range(3)]


def _axes_of(definition: Definition, index: int, page: int) -> dict[str, int]:
    """The variable axes of one size."""
    rows, sequences = (1, 64, 2048)[index], (1, 4, 16)[index]
    is_prefill = "total_q" in definition.axes or "total_seq_len" in definition.axes
    length = 256 if is_prefill else 1024
    pages = sequences * math.ceil(length / page)
    batch = sequences if "len_indptr" in definition.axes else rows
    if definition.op_type in ("gdn", "mamba_ssu", "sampling"):
        batch = (1, 16, 64)[index]
    known = {
        "M": rows, "batch_size": batch, "num_tokens": (1, 64, 1024)[index], "seq_len": (1, 16, 128)[index],
        "len_indptr": sequences + 1, "num_kv_indices": pages, "num_pages": pages + 16,
        "total_q": sequences * length, "total_kv": sequences * length, "num_qo_heads": 32, "num_kv_heads": 8,
        "max_seq_len": 4096, "total_seq_len": sequences * length, "num_seqs": sequences,
        "len_cu_seqlens": sequences + 1, "pool_size": batch, "state_cache_size": 2 * batch,
    }  # fmt: skip
    if definition.op_type == "dsa_paged":
        known["num_pages"] = math.ceil(8192 / page)
    if definition.op_type == "gdn" and "pool_size" in definition.axes:
        known["seq_len"] = 4  # tokens of a speculative decode
    return {axis: known[axis] for axis in definition.var_axes}


# -- solutions -----------------------------------------------------------------------------------


def solutions_of(definition: Definition, hardware: str) -> list[Solution]:
    """Our solutions of a definition for a device, or its reference if there is none."""
    entries = entries_for(definition.name, device="cpu" if hardware == "cpu" else "cuda")
    made = [entry.solution(definition, hardware, f"{definition.name}_{word_of(entry.file)}") for entry in entries]
    if made:
        return made
    reference = reference_solution(definition)
    spec = attrs.evolve(reference.spec, target_hardware=(hardware,))
    return [attrs.evolve(reference, name=f"{definition.name}_reference", author="reference", spec=spec)]


def word_of(file: str) -> str:
    """The last word of a file's name: ``torch``, ``triton``, ``cu`` or ``cpp``."""
    return file.removesuffix(".py").replace(".", "_").rpartition("_")[2]
