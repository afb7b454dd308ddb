"""Input generation: seeded, reproducible, valid inputs of a workload.

`make_inputs` takes scalars from the workload, reads tensors from blobs, and synthesizes random inputs (`synthesis`);
missing blobs are synthesized on request. It then refuses inputs that violate constraints of the definition, and
arranges the inputs that are not contiguous in the layout that the workload states.

Random numbers are drawn on the target device, because drawing a large weight on a CPU takes seconds. Equal seeds
therefore give equal inputs on devices of one type (CPU or CUDA) only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import torch
from fib_compile.device import dtype_str_to_python_dtype, torch_dtype
from fib_schema import (
    AxisVar,
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
from fib_schema.padded_indices import padded_indices_of
from fib_schema.strides import workload_strides

from ..config.model import DISTRIBUTIONS
from ..errors import InputError
from . import synthesis
from .synthesis import InputDraft, Role, SynthesisError, first_axis, is_distributable, role_of

FIELD, ARGUMENTS = "input_generator", "generator_arguments"
"""The fields in ``extra`` of a definition and of a workload."""
_KEYS = frozenset({"function", "inputs", "parameters"})
_REQUEST, _LENGTH = "_request", "_request_bytes"
_RUN = """

def run(_request):
    import json, random, sys, torch
    arguments = json.loads(bytes(_request.tolist()))
    torch.manual_seed(arguments["seed"])
    random.seed(arguments["seed"])
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(arguments["seed"])
    made = {function}(arguments, _request.device)
    return tuple(made[name].detach().to(_request.device) for name in arguments["inputs"])
"""


@attrs.frozen
class ProblemGenerator:
    """The function of a definition that makes inputs, where no rule or distribution describes them.

    A definition names a top-level function of its reference, and the inputs that it makes (docs/manual/data-format)::

        "extra": {"input_generator": {"function": "make_pair", "inputs": ["a", "b", "w"], "parameters": ["w"]}}

    The call is a `Definition` of its own whose outputs are those inputs: a generator runs where references run, with
    the same limits and checks. Source: the custom inputs of NVIDIA's SOL-ExecBench, which have the same signature.
    """

    function: str
    inputs: tuple[str, ...]
    parameters: frozenset[str]
    """Inputs that timed calls may get rescaled, as recorded values are; all others only come from the function."""

    def names(self, workload: Workload) -> list[str]:
        """The inputs of a workload that it makes."""
        return [name for name in self.inputs if isinstance(workload.inputs.get(name), RandomInput)]

    def call(
        self, definition: Definition, workload: Workload, names: Sequence[str], seed: int
    ) -> tuple[Definition, Workload, dict[str, torch.Tensor]]:
        """The call that makes some inputs, as a definition with their names as outputs, a workload and its inputs."""
        scalars = {name: given.value for name, given in workload.inputs.items() if isinstance(given, ScalarInput)}
        extra: Mapping[str, Any] = workload.extra or {}
        sizes = {**definition.const_axes, **workload.axes}
        arguments = {**sizes, **scalars, **extra.get(ARGUMENTS, {}), "inputs": list(names), "seed": seed}
        request = torch.tensor(list(json.dumps(arguments).encode()), dtype=torch.int8)
        made = attrs.evolve(
            definition,
            axes={**definition.axes, _LENGTH: AxisVar()},
            inputs={_REQUEST: TensorSpec((_LENGTH,), "int8")},
            outputs={name: definition.inputs[name] for name in names},
            reference=definition.reference + _RUN.format(function=self.function),
            constraints=(),
        )
        axes = {**workload.axes, _LENGTH: len(request)}
        return made, attrs.evolve(workload, axes=axes, inputs={_REQUEST: RandomInput()}), {_REQUEST: request}


def generator_of(definition: Definition) -> ProblemGenerator:
    """The generator that a definition names, one of no inputs if none; `SynthesisError` if that is not there."""
    field = definition.extra.get(FIELD)
    if field is None:
        return ProblemGenerator("", (), frozenset())
    form = f"extra[{FIELD!r}] must be {{'function': name, 'inputs': [names], 'parameters': [names]}}"
    if not isinstance(field, Mapping) or not isinstance(field.get("function"), str) or field.keys() - _KEYS:
        raise SynthesisError(f"{form}, found {field!r:.200}")
    inputs, parameters = (tuple(field.get(key) or ()) for key in ("inputs", "parameters"))
    tensors = {name for name, spec in definition.inputs.items() if spec.shape is not None}
    unknown = [name for name in inputs if name not in tensors] + [name for name in parameters if name not in inputs]
    if unknown:
        raise SynthesisError(f"{form}: {unknown[0]!r} is no input of the definition that is a tensor")
    return ProblemGenerator(field["function"], inputs, frozenset(parameters))


Value = torch.Tensor | int | float | bool | None


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
        distribution: One of `config.DISTRIBUTIONS`, which changes plain inputs only. See `distributions_of`.

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
    given: Mapping[str, torch.Tensor] | None = None,
) -> InputDraft:
    """Make one set of inputs as `make_inputs` does, and state what was missing; `given` is from a problem generator."""
    if distribution not in DISTRIBUTIONS:
        raise UnknownName("distribution", distribution, DISTRIBUTIONS)
    text = f"{definition.name}\0{workload.uuid}\0{seed}"
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1
    with refusing(definition, workload):
        draft = InputDraft(definition, _axis_sizes(definition, workload), seed, torch.device(device), distribution)
        draft.values |= given or {}
        generator = generator_of(definition)
        if missing := [name for name in generator.names(workload) if name not in draft.values]:
            maker = f"input {missing[0]!r} is made by {generator.function!r} of the reference"
            raise SynthesisError(f"{maker}, which runs in a sandbox: use fib_bench.Benchmark or Evaluator")
        pending = _read_sources(draft, workload, root, synthesize_missing)
        draft.synthesized = [name for name in pending if isinstance(workload.inputs[name], SafetensorsInput)]
        made_offsets = [name for name in draft.synthesized if role_of(definition, name) is Role.OFFSETS]
        synthesis.enlarge_totals(draft, made_offsets)
        for name in synthesis.synthesis_order(definition, pending):
            with refusing(definition, workload, name):
                synthesis.synthesize_input(draft, name)
        for name, value in draft.values.items():  # blobs and structure, which makers read on the CPU
            draft.values[name] = value.to(draft.device) if isinstance(value, torch.Tensor) else value
        _check_constraints(draft, workload)
        _arrange(draft, workload)
    draft.values = {name: draft.values[name] for name in definition.inputs}
    return draft


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


def _axis_sizes(definition: Definition, workload: Workload) -> dict[str, int]:
    """Return the sizes of all axes; the workload must give all that vary, and misspell or contradict none."""
    for kind, given, known in (("input", workload.inputs, definition.inputs), ("axis", workload.axes, definition.axes)):
        for name in given:
            if name not in known:
                raise SynthesisError(f"the workload gives a value: {UnknownName(kind, name, tuple(known))}")
    constant, variable = definition.const_axes, definition.var_axes
    for axis, size in constant.items():
        if workload.axes.get(axis, size) != size:
            raise SynthesisError(f"axis {axis!r} is {size} in the definition and {workload.axes[axis]} in the workload")
    if missing := [axis for axis in variable if axis not in workload.axes]:
        raise SynthesisError(f"the workload gives no value for axis {missing[0]!r}")
    return constant | {axis: workload.axes[axis] for axis in variable}


def _read_sources(draft: InputDraft, workload: Workload, root: Path | None, synthesize_missing: bool) -> list[str]:
    """Add the inputs with a literal value or a blob to the draft; return the names of all others."""
    pending = []
    for name, spec in draft.definition.inputs.items():
        source = workload.inputs.get(name)
        with refusing(draft.definition, workload, name):
            if isinstance(source, RandomInput):
                pending += [] if name in draft.values else [name]
            elif isinstance(source, ScalarInput):
                draft.values[name] = _scalar(spec, source.value)
            elif isinstance(source, SafetensorsInput):
                try:
                    draft.values[name] = _blob(draft, name, source, root)
                except BlobError as error:
                    if not synthesize_missing:
                        hint = "; get the blobs, or pass --synthesize-missing to make valid inputs"
                        raise SynthesisError(f"{error}{hint}") from error
                    pending.append(name)
            elif spec.optional:
                draft.values[name] = None
            else:
                raise SynthesisError("the workload gives no source: a random input, a blob or a scalar")
    return pending


def _scalar(spec: TensorSpec, value: float | bool) -> Value:
    if spec.shape is not None:
        raise SynthesisError(f"the workload gives a scalar for a tensor of shape {list(spec.shape)}")
    wanted = dtype_str_to_python_dtype(spec.dtype)
    if wanted is float and type(value) is not bool:
        return float(value)
    if type(value) is not wanted:
        raise SynthesisError(f"the workload gives {value!r}, expected a scalar of dtype {spec.dtype}")
    return value


def _blob(draft: InputDraft, name: str, source: SafetensorsInput, root: Path | None) -> Value:
    tensor, spec = load_tensor(root, source.path, source.tensor_key), draft.definition.inputs[name]
    wanted, dtype = draft.shape(name), torch_dtype(spec.dtype)
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
    try:
        found = workload_strides(draft.definition, workload)
    except InvalidField as error:
        raise SynthesisError(str(error)) from error
    for name, strides in found.items():
        if (value := draft.tensor(name)) is not None:
            if draft.definition.inputs[name].dtype == DType.FLOAT4_E2M1:
                problem = "inputs of float4_e2m1 are contiguous: two elements share a byte; remove it from the layout"
                raise InputError(draft.definition.name, workload.uuid, name, problem)
            made = torch.empty_strided(value.shape, tuple(strides), dtype=value.dtype, device=value.device)
            draft.values[name] = made.copy_(value)


# -- index padding -------------------------------------------------------------------------------
# Page numbers lie in a buffer that is longer than their total. All calls have the same buffer and other offsets, as the
# replays of one CUDA graph have. Behind the last offset the buffer holds page numbers that are valid but belong to no
# request, or numbers that are no pages. The exact inputs of each call, for the reference, end at the last offset.

_SPARE = 64
"""Elements of the buffer that no call uses, except one that fills it."""


@attrs.frozen(eq=False)
class PaddedDraw:
    """The integers of one call; tensors have the dtypes and devices of the given ones."""

    total: int
    """Valid elements of the index inputs."""
    exact: Mapping[str, torch.Tensor]
    """Offsets, and index inputs that end at the total."""
    stale: Mapping[str, torch.Tensor]
    """Offsets, and whole buffers with pages of other requests behind the total."""
    poisoned: Mapping[str, torch.Tensor]
    """The same buffers, poisoned with numbers that are not pages."""


def draw_padded_calls(
    definition: Definition, axes: Mapping[str, int], values: Mapping[str, Value], generator: torch.Generator
) -> Sequence[PaddedDraw]:
    """Draw calls with padded indices. Their totals differ; that of the first one lies between those of others.

    There are none without padded indices, or if other integers depend on the offsets. All is drawn on the CPU.
    """
    padded, pool = padded_indices_of(definition), first_axis({**definition.const_axes, **axes}, *synthesis.POOL_AXES)
    if padded is None or not pool:
        return ()
    names = (padded.offsets, *padded.inputs)
    integers = [name for name, spec in definition.inputs.items() if spec.is_integer and name not in names]
    roles = [role_of(definition, name) for name in names]
    if roles != [Role.OFFSETS, *[Role.PAGES] * len(padded.inputs)] or not all(map(synthesis.is_last_page, integers)):
        return ()
    given = {name: value for name in names if isinstance(value := values[name], torch.Tensor)}
    offsets = given[padded.offsets].to("cpu", torch.int64)
    if len(offsets) < 2 or not int(offsets[-1]) or int(offsets[0]):
        return ()
    counts = offsets.diff()
    length = 2 * int(counts.sum()) + _SPARE
    filling = counts + fewer(counts, generator)
    filling[int(torch.randint(len(counts), (), generator=generator))] += length - int(filling.sum())
    fewest = counts.clamp(max=1)
    if len(counts) > 1 and int(fewest[:-1].sum()):
        fewest[-1] = 0  # of several requests the last one has none: engines add such requests
    calls = (fewer(counts, generator), filling, fewest, counts)

    def draw(counts: torch.Tensor) -> PaddedDraw:
        """Draw a call with these numbers of pages of its requests."""
        total = int(counts.sum())
        exact = {padded.offsets: torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])}
        stale, poisoned = dict(exact), dict(exact)
        for name in padded.inputs:
            drawn = torch.randint(pool, (length,), generator=generator)
            invalid = torch.tensor([-1, pool, torch.iinfo(given[name].dtype).max])  # too small, behind the pool
            poison = invalid[torch.randint(len(invalid), (length - total,), generator=generator)]
            exact[name], stale[name], poisoned[name] = drawn[:total], drawn, torch.cat([drawn[:total], poison])
        made = (
            {name: tensor.to(given[name].device, given[name].dtype) for name, tensor in tensors.items()}
            for tensors in (exact, stale, poisoned)
        )
        return PaddedDraw(total, *made)

    return [draw(each) for each in calls]


def fewer(counts: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Between one and all pages, or tokens, of each request."""
    shares = torch.rand(len(counts), generator=generator)
    return torch.where(counts > 0, 1 + (shares * counts).to(torch.int64).clamp(max=counts - 1), 0)
