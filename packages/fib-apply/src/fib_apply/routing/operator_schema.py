"""Operator schema: what a function's calls look like as calls of one torch operator, as generated source."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import Parameter
from typing import TYPE_CHECKING, Any

import attrs
from fib_compile.signatures import VARIADIC, argument_list, given_condition, parameter_list
from fib_schema import AxisConst, Definition, DType, TensorSpec
from fib_schema.definition import TORCH_DTYPE_NAMES
from fib_schema.framing import framed

if TYPE_CHECKING:
    import torch

NAMESPACE = "fib_apply"
"""The namespace of the operators: ``torch.ops.fib_apply``."""


@attrs.frozen
class OperatorArgument:
    """An argument of the operator: an input or output, and the parameter that carries it."""

    name: str
    parameter: str
    spec: TensorSpec
    is_output: bool

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes of its shape."""
        return self.spec.shape or ()


def _arguments_of(definition: Definition, carriers: Mapping[str, str]) -> Iterator[OperatorArgument]:
    for name, spec in definition.inputs.items():
        if name in carriers:
            yield OperatorArgument(name, carriers[name], spec, is_output=False)
    for name, spec in definition.outputs.items():
        if name in carriers:
            yield OperatorArgument(name, carriers[name], spec, is_output=True)


@attrs.frozen
class OperatorSchema:
    """The operator for the calls of a function: its arguments, its schema, and the source of its functions."""

    definition: Definition
    parameters: tuple[Parameter, ...]
    arguments: tuple[OperatorArgument, ...]
    places: Mapping[str, list[tuple[int, int]]] = attrs.field(init=False, eq=False, repr=False)
    """Sources of the size of each axis: argument and dimension, required arguments first."""

    @classmethod
    def of(cls, definition: Definition, parameters: Sequence[Parameter], carriers: Mapping[str, str]) -> OperatorSchema:
        """The schema for a function; `carriers` names the parameter of each input and output."""
        names = {parameter.name for parameter in parameters}
        known = {name: parameter for name, parameter in carriers.items() if parameter in names}
        return cls(definition, tuple(parameters), tuple(_arguments_of(definition, known)))

    @places.default
    def _find_places(self) -> dict[str, list[tuple[int, int]]]:
        found: dict[str, list[tuple[int, int]]] = {}
        for index, argument in sorted(enumerate(self.arguments), key=lambda pair: pair[1].spec.optional):
            for dim, axis in enumerate(argument.axes):
                found.setdefault(axis, []).append((index, dim))
        return found

    @property
    def is_destination_passing(self) -> bool:
        """Whether outputs are arguments."""
        return any(argument.is_output for argument in self.arguments)

    @property
    def extras(self) -> list[Parameter]:
        """Parameters unknown to the definition."""
        carried = {argument.parameter for argument in self.arguments}
        return [parameter for parameter in self.parameters if parameter.name not in carried]

    @property
    def device_argument(self) -> OperatorArgument | None:
        """The first required tensor; all others must be on its device."""
        return next(
            (argument for argument in self.arguments if not (argument.spec.is_scalar or argument.spec.optional)), None
        )

    def unsupported_reason(self) -> str:
        """Reason why no operator can be made; empty if one can."""
        outputs = self.definition.outputs
        carried = {argument.name for argument in self.arguments}
        missing = [name for name, spec in self.definition.inputs.items() if name not in carried and not spec.optional]
        if self.is_destination_passing:
            missing += [name for name in outputs if name not in carried]
        if missing:
            return f"the function has no parameter for {missing[0]!r}"
        for parameter in self.parameters:
            if parameter.kind in VARIADIC:
                return f"the function has a variadic parameter: {parameter}"
        if required := [extra.name for extra in self.extras if extra.default is Parameter.empty]:
            return f"parameter {required[0]!r} is not in the definition and has no default"
        if [extra for extra in self.extras if extra.kind is Parameter.POSITIONAL_ONLY]:
            return "a positional-only parameter is not in the definition"
        return self._unsupported_tensors_reason()

    def _unsupported_tensors_reason(self) -> str:
        outputs = self.definition.outputs
        specs = {**self.definition.inputs, **outputs}
        if self.device_argument is None:
            return "no required input is a tensor"
        if not outputs or any(spec.is_scalar or spec.optional for spec in outputs.values()):
            return "outputs must be tensors"
        if packed := [name for name, spec in specs.items() if spec.dtype is DType.FLOAT4_E2M1]:
            return f"elements of {packed[0]!r} are packed, so that its shape differs from the definition"
        axes = {axis for spec in outputs.values() for axis in spec.shape or () if self._const(axis) is None}
        if unknown := axes - self.places.keys():
            return f"no input has axis {min(unknown)!r}"
        return ""

    def _const(self, axis: str) -> int | None:
        found = self.definition.axes[axis]
        return found.value if isinstance(found, AxisConst) else None

    def digest(self, wrapper: Callable[..., Any]) -> str:
        """A hash of everything that defines the operator, equal in all processes."""
        outputs = [f"{self.result_axes(spec)} {spec.dtype}" for spec in self.definition.outputs.values()]
        where = (wrapper.__module__ or "", wrapper.__qualname__)
        parts = [self.definition.name, *where, self.schema(), self.traced_source("it"), *outputs]
        return hashlib.sha256(framed(parts)).hexdigest()[:12]

    def result_axes(self, spec: TensorSpec) -> list[int | str]:
        """An output's shape: constant sizes, and names of variable axes."""
        sizes = ((axis, self._const(axis)) for axis in spec.shape or ())
        return [axis if size is None else size for axis, size in sizes]

    def schema(self) -> str:
        """The schema in torch's syntax. Arguments are named a0, a1: a parameter's name could be a keyword of it."""
        takes = ", ".join(f"{_schema_type(argument, index)} a{index}" for index, argument in enumerate(self.arguments))
        count = 0 if self.is_destination_passing else len(self.definition.outputs)
        return f"({takes}) -> {'Tensor' if count == 1 else '(' + ', '.join(['Tensor'] * count) + ')'}"

    def traced_source(self, operator: str, *, inlines: bool = False) -> str:
        """The function that Dynamo traces; with `inlines` it asks ``_fib_choose`` for an operator that is inlined."""
        signature = parameter_list(self.parameters)
        passed = argument_list(self.parameters, by_name=True)
        operands = ", ".join(argument.parameter for argument in self.arguments)
        checks = " and ".join([*self._argument_checks(), *self._axis_checks(), *self._default_checks()])
        returned = self._returned_outputs()
        lines = (
            f"def traced({signature}):",
            f"    if not ({checks}):",
            f"        return _fib_function({passed})",
            "    _fib_register()",
            *(self._choosing_lines(operands, passed) if inlines else ()),
            f"    {'' if returned else 'return '}_fib_torch.ops.{NAMESPACE}.{operator}.default({operands})",
            *([f"    return {', '.join(returned)}"] if returned else ()),
        )
        return "\n".join(lines)

    def _returned_outputs(self) -> list[str]:
        """The parameters of the outputs, if they may be None; then the function returns them, as its route does."""
        defaults = {parameter.name: parameter.default for parameter in self.parameters}
        outputs = [argument.parameter for argument in self.arguments if argument.is_output]
        return outputs if all(defaults[output] is None for output in outputs) else []

    def _choosing_lines(self, operands: str, passed: str) -> Iterator[str]:
        """Lines that call an inlined operator or the function if that is chosen for the call's sizes and scalars.

        Dynamo reads the operator's attribute of ``_fib_valid`` when it traces, and so guards it.
        """
        described = ", ".join(map(_description, self.arguments))
        yield f"    if {' and '.join(map(_static_condition, self.arguments))}:"
        yield f"        _fib_name = _fib_choose({described})"
        yield "    else:"
        assert self.device_argument is not None, "there is no operator without one"
        yield f"        _fib_name = _fib_choose_for_all_sizes({self.device_argument.parameter}.device)"
        yield "    if _fib_name == _fib_function_name:"
        yield f"        return _fib_function({passed})"
        yield "    if _fib_name is not None and getattr(_fib_valid, _fib_name):"
        yield f"        return getattr(_fib_torch.ops.{NAMESPACE}, _fib_name).default({operands})"

    def run_source(self) -> str:
        """The function that takes the operator's arguments and calls the wrapper.

        It returns a single valid result in memory of its own as it is, and passes all others to ``_fib_audit``.
        """
        carried = {argument.parameter for argument in self.arguments}
        kept = [parameter for parameter in self.parameters if parameter.name in carried]
        passed = argument_list(kept, by_name=True)
        taken = ", ".join(argument.parameter for argument in self.arguments)
        if self.is_destination_passing:
            return f"def run({taken}):\n    _fib_wrapper({passed})"
        checks = " and ".join(self._result_checks())
        lines = (
            f"def run({taken}):",
            f"    _fib_result = _fib_wrapper({passed})",
            *((f"    if {checks}:", "        return _fib_result") if checks else ()),
            f"    return _fib_audit(_fib_result, ({taken},))",
        )
        return "\n".join(lines)

    def _result_checks(self) -> Iterator[str]:
        """Checks of a single result; none if there are more, or if its sizes may be those of an absent argument."""
        specs = list(self.definition.outputs.values())
        axes = self.result_axes(specs[0])
        places = {axis: self.places[axis][0] for axis in axes if isinstance(axis, str)}
        is_optional = any(self.arguments[index].spec.optional for index, _ in places.values())
        if len(specs) != 1 or is_optional or self.device_argument is None:
            return
        where = {axis: f"{self.arguments[index].parameter}.shape[{dim}]" for axis, (index, dim) in places.items()}
        sizes = "".join(f"{where[axis] if isinstance(axis, str) else axis}, " for axis in axes)
        yield "_fib_type(_fib_result) is _fib_tensor and _fib_result.dtype is _fib_dtype"
        yield f"_fib_result.shape == ({sizes}) and _fib_result.is_contiguous()"
        yield f"_fib_result.device == {self.device_argument.parameter}.device"
        for argument in self.arguments:
            if not argument.spec.is_scalar:
                is_alias = f"_fib_is_alias({argument.parameter}, _fib_result)"
                is_absent = f"{argument.parameter} is None or " if argument.spec.optional else ""
                yield f"({is_absent}not {is_alias})"

    def _argument_checks(self) -> Iterator[str]:
        for argument in self.arguments:
            check = _scalar_check(argument) if argument.spec.is_scalar else self._tensor_check(argument)
            yield f"({argument.parameter} is None or {check})" if argument.spec.optional else check

    def _default_checks(self) -> Iterator[str]:
        for extra in self.extras:
            yield f"not ({given_condition(extra, by_value=True)})"

    def _tensor_check(self, argument: OperatorArgument) -> str:
        at, device_argument = argument.parameter, self.device_argument
        checks = [
            f"type({at}) in _fib_tensors",
            f"not ({at}.requires_grad and _fib_torch.is_grad_enabled())",
            f"{at}.dim() == {len(argument.axes)}",
            f"{at}.dtype == _fib_{argument.spec.dtype}",
            *(
                f"{at}.shape[{dim}] == {size}"
                for dim, axis in enumerate(argument.axes)
                if (size := self._const(axis)) is not None
            ),
        ]
        if device_argument is argument:
            # Under autocast the function may return another dtype than the operator declares.
            checks.append(f"not _fib_torch.is_autocast_enabled({at}.device.type)")
        elif device_argument is not None:
            checks.append(f"{at}.device == {device_argument.parameter}.device")
        return f"({' and '.join(checks)})"

    def _axis_checks(self) -> Iterator[str]:
        """Places that share an axis agree; an axis that an output needs is present."""
        for axis, places in self.places.items():
            if self._const(axis) is not None:
                continue
            is_always_known = not self.arguments[places[0][0]].spec.optional
            pairs = [(places[0], other) for other in places[1:]]
            for one, other in pairs if is_always_known else itertools.combinations(places, 2):
                yield self._agreement(one, other)
            if not is_always_known and any(axis in (spec.shape or ()) for spec in self.definition.outputs.values()):
                yield f"({' or '.join(f'{self.arguments[index].parameter} is not None' for index, _ in places)})"

    def _agreement(self, one: tuple[int, int], other: tuple[int, int]) -> str:
        arguments = [(self.arguments[index], dim) for index, dim in (one, other)]
        absent = [f"{argument.parameter} is None" for argument, _ in arguments if argument.spec.optional]
        same = " == ".join(f"{argument.parameter}.shape[{dim}]" for argument, dim in arguments)
        return f"({' or '.join([*absent, same])})"

    def output_shapes(self, args: Sequence[Any]) -> Iterator[tuple[torch.dtype, list[int]]]:
        """The dtypes and shapes of a call's outputs; sizes may be symbols."""
        import torch

        for spec in self.definition.outputs.values():
            sizes = [self._size(axis, args) if isinstance(axis, str) else axis for axis in self.result_axes(spec)]
            yield getattr(torch, TORCH_DTYPE_NAMES[spec.dtype]), sizes

    def _size(self, axis: str, args: Sequence[Any]) -> Any:
        return next(args[index].shape[dim] for index, dim in self.places[axis] if args[index] is not None)


def _static_condition(argument: OperatorArgument) -> str:
    """Whether Dynamo traces a call for this value of a scalar, or these sizes and strides of a tensor, alone."""
    at, is_static = argument.parameter, "_fib_torch.fx.experimental.symbolic_shapes.has_static_value"
    values = [f"{at}.{part}({dim})" for dim in range(len(argument.axes)) for part in ("size", "stride")]
    checks = " and ".join(f"{is_static}({value})" for value in ([at] if argument.spec.is_scalar else values)) or "True"
    return f"({at} is None or {checks})" if argument.spec.optional else checks


def _description(argument: OperatorArgument) -> str:
    """A scalar, or the sizes, strides and device of a tensor."""
    at, dims = argument.parameter, range(len(argument.axes))
    if argument.spec.is_scalar:
        return at
    sizes, strides = (f"({''.join(f'{at}.{part}({dim}), ' for dim in dims)})" for part in ("size", "stride"))
    description = f"({sizes}, {strides}, {at}.device)"
    return f"(None if {at} is None else {description})" if argument.spec.optional else description


def _schema_type(argument: OperatorArgument, index: int) -> str:
    mark = "?" if argument.spec.optional else ""
    if not argument.spec.is_scalar:
        return f"Tensor(w{index}!)" if argument.is_output else f"Tensor{mark}"
    return f"{_scalar_types(argument.spec)[1]}{mark}"


def _scalar_types(spec: TensorSpec) -> tuple[str, str]:
    """The type in Python and in torch's schemas. Integers may be symbols, so that a graph serves several values."""
    if spec.dtype is DType.BOOL:
        return "bool", "bool"
    return ("int", "SymInt") if spec.is_integer else ("float", "float")


def _scalar_check(argument: OperatorArgument) -> str:
    # An int for a float goes to the user's function, because the operator would convert it.
    wanted = _scalar_types(argument.spec)[0]
    check = f"isinstance({argument.parameter}, {wanted})"
    return f"({check} and not isinstance({argument.parameter}, bool))" if wanted == "int" else check
