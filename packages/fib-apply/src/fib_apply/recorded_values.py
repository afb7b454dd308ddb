"""Values of recorded workloads for calls in compiled graphs: what kernels read as addresses, counts and scalars.

Floats are synthesized, because no kernel takes them for addresses. Integers, booleans and scalars are those of a
recorded workload of the same sizes. Values that fib-bench would draw are not available, because engines install none
of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fib_schema import Definition, FibError, SafetensorsInput, ScalarInput, TensorSpec, TraceSet, Workload

from .key import ApplyKey

SYNTHESIZED = frozenset({"float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"})
"""Types whose values are synthesized."""
_MAX_ELEMENTS = 1 << 20
"""Of one input: values travel as text."""


class NoValues(Exception):
    """A key whose calls cannot be made; the message is the reason."""


def recorded_values(trace_set: TraceSet | None, definition: Definition, key: ApplyKey) -> dict[str, Any]:
    """The values that calls of a key need, by input: numbers and nested lists.

    Args:
        trace_set: Has the workloads; None if none are to be read.
        definition: Of the calls.
        key: Of the calls.

    Raises:
        NoValues: An input is needed that no workload of these sizes records.
    """
    if key.feats or dict(key.axes).keys() != set(definition.var_axes):
        raise NoValues("its key has more or fewer parts than the variable axes")
    needed = {
        name: spec for name, spec in definition.inputs.items() if not spec.optional and spec.dtype not in SYNTHESIZED
    }
    workloads = [] if trace_set is None else _workloads(trace_set, definition.name, key)
    problem = _missing(next(iter(needed)), definition) if needed else ""
    for workload in workloads:
        try:
            return _values(trace_set, definition, workload, needed)
        except (NoValues, FibError, OSError, ImportError) as error:
            problem = str(error)
    if needed:
        raise NoValues(problem)
    return {}


def _missing(name: str, definition: Definition) -> str:
    return f"{name} is {definition.inputs[name].dtype}, and no workload of these sizes records its values"


def _workloads(trace_set: TraceSet, name: str, key: ApplyKey) -> list[Workload]:
    """The recorded workloads of these sizes, each once."""
    found = [trace.workload for kind in (trace_set.workloads, trace_set.traces) for trace in kind.get(name, ())]
    sizes = dict(key.axes)
    return list({workload.uuid: workload for workload in found if dict(workload.axes) == sizes}.values())


def _values(
    trace_set: TraceSet | None, definition: Definition, workload: Workload, needed: Mapping[str, TensorSpec]
) -> dict[str, Any]:
    from fib_schema.blobs import load_tensor

    values: dict[str, Any] = {}
    for name, spec in definition.inputs.items():
        given = workload.inputs.get(name)
        if isinstance(given, ScalarInput):
            values[name] = given.value
        elif name in needed:
            if not isinstance(given, SafetensorsInput) or trace_set is None:
                raise NoValues(_missing(name, definition))
            tensor = load_tensor(trace_set.root, given.path, given.tensor_key)
            if tensor.numel() > _MAX_ELEMENTS or spec.is_scalar:
                raise NoValues(f"{name} has {tensor.numel()} recorded elements")
            values[name] = tensor.tolist()
    return values
