"""Compile shims: what Dynamo traces in place of a routed function under ``torch.compile``.

Routes are plain Python that Dynamo must not trace. Each gets a *compile shim*: a generated function of the same
signature that Dynamo traces in its place, and that eager calls never execute. The shim calls one opaque operator if
the call matches the definition, else the user's function: for another rank, dtype or constant dimension, two
devices, a tensor subclass, autocast, or an argument that requires grad. The operator calls the decorated function
when the graph runs, so the runtime that is active then serves the call.

Dynamo finds the shim in the attribute by which torch.compile marks its own results (``_torchdynamo_inline``, since
torch 2.0). The public `torch.compiler.substitute_in_graph` does the same, but cannot be undone and keeps every function
alive; the attribute lives as long as the route. Graph guards check only the attribute's value: enabling causes one
retrace, while disabling, enabling again or a new dispatcher reuse the existing graphs.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import attrs
from fib_compile.signatures import default_values
from fib_schema import Definition
from fib_schema.definition import TORCH_DTYPE_NAMES

from .codegen import compile_function
from .custom_operator import CustomOperator
from .operator_schema import OperatorSchema

if TYPE_CHECKING:
    import torch

    from .inlining import InliningPolicy

_ATTRIBUTE = "_torchdynamo_inline"
_SHIMS, _OPERATORS = "_fib_apply_compile_shims", "_fib_apply_operators"


@attrs.frozen
class CompileShim:
    """The function that Dynamo traces in place of a route."""

    traced: Callable[..., Any] = attrs.field(repr=False)
    operator: str | None
    """Its name in ``torch.ops.fib_apply``; None if Dynamo always traces the user's function."""
    reason: str = ""
    """Reason for the missing operator; empty if there is one."""

    def attach(self, route: Callable[..., Any]) -> None:
        """Make Dynamo trace the shim in place of a route; eager calls are unaffected."""
        setattr(route, _ATTRIBUTE, self.traced)


def make_compile_shim(
    wrapper: Callable[..., Any],
    definition: Definition,
    *,
    function: Callable[..., Any],
    arguments: Mapping[str, str] | None = None,
    inlining: InliningPolicy | None = None,
) -> CompileShim:
    """The compile shim of a decorated function for a definition; made once, or once for each policy of inlining.

    The operator is registered when Dynamo first traces the shim. From then on, operator and wrapper live as long
    as the process, because graphs may call them at any time.

    Args:
        wrapper: The decorated function, which the operator calls. It must be a Python function.
        definition: The definition of its calls.
        function: The user's function, of the same signature.
        arguments: The parameter that carries each input or output, by the name of the latter; equal names unless
            given. With outputs, calls are destination-passing.
        inlining: Chooses the calls that are inlined; None inlines none, nor are destination-passing calls inlined.
    """
    if arguments is None:
        arguments = {name: name for name in (*definition.inputs, *definition.outputs)}
    schema = OperatorSchema.of(definition, tuple(inspect.signature(function).parameters.values()), arguments)
    if reason := schema.unsupported_reason():
        return CompileShim(function, None, reason)
    digest = schema.digest(wrapper)
    key = (id(wrapper), digest)  # with the identity, because functools.wraps copies the dictionary to another wrapper
    operators: dict[tuple[int, str], CustomOperator] = wrapper.__dict__.setdefault(_OPERATORS, {})
    if key not in operators:
        operators[key] = CustomOperator.named(_operator_name(definition, digest), schema, wrapper)
    if inlining is not None and schema.is_destination_passing:
        inlining.note("destination-passing calls", "the caller passes the outputs")
        inlining = None
    shims: dict[tuple[int, str], CompileShim] = (
        wrapper.__dict__.setdefault(_SHIMS, {}) if inlining is None else inlining.shims
    )
    if key not in shims:
        shims[key] = _generate(schema, operators[key], function, inlining)
    return shims[key]


def _operator_name(definition: Definition, digest: str) -> str:
    readable = re.sub(r"[^0-9A-Za-z_]", "_", definition.name)[:80]
    # It must not begin with a digit, which is no identifier, or an underscore, which torch reserves.
    return f"{readable}_{digest}" if readable[:1].isalpha() else f"op_{readable}_{digest}"


def _generate(
    schema: OperatorSchema, operator: CustomOperator, function: Callable[..., Any], inlining: InliningPolicy | None
) -> CompileShim:
    import torch

    def register() -> bool:
        return operator.register()

    dtypes = {argument.spec.dtype for argument in schema.arguments if not argument.spec.is_scalar}
    scope = {
        **default_values(schema.parameters),
        **{f"_fib_{dtype}": getattr(torch, TORCH_DTYPE_NAMES[dtype]) for dtype in dtypes},
        "_fib_function": function,
        "_fib_torch": torch,
        "_fib_type": type,
        "_fib_tensors": (torch.Tensor, torch.nn.Parameter),
        # Dynamo calls it while it traces: registration takes a millisecond, which only users of torch.compile pay.
        "_fib_register": _as_constant(register),
        **({} if inlining is None else _inlining_scope(operator, inlining)),
    }
    source = schema.traced_source(operator.name, inlines=inlining is not None)
    return CompileShim(compile_function(source, "traced", scope, f"fib-apply operator {operator.name}"), operator.name)


def _inlining_scope(operator: CustomOperator, inlining: InliningPolicy) -> dict[str, Any]:
    from .inlining import FUNCTION

    def choose(*described: Any) -> str | None:
        return inlining.choose(operator, described)

    def choose_for_all_sizes(device: torch.device) -> str | None:
        return inlining.choose_for_all_sizes(device)

    return {
        "_fib_choose": _as_constant(choose),
        "_fib_choose_for_all_sizes": _as_constant(choose_for_all_sizes),
        "_fib_valid": inlining.valid,
        "_fib_function_name": FUNCTION,
    }


def _as_constant(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make Dynamo call a function while it traces, and take its result for a constant.

    `torch.compiler.assume_constant_result` does this too, but imports Dynamo: seconds, in which engines stall.
    """
    vars(function)["_dynamo_marked_constant"] = True
    return function
