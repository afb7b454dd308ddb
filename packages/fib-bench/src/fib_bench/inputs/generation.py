"""Input generation: seeded, reproducible, valid inputs of a workload.

`make_inputs` takes scalars from the workload, reads tensors from blobs, and synthesizes random
inputs (`synthesis`); missing blobs are synthesized on request. It then checks the constraints of
the definition and refuses inputs that violate them, and arranges the inputs that are not contiguous in
the layout that the workload states.

Random numbers are drawn on the target device, because drawing a large weight on a CPU takes
seconds. Equal seeds therefore give equal inputs on devices of one type (CPU or CUDA) only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

import attrs
import torch
from fib_compile.device import dtype_str_to_python_dtype
from fib_schema import (
    ConstraintError,
    Definition,
    DType,
    InvalidField,
    RandomInput,
    SafetensorsInput,
    ScalarInput,
    TensorSpec,
    UnknownName,
    Workload,
    evaluate_constraint,
)
from fib_schema.blobs import BlobError, load_tensor
from fib_schema.strides import workload_strides

from ..config.model import DISTRIBUTIONS
from ..errors import InputError
from .makers import InputDraft, SynthesisError, enlarge_totals, tensor_dtype
from .problem_generator import generator_of
from .synthesis import Role, is_distributable, role_of, synthesis_order, synthesize_input

Value = torch.Tensor | int | float | bool | None
NOTHING_GIVEN: Mapping[str, torch.Tensor] = MappingProxyType({})


@attrs.frozen(eq=False)
class InputValues:
    """One set of inputs."""

    values: dict[str, Value]
    """Values by name, in the definition's order."""
    synthesized: tuple[str, ...]
    """The inputs whose blobs are missing, and which were made instead."""
    axes: dict[str, int]
    """Sizes of the axes that vary; larger than those of the workload where these exclude all offsets of its op."""


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
    """Make one set of inputs, by name, in the definition's order; see `make_input_values`.

    Args:
        definition: The definition that the inputs belong to.
        workload: Axis values and the source of each input.
        seed: Equal seeds give equal inputs on equal devices.
        root: Folder of the data set, for blobs.
        synthesize_missing: Whether missing blobs are replaced by synthesized values.
        device: Device of all tensors.
        distribution: One of `config.DISTRIBUTIONS`. It changes plain inputs only; the values of
            all other inputs do not depend on it. See `distributions_of`.

    Returns:
        The inputs by name: a tensor, a scalar, or None for an optional input without a source.

    Raises:
        InputError: An input cannot be made, or violates the definition.
        UnknownName: No distribution has this name.
    """
    return make_input_values(
        definition,
        workload,
        seed=seed,
        root=root,
        synthesize_missing=synthesize_missing,
        device=device,
        distribution=distribution,
    ).values


def make_input_values(
    definition: Definition,
    workload: Workload,
    *,
    seed: int,
    root: Path | None,
    synthesize_missing: bool,
    device: torch.device | str,
    distribution: str,
    given: Mapping[str, torch.Tensor] = NOTHING_GIVEN,
) -> InputValues:
    """Make one set of inputs as `make_inputs` does, and state what was missing; `given` is from a problem generator."""
    if distribution not in DISTRIBUTIONS:
        raise UnknownName("distribution", distribution, DISTRIBUTIONS)
    text = f"{definition.name}\0{workload.uuid}\0{seed}"
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1
    with refusing(definition, workload):
        _check_names(definition, workload)
        draft = InputDraft(definition, _axis_sizes(definition, workload), seed, torch.device(device), distribution)
        draft.values |= given
        _check_given(definition, workload, given)
    pending = _read_sources(draft, workload, root, synthesize_missing)
    synthesized = tuple(name for name in pending if isinstance(workload.inputs[name], SafetensorsInput))
    with refusing(definition, workload):
        enlarge_totals(draft, [name for name in synthesized if role_of(definition, name) is Role.OFFSETS])
    for name in synthesis_order(definition, pending):
        with refusing(definition, workload, name):
            synthesize_input(draft, name)
    for name, value in draft.values.items():  # blobs and structure, which makers read on the CPU
        draft.values[name] = value.to(draft.device) if isinstance(value, torch.Tensor) else value
    with refusing(definition, workload):
        _check_constraints(draft, workload)
    _arrange(draft, workload)
    values = {name: draft.values[name] for name in definition.inputs}
    return InputValues(values, synthesized, {axis: draft.axes[axis] for axis in definition.var_axes})


@contextmanager
def refusing(definition: Definition, workload: Workload, name: str = "") -> Iterator[None]:
    """Say of which input of which workload a problem is; `InputError` if the block raised `SynthesisError`."""
    try:
        yield
    except SynthesisError as error:
        raise InputError(definition.name, workload.uuid, name, str(error)) from error


def distributions_of(definition: Definition, wanted: Sequence[str]) -> tuple[str, ...]:
    """Return those of the wanted distributions (`config.DISTRIBUTIONS`) that apply to a definition.

    ``normal`` always applies, the others where some input is distributable (`synthesis.is_distributable`). Outputs of
    booleans exclude ``zeros_and_ones``: a comparison with the mean of equal values is a tie.
    """
    if not any(is_distributable(definition, name) for name in definition.inputs):
        return ("normal",)
    has_booleans = any(spec.dtype == DType.BOOL for spec in definition.outputs.values())
    return tuple(name for name in wanted if not (has_booleans and name == "zeros_and_ones")) or ("normal",)


def _check_names(definition: Definition, workload: Workload) -> None:
    """Check that the definition has all inputs and axes that the workload names; one may be misspelt."""
    for kind, given, known in (("input", workload.inputs, definition.inputs), ("axis", workload.axes, definition.axes)):
        for name in given:
            if name not in known:
                raise SynthesisError(f"the workload gives a value: {UnknownName(kind, name, tuple(known))}")


def _check_given(definition: Definition, workload: Workload, given: Mapping[str, torch.Tensor]) -> None:
    generator = generator_of(definition)
    if missing := [name for name in generator.names(workload) if name not in given]:
        problem = f"input {missing[0]!r} is made by {generator.function!r} of the reference, which runs in a sandbox"
        raise SynthesisError(f"{problem}: use fib_bench.Benchmark or Evaluator")


def _axis_sizes(definition: Definition, workload: Workload) -> dict[str, int]:
    """Return the sizes of all axes; the workload must give all that vary, and not contradict the definition."""
    for axis, size in definition.const_axes.items():
        if workload.axes.get(axis, size) != size:
            raise SynthesisError(f"axis {axis!r} is {size} in the definition and {workload.axes[axis]} in the workload")
    if missing := [axis for axis in definition.var_axes if axis not in workload.axes]:
        raise SynthesisError(f"the workload gives no value for axis {missing[0]!r}")
    return definition.const_axes | {axis: workload.axes[axis] for axis in definition.var_axes}


def _read_sources(draft: InputDraft, workload: Workload, root: Path | None, synthesize_missing: bool) -> list[str]:
    """Add the inputs with a literal value or a blob to the draft; return the names of all others."""
    pending = []
    for name in draft.definition.inputs:
        source = workload.inputs.get(name)
        with refusing(draft.definition, workload, name):
            try:
                if isinstance(source, RandomInput):
                    pending += [name] if name not in draft.values else []
                else:
                    draft.values[name] = _read_source(draft, name, source, root)
            except BlobError as error:
                if not synthesize_missing:
                    hint = "; get the blobs, or pass --synthesize-missing to make valid inputs"
                    raise SynthesisError(f"{error}{hint}") from error
                pending.append(name)
    return pending


def _read_source(
    draft: InputDraft, name: str, source: ScalarInput | SafetensorsInput | None, root: Path | None
) -> Value:
    spec = draft.spec(name)
    if isinstance(source, ScalarInput):
        return _scalar(spec, source.value)
    if isinstance(source, SafetensorsInput):
        return _blob(spec, source, draft, name, root)
    if spec.optional:
        return None
    raise SynthesisError("the workload gives no source: a random input, a blob or a scalar")


def _scalar(spec: TensorSpec, value: float | bool) -> Value:
    if spec.shape is not None:
        raise SynthesisError(f"the workload gives a scalar for a tensor of shape {list(spec.shape)}")
    wanted = dtype_str_to_python_dtype(spec.dtype)
    if wanted is float and type(value) is not bool:
        return float(value)
    if type(value) is not wanted:
        raise SynthesisError(f"the workload gives {value!r}, expected a scalar of dtype {spec.dtype}")
    return value


def _blob(spec: TensorSpec, source: SafetensorsInput, draft: InputDraft, name: str, root: Path | None) -> Value:
    tensor = load_tensor(root, source.path, source.tensor_key)
    wanted, dtype = draft.shape(name), tensor_dtype(spec)
    if spec.dtype == DType.FLOAT4_E2M1 and tensor.dtype in {torch.uint8, torch.int8}:
        tensor = tensor.view(dtype)  # safetensors files store pairs as bytes
    if tuple(tensor.shape) != wanted:
        raise SynthesisError(f"the blob {source.path} has shape {tuple(tensor.shape)}, the axes say {wanted}")
    if tensor.dtype != dtype:
        raise SynthesisError(f"the blob {source.path} has dtype {tensor.dtype}, expected {spec.dtype}")
    if spec.shape is None:
        item: int | float | bool = tensor.item()
        return item
    return tensor


def _check_constraints(draft: InputDraft, workload: Workload) -> None:
    names = {**draft.axes, **draft.values}
    for constraint in draft.definition.constraints:
        try:
            holds = evaluate_constraint(constraint, names)
        except ConstraintError as error:
            raise SynthesisError(str(error)) from error
        if not holds:
            sizes = ", ".join(f"{axis}={size}" for axis, size in workload.axes.items())
            raise SynthesisError(f"constraint {constraint!r} does not hold (axes {sizes})")


def _arrange(draft: InputDraft, workload: Workload) -> None:
    """Give the inputs that are not contiguous the strides that the workload states."""
    with refusing(draft.definition, workload):
        try:
            found = workload_strides(draft.definition, workload)
        except InvalidField as error:
            raise SynthesisError(str(error)) from error
    for name, strides in found.items():
        if (value := draft.tensor(name)) is not None:
            with refusing(draft.definition, workload, name):
                if draft.spec(name).dtype == DType.FLOAT4_E2M1:
                    raise SynthesisError(
                        "inputs of float4_e2m1 are contiguous: two elements share a byte; remove it from the layout"
                    )
            made = torch.empty_strided(value.shape, tuple(strides), dtype=value.dtype, device=value.device)
            draft.values[name] = made.copy_(value)
