"""Problem generators: inputs that a function of the problem makes, because no rule or distribution describes them.

A definition names a top-level function of its reference, and the inputs that it makes::

    "extra": {"input_generator": {"function": "make_pair", "inputs": ["a", "b", "weight"], "parameters": ["weight"]}}

The function gets a mapping and a device, and returns tensors by name. The mapping has the sizes of all axes, the
scalars and the ``generator_arguments`` (in ``extra``) of the workload, the ``inputs`` that are wanted, and ``seed``,
with which torch, random and NumPy are seeded before. It makes the inputs of type ``random`` of a workload.

The call is a `Definition` of its own whose outputs are those inputs. So a generator runs where references run, in the
same sandbox with the same limits, and shapes and dtypes are checked as theirs are.

Source: the custom inputs of NVIDIA's SOL-ExecBench, which have the same signature.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import torch
from fib_schema import AxisVar, Definition, RandomInput, ScalarInput, TensorSpec, Workload

from .makers import SynthesisError

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
    """The function of a definition that makes inputs."""

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
        given: Mapping[str, Any] = extra.get(ARGUMENTS, {})
        sizes = {**definition.const_axes, **workload.axes}
        arguments = {**sizes, **scalars, **given, "inputs": list(names), "seed": seed}
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
    if unknown := [name for name in inputs if name not in tensors] + [
        name for name in parameters if name not in inputs
    ]:
        raise SynthesisError(f"{form}: {unknown[0]!r} is no input of the definition that is a tensor")
    return ProblemGenerator(field["function"], inputs, frozenset(parameters))
