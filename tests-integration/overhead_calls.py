"""Routed calls to measure: a solution called directly and through apply, with the same arguments.

Part of `apply_overhead` and `captures_meanwhile`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import attrs
import torch
from fib_apply import ApplyKey, ApplyRuntime, apply
from fib_bench import make_inputs
from fib_compile import BuilderRegistry
from fib_compile.device import hardware_from_device
from fib_schema import Definition, RandomInput, Solution, Workload

Function: TypeAlias = Callable[..., Any]
Kind: TypeAlias = tuple[Definition, Mapping[str, int]]
"""A definition, and the sizes of its variable axes."""


class NotServed(Exception):
    """The fallback was called."""


@attrs.frozen(kw_only=True)
class Pair:
    """A solution, called directly and through apply."""

    title: str
    direct: Function
    routed: Function
    arguments: tuple[Any, ...]

    def both(self) -> dict[str, Function]:
        """Both functions, in alternating order."""
        return {"direct": self.direct, "routed": self.routed}


def pair_of(runtime: ApplyRuntime, device: str, definition: Definition, axes: Mapping[str, int]) -> Pair:
    """The chosen solution of a key, built, compiled and run once."""
    solution = chosen_solution(runtime, device, definition, axes)
    runnable = BuilderRegistry.get_instance().build(definition, solution)
    is_passing = runnable.metadata.destination_passing_style
    arguments = arguments_for(definition, axes, device, with_outputs=is_passing)
    routed = routed_function(definition, with_outputs=is_passing)
    until_served(routed, arguments, runtime)
    sizes = ", ".join(f"{name}={size}" for name, size in axes.items())
    return Pair(title=f"{solution.name}, {sizes}", direct=runnable.function, routed=routed, arguments=arguments)


def chosen_solution(runtime: ApplyRuntime, device: str, definition: Definition, axes: Mapping[str, int]) -> Solution:
    """The solution that apply would call."""
    name = runtime.table.match_solution(definition.name, ApplyKey(axes), hardware_from_device(device))
    if name is None:
        raise LookupError(f"no solution of {definition.name} was chosen for {dict(axes)}")
    return runtime.table.solution(name)


def arguments_for(
    definition: Definition, axes: Mapping[str, int], device: str, *, with_outputs: bool
) -> tuple[Any, ...]:
    """Random inputs, followed by outputs for a destination-passing solution."""
    workload = Workload(dict(axes), {name: RandomInput() for name in definition.inputs}, "overhead")
    inputs = make_inputs(definition, workload, seed=0, synthesize_missing=True)
    found = [value.to(device) if isinstance(value, torch.Tensor) else value for value in inputs.values()]
    shapes = definition.get_output_shapes(dict(axes)) if with_outputs else ()
    return (*found, *(torch.empty(shape or (), dtype=torch.bfloat16, device=device) for shape in shapes))


def routed_function(definition: Definition, *, with_outputs: bool) -> Function:
    """A function with the definition's parameters, whose fallback raises `NotServed`."""
    if definition.op_type == "gemm":
        return _routed_gemm(definition.name, with_outputs=with_outputs)

    @apply(definition.name)
    def norm(hidden_states: Any, weight: Any) -> Any:
        raise NotServed

    @apply(definition.name)
    def norm_into(hidden_states: Any, weight: Any, output: Any) -> None:
        raise NotServed

    return norm_into if with_outputs else norm


def _routed_gemm(name: str, *, with_outputs: bool) -> Function:
    @apply(name)
    def gemm(A: Any, B: Any) -> Any:
        raise NotServed

    @apply(name)
    def gemm_into(A: Any, B: Any, C: Any) -> None:
        raise NotServed

    return gemm_into if with_outputs else gemm


def until_served(routed: Function, arguments: Sequence[Any], runtime: ApplyRuntime) -> None:
    """Call until a solution serves twice: the second call takes the fast path."""
    for _ in range(4):
        try:
            routed(*arguments)
            routed(*arguments)
        except NotServed:
            runtime.wait_until_built(120)
        else:
            return
    raise NotServed("the fallback serves on")
