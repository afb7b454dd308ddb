"""Synthesis of single inputs by the rules of `rules`.

Index inputs are made on the CPU, where makers read them. All other inputs may be large and are
made on the device.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from fib_schema import Definition, DType, TensorSpec

from .distributions import clamp_to_range, distribute
from .draft import InputDraft, SynthesisError, tensor_dtype
from .index_values import is_query_offsets
from .roles import Role
from .rules import find_rule, role_of


def synthesis_order(definition: Definition, names: Iterable[str]) -> list[str]:
    """Sort inputs so that each follows those that its maker reads.

    Key offsets precede query offsets, offsets precede other integers, and integers precede all
    other inputs.
    """

    def rank(name: str) -> int:
        if not definition.inputs[name].is_integer:
            return 3
        if role_of(definition, name) is not Role.OFFSETS:
            return 2
        return int(is_query_offsets(name))

    return sorted(names, key=rank)


def synthesize_input(draft: InputDraft, name: str) -> None:
    """Make one input and add it to the draft.

    Raises:
        SynthesisError: No rule makes valid values.
    """
    spec = draft.spec(name)
    rule = find_rule(draft.definition, name)
    shape = f"{spec.dtype} of shape {list(draft.shape(name))}"
    generator = draft.generator(name, torch.device("cpu") if rule.role.is_index else draft.device)
    try:
        value = rule.make(draft, name, generator)
        if isinstance(value, torch.Tensor):
            value = _cast(value, spec).reshape(draft.shape(name))
            if rule.is_distributable:
                distribute(value, draft.distribution, generator, is_half=_has_half(draft.definition))
    except torch.OutOfMemoryError as error:
        raise SynthesisError(f"out of memory for {shape}: {error}") from error
    except (LookupError, RuntimeError, ValueError) as error:
        text = f"the rule for inputs of this name cannot make {shape}: {error}; give it as a blob"
        raise SynthesisError(text) from error
    draft.values[name] = value


def _has_half(definition: Definition) -> bool:
    return any(spec.dtype == DType.FLOAT16 for spec in (*definition.inputs.values(), *definition.outputs.values()))


def _cast(value: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    dtype = tensor_dtype(spec)
    return value if value.dtype == dtype else clamp_to_range(value, dtype).to(dtype)
