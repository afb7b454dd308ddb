"""The public flashinfer-trace data set, and small workloads for its definitions."""

import os
import re
from functools import cache
from pathlib import Path

import attrs
import pytest
from fib_bench.transport.arenas import call_bytes
from fib_schema import AxisConst, RandomInput, TraceSet, Workload

SIZES = {
    "M": 3,
    "batch_size": 3,
    "len_cu_seqlens": 4,
    "len_indptr": 4,
    "max_seq_len": 64,
    "num_kv_heads": 2,
    "num_kv_indices": 20,
    "num_pages": 24,
    "num_qo_heads": 4,
    "num_seqs": 3,
    "num_tokens": 5,
    "pool_size": 8,
    "seq_len": 3,
    "state_cache_size": 8,
    "total_kv": 20,
    "total_q": 12,
    "total_seq_len": 12,
}
"""Small values for all variable axes of the data set; together they satisfy its constraints."""
_WIDE, _NARROWING = 512, 16


def data_set_path():
    """The folder of the data set: the variable FIB_TEST_DATASET, or ``shared/`` beside the checkout."""
    given = os.environ.get("FIB_TEST_DATASET")
    return Path(given) if given else Path(__file__).parents[3] / "shared" / "flashinfer-trace"


needs_data_set = pytest.mark.skipif(
    not (data_set_path() / "definitions").is_dir(),
    reason="the public flashinfer-trace data set is not here; set FIB_TEST_DATASET to its folder",
)


@cache
def public_set():
    """The data set, opened once per process."""
    return TraceSet.from_path(data_set_path())


def definition_names():
    """The names of all definitions, for parametrization; empty without the data set."""
    return list(public_set().definitions) if (data_set_path() / "definitions").is_dir() else []


def small_workload(definition, inputs=None):
    """A workload with `SIZES`, and random inputs by default."""
    axes = {axis: SIZES[axis] for axis in definition.var_axes}
    return Workload(axes, inputs or {name: RandomInput() for name in definition.inputs}, "small")


def narrowed(definition):
    """A definition whose wide constant axes are a sixteenth of the original ones, in its reference too."""
    wide = {name: axis for name, axis in definition.axes.items() if isinstance(axis, AxisConst) and axis.value >= _WIDE}
    reference = definition.reference
    for name, axis in wide.items():
        reference = re.sub(rf"\b{name} == {axis.value}\b", f"{name} == {axis.value // _NARROWING}", reference)
    axes = {name: AxisConst(axis.value // _NARROWING) for name, axis in wide.items()}
    return attrs.evolve(definition, axes={**definition.axes, **axes}, reference=reference)


def size_bytes(definition):
    """The size of the inputs and outputs of the definition's small workload."""
    return call_bytes(definition, small_workload(definition))
