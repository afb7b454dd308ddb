"""Runnable. A built solution that can be called in both styles, whatever style it is written in.

A value-returning solution returns its outputs; a destination-passing one (DPS) writes into buffers that are passed
behind its inputs. Conversions are prepared once, so that a call has no overhead for the other style.

An entry function takes its arguments in the definition's order or by the definition's names. For value-returning calls
of a DPS function, code is generated that only looks up the output shapes, allocates and calls: shapes are derived and
checked once for each combination of input shapes.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
from fib_schema import Definition
from fib_schema.display import counted

from .errors import BuildProblem
from .signatures import POSITIONAL, argument_list

_MAX_KNOWN_SHAPES = 4096
PASSING, RETURNING, SETUP = "destination_passing_style=true", "destination_passing_style=false", "setup"
"""The styles of functions of a solution, as messages name them."""

_VALUE_RETURNING = """
def value_returning({parameters}):
    _key = ({shapes})
    _sizes = _known(_key)
    if _sizes is None:
        _sizes = _derive(_key, ({arguments}))
    {allocate}
    _returned = _function({call})
    if _returned is not None:
        _check_returned(_returned, ({buffers}))
    return {result}
"""


@attrs.frozen
class RunnableMetadata:
    """Origin of a runnable, and the definition that it implements."""

    build_type: str
    """The builder's name: a language that is Python or embedded in it, ``tvm_ffi``, ``torch``, or a third party's."""
    definition_name: str
    solution_name: str
    destination_passing_style: bool = True
    """Whether the callable takes its outputs as arguments behind the inputs."""
    definition: Definition | None = None
    """Needed for calls by keyword and for calls in the other style."""
    misc: Mapping[str, Any] = attrs.field(factory=dict)
    """Data of the builder; the keys vary by builder."""


class Runnable:
    """A built solution.

    Args:
        callable: The function. It takes the definition's inputs by position and in order, followed by the outputs if it
            is destination-passing.
        metadata: How it was built.
        cleaner: Releases the resources of the build; called once.
        setup: The solution's ``setup`` function, if it exports one; takes the inputs.
    """

    __slots__ = ("_cleaner", "_outputs", "_value_returning", "callable", "function", "is_cleaned", "metadata", "setup")

    callable: Callable[..., Any]
    """The function that `__call__` calls; calling it directly saves 50 ns."""
    function: Callable[..., Any]
    """The solution's own function, whose results are not unpacked."""
    metadata: RunnableMetadata
    setup: Callable[..., Any] | None
    is_cleaned: bool
    """Whether `cleanup` was called."""

    def __init__(
        self,
        callable: Callable[..., Any],
        metadata: RunnableMetadata,
        cleaner: Callable[[], None] | None = None,
        *,
        setup: Callable[..., Any] | None = None,
    ) -> None:
        definition = metadata.definition
        self.callable = callable if metadata.destination_passing_style else unpack_single(callable)
        self.metadata = metadata
        self.setup = setup
        self.is_cleaned = False
        self._cleaner = cleaner
        self.function = callable
        self._value_returning: Callable[..., Any] | None = None  # generated at the first call, because it imports torch
        self._outputs = frozenset(definition.outputs) if definition else frozenset()

    def __repr__(self) -> str:
        meta = self.metadata
        return f"<Runnable {meta.solution_name!r} of {meta.definition_name!r}, built by {meta.build_type}>"

    def __call__(self, *args: Any) -> Any:
        """Call the solution in its own style.

        A tuple or list of one element is unpacked, in either style; everything else is returned as it is.
        """
        return _single(self.callable(*args))

    def call_kwargs(self, **kwargs: Any) -> Any:
        """Call by the definition's names.

        With outputs among the names the call is destination-passing, otherwise value-returning, whatever the
        solution's own style is. Optional inputs may be left out.

        Raises:
            ValueError: The metadata holds no definition.
            TypeError: A name is unknown or missing.
        """
        definition = self._definition()
        args = definition.merge_kwargs_to_args((), kwargs)
        if self._outputs.isdisjoint(kwargs):
            return self.call_value_returning(*args)
        return self.call_destination_passing(*args)

    def call_destination_passing(self, *args: Any) -> None:
        """Call with the inputs followed by the buffers that receive the outputs.

        Raises:
            ValueError: A result does not have its buffer's shape, or the metadata holds no definition
                and the solution returns values.
            TypeError: The number of arguments or results is wrong, a result has another dtype, or a destination-passing
                solution returned something other than its outputs.
        """
        if self.metadata.destination_passing_style:
            returned = self.callable(*args)
            if returned is not None:
                definition = self.metadata.definition
                outputs = args if definition is None else args[len(definition.inputs) :]
                check_returned(returned, outputs, name=self.metadata.definition_name)
            return
        definition = self._definition()
        count = len(definition.inputs)
        if len(args) != count + len(definition.outputs):
            names = ", ".join((*definition.inputs, *definition.outputs))
            raise TypeError(f"{definition.name} takes ({names}) in this style, got {len(args)} arguments")
        copy_results(self.callable(*args[:count]), args[count:], definition)

    def call_value_returning(self, *args: Any) -> Any:
        """Call with the inputs and return the outputs: one as it is, several as a tuple, none as None.

        Results that a solution returns by name are put in order. The outputs of a destination-passing solution are
        allocated from the definition, on the device of the first tensor among the inputs.

        Raises:
            ValueError: The metadata holds no definition; an axis has no value or two (`AxisError`).
            TypeError: The number of arguments or results is wrong, a name is missing among the results, or a
                destination-passing solution returned something other than its outputs.
        """
        if self._value_returning is None:
            self._value_returning = self._make_value_returning()
        return self._value_returning(*args)

    def plan(self, *inputs: Any) -> Runnable:
        """Run the solution's ``setup`` and bind its results as keyword arguments.

        ``setup`` takes the inputs of a call. Its results may depend only on shapes, integer tensors and scalars; calls
        of the planned runnable must have inputs that agree in these. Without ``setup`` the runnable itself is returned.

        Raises:
            TypeError: ``setup`` returned no dict with string keys.
        """
        if self.setup is None:
            return self
        prepared = self.setup(*inputs)
        if not isinstance(prepared, dict) or not all(isinstance(key, str) for key in prepared):
            name = self.metadata.solution_name
            raise TypeError(f"setup of {name!r} must return a dict of arguments for the entry point, got {prepared!r}")
        return Runnable(functools.partial(self.function, **prepared), self.metadata)

    def cleanup(self) -> None:
        """Release the resources of the build; further calls do nothing."""
        self.is_cleaned = True
        cleaner, self._cleaner = self._cleaner, None
        if cleaner is not None:
            cleaner()

    def _make_value_returning(self) -> Callable[..., Any]:
        if self.metadata.destination_passing_style:
            return value_returning(self.callable, self._definition())
        return unpack_results(self.function, self.metadata.definition)

    def _definition(self) -> Definition:
        if self.metadata.definition is None:
            problem = "the metadata holds no definition, which calls by keyword or in the other style need"
            raise ValueError(f"runnable {self.metadata.solution_name!r}: {problem}")
        return self.metadata.definition


# -- arguments in order or by name ---------------------------------------------------------------


def adapt(
    function: Callable[..., Any], definition: Definition, style: str, *, has_setup: bool = False
) -> Callable[..., Any]:
    """A function that takes the definition's inputs in order, followed by its outputs in the style of `PASSING`.

    A function whose parameters have the definition's names in another order is called by name, any other by position.
    With `has_setup`, a function `setup` supplies further keyword arguments.

    Raises:
        BuildProblem: It cannot be called with that many arguments.
    """
    expected = [*definition.inputs, *(definition.outputs if style == PASSING else ())]
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):
        return function  # a function of an extension module, for example, has no signature
    own = [p for p in signature.parameters.values() if not has_setup or p.name in expected]
    names = [p.name for p in own]
    is_in_order = names == expected and all(p.kind in POSITIONAL for p in own)
    if not is_in_order and sorted(names) == sorted(expected):
        variables = [f"a{index}" for index in range(len(expected))]
        takes = _parameters(variables, expected, definition) + (["**prepared"] if has_setup else [])
        passes = argument_list(own, dict(zip(expected, variables, strict=True)))
        code = f"lambda {', '.join(takes)}: function({passes}{', **prepared' if has_setup else ''})"
        adapter: Callable[..., Any] = eval(code, {"function": function})  # noqa: S307 - made of a0, a1 and parameter names
        return adapter
    bind = signature.bind_partial if has_setup else signature.bind  # setup() supplies the others
    try:
        bind(*expected)
    except TypeError as error:
        found = f"{getattr(function, '__name__', 'the entry point')}{signature}"
        problem = f"wrong signature for {style}: expected ({', '.join(expected)}), found {found}"
        remedy = "; set it to false (it is true by default) if the outputs are returned" if style == PASSING else ""
        raise BuildProblem(problem, (f"{error}{remedy}",)) from error
    return function


def _parameters(variables: Sequence[str], names: Sequence[str], definition: Definition) -> list[str]:
    """Parameters of generated code; trailing optional inputs may be left out."""
    parameters, is_optional = [], True
    for variable, name in zip(reversed(variables), reversed(names), strict=True):
        is_optional = is_optional and name in definition.inputs and definition.inputs[name].optional
        parameters.append(f"{variable}=None" if is_optional else variable)
    return parameters[::-1]


# -- value-returning calls of DPS functions ------------------------------------------------------


def value_returning(function: Callable[..., Any], definition: Definition) -> Callable[..., Any]:
    """Generate a function that allocates the outputs, calls a DPS function and returns them. Imports torch.

    The generated function raises `AxisError` if the shapes of the inputs do not fit the definition, and `TypeError` if
    the function returns something other than its outputs: then it may have written nothing into them.
    """
    import torch

    names = [f"input{index}" for index in range(len(definition.inputs))]
    outputs = [f"_out{index}" for index in range(len(definition.outputs))]
    code = _VALUE_RETURNING.format(
        parameters=", ".join(_parameters(names, list(definition.inputs), definition)),
        shapes=_tuple_items(_shapes(names, definition)),
        arguments=_tuple_items(names),
        allocate=_allocations(outputs, _device(names, definition)),
        call=", ".join((*names, *outputs)),
        buffers=_tuple_items(outputs),
        result=outputs[0] if len(outputs) == 1 else (", ".join(outputs) or "None"),
    )
    known: dict[tuple[Any, ...], list[tuple[int, ...]]] = {}

    def derive(key: tuple[Any, ...], args: tuple[Any, ...]) -> list[tuple[int, ...]]:
        shapes = [shape or () for shape in definition.get_output_shapes(definition.get_axes_values_from_inputs(args))]
        if len(known) >= _MAX_KNOWN_SHAPES:
            known.clear()
        known[key] = shapes
        return shapes

    scope: dict[str, Any] = {
        "_known": known.get,
        "_derive": derive,
        "_empty": torch.empty,
        "_function": function,
        "_check_returned": functools.partial(check_returned, name=definition.name),
        **{f"_dtype{index}": dtype for index, dtype in enumerate(definition.torch_output_dtypes)},
    }
    exec(code, scope)  # noqa: S102 - made of our template and of identifiers that Definition has checked
    generated: Callable[..., Any] = scope["value_returning"]
    generated.__name__ = generated.__qualname__ = definition.name
    return generated


def _shapes(names: list[str], definition: Definition) -> list[str]:
    return [
        f"None if {name} is None else {name}.shape" if spec.optional else f"{name}.shape"
        for name, spec in zip(names, definition.inputs.values(), strict=True)
        if spec.shape is not None
    ]


def _device(names: list[str], definition: Definition) -> str:
    """An expression for the device of the first tensor that is passed."""
    expression = "None"
    for name, spec in reversed(list(zip(names, definition.inputs.values(), strict=True))):
        if spec.shape is not None:
            expression = f"({expression} if {name} is None else {name}.device)" if spec.optional else f"{name}.device"
    return expression


def _allocations(outputs: list[str], device: str) -> str:
    if not outputs:
        return "pass"
    lines = [f"{name} = _empty(_sizes[{i}], dtype=_dtype{i}, device=_device)" for i, name in enumerate(outputs)]
    return "\n    ".join([f"_device = {device}", *lines])


def _tuple_items(items: list[str]) -> str:
    return "".join(f"{item}, " for item in items)


# -- results of value-returning functions --------------------------------------------------------


def unpack_single(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that a tuple or list of one element is returned as that element."""

    @functools.wraps(function, updated=())
    def unpacking(*args: Any) -> Any:
        return _single(function(*args))

    return unpacking


def _single(result: Any) -> Any:
    """The element of a tuple or list of one element; any other result as it is."""
    kind = type(result)
    return result[0] if (kind is tuple or kind is list) and len(result) == 1 else result


def unpack_results(function: Callable[..., Any], definition: Definition | None) -> Callable[..., Any]:
    """Wrap a value-returning function: one output is returned as it is, several as a tuple, none as None.

    The wrapper raises `TypeError` if there are more or fewer results than outputs, or a name is missing. Without a
    definition only lists and tuples are known to hold results.
    """
    count = None if definition is None else len(definition.outputs)

    @functools.wraps(function, updated=())
    def unpacking(*args: Any) -> Any:
        result = function(*args)
        if count == 1 and not isinstance(result, (tuple, list, Mapping)):
            return result
        if definition is not None:
            results = ordered_results(result, definition)
        elif isinstance(result, (tuple, list)):
            results = result
        else:
            return result
        return (results[0] if results else None) if len(results) < 2 else tuple(results)

    return unpacking


def check_returned(returned: Any, buffers: Sequence[Any], *, name: str) -> None:
    """Check what a destination-passing function returned: nothing, or its outputs if it has any.

    Raises:
        TypeError: It returned something else, and may have left the outputs as they were.
    """
    if not buffers:
        return
    values = returned.values() if isinstance(returned, Mapping) else returned
    values = values if isinstance(returned, (tuple, list, Mapping)) else (returned,)
    for value in values:
        if value is not None and not any(value is buffer or _is_same_tensor(value, buffer) for buffer in buffers):
            raise TypeError(
                f"{name}: the solution is declared as destination-passing, but returned a value of type "
                f"{type(value).__name__!r}, none of its outputs; fill them, or set destination_passing_style to false"
            )


def _is_same_tensor(value: Any, buffer: Any) -> bool:
    """Whether two tensors are views of the same memory, as a function in another language returns them."""
    if not hasattr(value, "data_ptr") or not hasattr(buffer, "data_ptr"):
        return False
    return bool(value.data_ptr() == buffer.data_ptr() and value.shape == buffer.shape and value.dtype == buffer.dtype)


def copy_results(result: Any, buffers: Sequence[Any], definition: Definition) -> None:
    """Copy the results of a value-returning function into the buffers of a destination-passing call.

    Raises:
        TypeError: There are more or fewer results than outputs, one has another dtype, or a name is missing.
        ValueError: A result does not have its buffer's shape.
    """
    results = ordered_results(result, definition)
    for name, value, buffer in zip(definition.outputs, results, buffers, strict=True):
        _copy(name, value, buffer)


def ordered_results(result: Any, definition: Definition) -> Sequence[Any]:
    """The results of a value-returning function in the order of the outputs.

    Raises:
        TypeError: There are more or fewer than outputs, or a name is missing.
    """
    if isinstance(result, Mapping):
        missing = [name for name in definition.outputs if name not in result]
        if missing:
            raise TypeError(f"{definition.name}: the solution returned {list(result)}, without {missing[0]!r}")
        return [result[name] for name in definition.outputs]
    count = len(definition.outputs)
    results = result if isinstance(result, (tuple, list)) else () if result is None and count == 0 else (result,)
    if len(results) != count:
        raise TypeError(f"{definition.name} has {counted(count, 'output')}, the solution returned {len(results)}")
    return results


def _copy(name: str, value: Any, buffer: Any) -> None:
    if isinstance(value, (bool, int, float)):
        if buffer.dim() != 0:
            raise ValueError(f"output {name!r}: expected shape {list(buffer.shape)}, got the number {value!r}")
        buffer.fill_(value)
        return
    if getattr(value, "shape", None) != buffer.shape:
        found = list(value.shape) if hasattr(value, "shape") else repr(type(value).__name__)
        raise ValueError(f"output {name!r}: expected shape {list(buffer.shape)}, got {found}")
    if value.dtype != buffer.dtype:
        raise TypeError(f"output {name!r}: expected {buffer.dtype}, got {value.dtype}")
    buffer.copy_(value)
