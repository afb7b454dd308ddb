"""Makes the inputs of a workload: seeded, reproducible, valid for their op.

What a workload states literally is taken; tensors in blobs are read; random inputs, and missing
blobs if asked to, are made by the rules in `synthesis`. The definition's constraints are checked
against the result: inputs that contradict them are refused and never handed to a kernel.

Random numbers are drawn on the device that they are for, since a large weight takes seconds on a
CPU: equal seeds give equal inputs on devices of one kind, others on another kind.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

import torch
from fib_compile.device import dtype_str_to_python_dtype
from fib_schema import (
    ConstraintError,
    Definition,
    DType,
    RandomInput,
    SafetensorsInput,
    ScalarInput,
    TensorSpec,
    UnknownName,
    Workload,
    evaluate_constraint,
)
from fib_schema.blobs import BlobError, load_tensor

from ..errors import InputError
from .distributions import check_distribution
from .synthesis import CannotSynthesise, Nature, Rule, Sketch, rule_of, synthesise, tensor_dtype

Value = torch.Tensor | int | float | bool | None
_CHOOSES = re.compile(r"\b(topk|argmax|argmin|argsort|sort|multinomial)\(")
"""What a reference calls that chooses by value."""


def make_inputs(
    definition: Definition,
    workload: Workload,
    *,
    seed: int,
    root: Path | None = None,
    synthesize_missing: bool = False,
    device: torch.device | str = "cpu",
    distribution: str = "normal",
) -> dict[str, Value]:
    """Make one set of inputs, by name, in the definition's order.

    Args:
        definition: What the inputs are for.
        workload: Axis values and where each input comes from.
        seed: Equal seeds give equal inputs on equal devices.
        root: The data set's folder, for blobs.
        synthesize_missing: Make valid values where a blob is missing.
        device: Where all tensors are to be.
        distribution: One of `config.DISTRIBUTIONS`; it changes plain inputs only, and what
            is drawn for the others does not depend on it. See `distributions_of`.

    Raises:
        InputError: An input cannot be made, or contradicts the definition.
        UnknownName: There is no such distribution.
    """
    check_distribution(distribution)
    _check_names(definition, workload)
    axes = _axis_sizes(definition, workload)
    seed = _derived_seed(definition, workload, seed)
    sketch = Sketch(definition, axes, seed, torch.device(device), distribution)
    pending: list[str] = []
    for name, spec in definition.inputs.items():
        source = workload.inputs.get(name)
        try:
            match source:
                case ScalarInput(value=value):
                    sketch.values[name] = _scalar(spec, value)
                case SafetensorsInput():
                    sketch.values[name] = _blob(spec, source, sketch, name, root)
                case None if spec.optional:
                    sketch.values[name] = None
                case None:
                    raise CannotSynthesise("the workload does not say where it comes from")
                case RandomInput():
                    pending.append(name)
        except BlobError as error:
            if not synthesize_missing:
                hint = "; get the blobs, or pass --synthesize-missing to make valid inputs"
                raise InputError(definition.name, workload.uuid, name, f"{error}{hint}") from error
            pending.append(name)
        except CannotSynthesise as error:
            raise InputError(definition.name, workload.uuid, name, str(error)) from error
    _fill_in(sketch, pending, workload)
    _move_to_device(sketch)
    _check_constraints(sketch, workload)
    return {name: sketch.values[name] for name in definition.inputs}


def distributions_of(definition: Definition, wanted: Sequence[str]) -> tuple[str, ...]:
    """Those of the wanted distributions that make a difference and leave the outputs defined.

    ``normal`` always does. The others need plain inputs to change, and nothing that is chosen by
    their values: rows of ones are full of ties, and which of two equal numbers a kernel takes is
    its own affair. Where the choice depends on inputs of its own (routing logits), these stay
    normal, and the others may change.

    Args:
        definition: What the inputs are for.
        wanted: Names out of `config.DISTRIBUTIONS`.

    Returns:
        The names in their order; ``("normal",)`` if none is left.

    Raises:
        UnknownName: There is no such distribution.
    """
    for name in wanted:
        check_distribution(name)
    if not _may_be_distributed(definition):
        return ("normal",)
    return tuple(wanted) or ("normal",)


def _may_be_distributed(definition: Definition) -> bool:
    if any(spec.is_integer or spec.dtype == DType.BOOL for spec in definition.outputs.values()):
        return False
    rules = [_rule_of(definition, name) for name in definition.inputs]
    has_scores = any(rule is not None and rule.nature is Nature.SCORES for rule in rules)
    if _CHOOSES.search(definition.reference) and not has_scores:
        return False
    return any(rule is not None and rule.is_plain for rule in rules)


def _rule_of(definition: Definition, name: str) -> Rule | None:
    try:
        return rule_of(definition, name)
    except CannotSynthesise:
        return None


def _check_names(definition: Definition, workload: Workload) -> None:
    """Refuse a name that would match nothing: it is a slip for one that then has no value.

    Raises:
        InputError: The workload names an input or an axis that the definition does not have.
    """
    for kind, given, known in (
        ("input", workload.inputs, definition.inputs),
        ("axis", workload.axes, definition.axes),
    ):
        for name in given:
            if name not in known:
                problem = str(UnknownName(kind, name, tuple(known)))
                raise InputError(definition.name, workload.uuid, "", f"the workload gives a value: {problem}")


def _axis_sizes(definition: Definition, workload: Workload) -> dict[str, int]:
    """The sizes of all axes.

    Raises:
        InputError: The workload lacks one, or contradicts the definition.
    """
    for axis, size in definition.const_axes.items():
        if workload.axes.get(axis, size) != size:
            problem = f"axis {axis!r} is {size} by the definition, and {workload.axes[axis]} by the workload"
            raise InputError(definition.name, workload.uuid, "", problem)
    try:
        variable = {axis: workload.axes[axis] for axis in definition.var_axes}
    except KeyError as error:
        problem = f"the workload gives no value for axis {error.args[0]!r}"
        raise InputError(definition.name, workload.uuid, "", problem) from error
    return definition.const_axes | variable


def _fill_in(sketch: Sketch, pending: list[str], workload: Workload) -> None:
    """Make the pending inputs: integers first, for other inputs depend on their values."""
    specs = sketch.definition.inputs
    for name in sorted(pending, key=lambda n: not specs[n].is_integer):
        if name in sketch.values:
            continue  # made together with another input
        try:
            synthesise(sketch, name)
        except CannotSynthesise as error:
            raise InputError(sketch.definition.name, workload.uuid, name, str(error)) from error


def _move_to_device(sketch: Sketch) -> None:
    """Move blobs and indices, which were needed on the CPU so far."""
    for name, value in sketch.values.items():
        if isinstance(value, torch.Tensor):
            sketch.values[name] = value.to(sketch.device)


def _check_constraints(sketch: Sketch, workload: Workload) -> None:
    names = {**sketch.axes, **sketch.values}
    for constraint in sketch.definition.constraints:
        try:
            holds = evaluate_constraint(constraint, names)
        except ConstraintError as error:
            raise InputError(sketch.definition.name, workload.uuid, "", str(error)) from error
        if not holds:
            sizes = ", ".join(f"{axis}={size}" for axis, size in workload.axes.items())
            problem = f"constraint {constraint!r} does not hold (axes {sizes})"
            raise InputError(sketch.definition.name, workload.uuid, "", problem)


def _scalar(spec: TensorSpec, value: float | bool) -> Value:
    if spec.shape is not None:
        raise CannotSynthesise(f"the workload gives a scalar for a tensor of shape {list(spec.shape)}")
    wanted = dtype_str_to_python_dtype(spec.dtype)
    if wanted is float and type(value) is not bool:
        return float(value)
    if type(value) is not wanted:
        raise CannotSynthesise(f"the workload gives {value!r}, expected a scalar of dtype {spec.dtype}")
    return value


def _blob(spec: TensorSpec, source: SafetensorsInput, sketch: Sketch, name: str, root: Path | None) -> Value:
    tensor = load_tensor(root, source.path, source.tensor_key)
    wanted = sketch.shape(name)
    dtype = tensor_dtype(spec)
    if spec.dtype == DType.FLOAT4_E2M1 and tensor.dtype in {torch.uint8, torch.int8}:
        tensor = tensor.view(dtype)  # files keep the pairs as bytes
    if tuple(tensor.shape) != wanted:
        found = tuple(tensor.shape)
        raise CannotSynthesise(f"the blob {source.path} has shape {found}, the axes say {wanted}")
    if tensor.dtype != dtype:
        raise CannotSynthesise(f"the blob {source.path} has dtype {tensor.dtype}, expected {spec.dtype}")
    if spec.shape is None:
        item: int | float | bool = tensor.item()
        return item
    return tensor


def _derived_seed(definition: Definition, workload: Workload, seed: int) -> int:
    text = f"{definition.name}\0{workload.uuid}\0{seed}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1
