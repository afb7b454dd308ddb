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
from typing import Any

import attrs
from fib_compile.signatures import default_values
from fib_schema import Definition
from fib_schema.definition import TORCH_DTYPE_NAMES

from .codegen import compile_function
from .custom_operator import CustomOperator
from .operator_schema import OperatorSchema

_ATTRIBUTE = "_torchdynamo_inline"
_SHIMS = "_fib_apply_compile_shims"


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
) -> CompileShim:
    """The compile shim of a decorated function for a definition; made once.

    The operator is registered when Dynamo first traces the shim. From then on, operator and wrapper live as long
    as the process, because graphs may call them at any time.

    Args:
        wrapper: The decorated function, which the operator calls. It must be a Python function.
        definition: The definition of its calls.
        function: The user's function, of the same signature.
        arguments: The parameter that carries each input or output, by the name of the latter; equal names unless
            given. With outputs, calls are destination-passing.
    """
    if arguments is None:
        arguments = {name: name for name in (*definition.inputs, *definition.outputs)}
    schema = OperatorSchema.of(definition, tuple(inspect.signature(function).parameters.values()), arguments)
    if reason := schema.unsupported_reason():
        return CompileShim(function, None, reason)
    shims: dict[tuple[int, str], CompileShim] = wrapper.__dict__.setdefault(_SHIMS, {})
    digest = schema.digest(wrapper)
    key = (id(wrapper), digest)  # with the identity, because functools.wraps copies the dictionary to another wrapper
    if key not in shims:
        shims[key] = _generate(schema, _operator_name(definition, digest), wrapper, function)
    return shims[key]


def _operator_name(definition: Definition, digest: str) -> str:
    readable = re.sub(r"[^0-9A-Za-z_]", "_", definition.name)[:80]
    # It must not begin with a digit, which is no identifier, or an underscore, which torch reserves.
    return f"{readable}_{digest}" if readable[:1].isalpha() else f"op_{readable}_{digest}"


def _generate(
    schema: OperatorSchema, name: str, wrapper: Callable[..., Any], function: Callable[..., Any]
) -> CompileShim:
    import torch

    entry = compile_function(schema.entry_source(), "entry", {"_fib_wrapper": wrapper}, f"fib-apply operator {name}")
    operator = CustomOperator.named(name, schema, entry)

    def register() -> bool:
        return operator.register()

    # `torch.compiler.assume_constant_result` does this too, but imports Dynamo: seconds, in which engines stall.
    vars(register)["_dynamo_marked_constant"] = True
    dtypes = {argument.spec.dtype for argument in schema.arguments if not argument.spec.is_scalar}
    scope = {
        **default_values(schema.parameters),
        **{f"_fib_{dtype}": getattr(torch, TORCH_DTYPE_NAMES[dtype]) for dtype in dtypes},
        "_fib_function": function,
        "_fib_torch": torch,
        "_fib_type": type,
        "_fib_tensors": (torch.Tensor, torch.nn.Parameter),
        # Dynamo calls it while it traces: registration takes a millisecond, which only users of torch.compile pay.
        "_fib_register": register,
    }
    source = schema.traced_source(operator.name)
    return CompileShim(compile_function(source, "traced", scope, f"fib-apply operator {operator.name}"), operator.name)
