"""Records of an imported problem: the definition, workloads with their values, and the tolerances of the problem."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import attrs
import torch
import yaml
from fib_schema import Definition, RandomInput, SafetensorsInput, ScalarInput, Trace, TraceSet, Workload
from fib_schema.files import atomic_write
from fib_schema.workload import InputSpec

from ..config.benchmark import DATA_SET_FILE
from ..inputs.synthesis import Role, role_of
from .problem import Argument, Problem

_MIN_NORMAL = 1024
"""Elements from which on values tell a standard normal distribution from others; fewer are recorded."""


@attrs.frozen
class Imported:
    """A problem in a data set."""

    definition: Definition
    workloads: tuple[Workload, ...]
    recorded_bytes: int
    notes: tuple[str, ...] = ()
    """Hints, such as settings to add."""


def add_problem(root: Path, problem: Problem, *, random_inputs: bool = False) -> Imported:
    """Add a problem to a data set.

    Values that look like standard normal ones become random inputs, which a benchmark draws anew. All others are
    recorded, because the operation may need them as they are: integers, parameters of a model, uniform values.

    Args:
        root: The data set.
        problem: The problem.
        random_inputs: Make random inputs of all floating inputs but the parameters of a model.

    Raises:
        ProblemError: The problem cannot be described by a definition.
        DuplicateName: The data set has another definition of this name.
        OSError: A file cannot be written.
    """
    trace_set = TraceSet.from_path(root)
    definition = problem.to_definition()
    if definition.name in trace_set.definition_names() and trace_set.get_definition(definition.name) == definition:
        known = tuple(trace.workload for trace in trace_set.workloads.get(definition.name, ()))
        return Imported(definition, known, 0, ("the data set has this problem already; its workloads stay",))
    trace_set.add_definitions([definition])
    workloads, size = [], 0
    for call in problem.calls:
        uuid = f"{definition.name}-{call.name}"
        kept = {
            name: value.contiguous().cpu()
            for name, value in call.inputs.items()
            if isinstance(value, torch.Tensor) and not _is_random(problem, definition, name, value, random_inputs)
        }
        path = trace_set.add_workload_blob_tensor(definition.name, uuid, kept) if kept else ""
        inputs = {name: _input(name, value, kept, path) for name, value in call.inputs.items()}
        shapes = [tuple(v.shape) if isinstance(v, torch.Tensor) else None for v in call.inputs.values()]
        workloads.append(Workload(definition.get_axes_values(shapes), inputs, uuid))
        size += sum(tensor.numel() * tensor.element_size() for tensor in kept.values())
    trace_set.add_traces([Trace(definition.name, workload) for workload in workloads])
    return Imported(definition, tuple(workloads), size, tuple(_tolerance_notes(root, problem)))


def _is_random(problem: Problem, definition: Definition, name: str, value: torch.Tensor, random_inputs: bool) -> bool:
    """Whether a benchmark may draw the values, as standard normal ones."""
    if not value.is_floating_point() or name in problem.recorded or role_of(definition, name) is not Role.PLAIN:
        return False
    return random_inputs or _looks_normal(value)


def _looks_normal(value: torch.Tensor) -> bool:
    if value.numel() < _MIN_NORMAL:
        return False
    sample = value.flatten()[: 1 << 20].double()
    mean, deviation = float(sample.mean()), float(sample.std())
    inside = float((sample.abs() < 1).double().mean())  # 0.683 of normal values, 0.577 of uniform ones of deviation 1
    return abs(mean) < 0.1 and abs(deviation - 1) < 0.1 and abs(inside - 0.683) < 0.05


def _input(name: str, value: Argument, kept: Mapping[str, torch.Tensor], path: str) -> InputSpec:
    if not isinstance(value, torch.Tensor):
        return ScalarInput(value)
    return SafetensorsInput(path, name) if name in kept else RandomInput()


def _tolerance_notes(root: Path, problem: Problem) -> list[str]:
    """Write the problem's tolerances to the settings of the data set, or say what to add to settings that exist."""
    bounds = {name: value for name, value in (("rtol", problem.rtol), ("atol", problem.atol)) if value is not None}
    if not bounds:
        return []
    settings = yaml.safe_dump({"definition_config": {problem.name: bounds}})
    file = root / DATA_SET_FILE
    if not file.exists():
        atomic_write(file, settings.encode())
        return []
    return [f"the tolerances of the problem are not in {file}, which exists; add to it:\n{settings.rstrip()}"]
