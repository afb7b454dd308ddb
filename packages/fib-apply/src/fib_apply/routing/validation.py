"""Call validation: whether a call matches a definition and the conditions under which solutions were verified.

A `CallValidator` checks everything and says what differs, in some microseconds. Later calls with the same types,
dtypes, devices, shapes and strides only pass a compiled guard; see `guards`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import torch
from fib_compile.device import dtype_str_to_python_dtype, torch_dtype
from fib_schema import AxisError, Definition, TensorSpec, constraint_names, evaluate_constraint
from torch.utils._device import DeviceContext

from ..axis_reader import compile_axis_reader

_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)


@attrs.frozen
class Rejection:
    """Reason why no verified solution can serve a call."""

    reason: str
    """One of a few words, for metrics."""
    problem: str
    is_cacheable: bool = False
    """Whether it depends on properties of the tensors that a guard checks: equal calls will be rejected as well."""

    def __str__(self) -> str:
        return self.problem


class CallValidator:
    """Validates the calls of one definition.

    Args:
        definition: The definition.
        has_outputs: Whether outputs are among the arguments, behind the inputs.
    """

    def __init__(self, definition: Definition, *, has_outputs: bool) -> None:
        self._definition = definition
        outputs = definition.outputs if has_outputs else {}
        self._specs = {**definition.inputs, **outputs}
        self._inputs = len(definition.inputs)
        self.arity = len(self._specs)
        """Number of arguments."""
        self._read_axes = compile_axis_reader(definition)
        self._const_axes = definition.const_axes
        self._dtypes = [None if spec.shape is None else torch_dtype(spec.dtype) for spec in self._specs.values()]
        self._scalars = {
            name: dtype_str_to_python_dtype(spec.dtype) for name, spec in self._specs.items() if spec.shape is None
        }

    def rejection(self, args: Sequence[Any]) -> Rejection | None:
        """Reason for rejecting a call; None if it is valid.

        Args:
            args: The definition's inputs, and its outputs if they are arguments.
        """
        if len(args) != len(self._specs):
            return Rejection("arguments", f"{len(args)} arguments instead of {len(self._specs)}")
        tensors = [value for value in args if isinstance(value, torch.Tensor)]
        if not tensors:
            return Rejection("arguments", "no argument is a tensor")
        if has_nested(tensors):
            return Rejection("tensor", "a tensor is nested")
        if problem := mode_problem(tensors):
            return Rejection("mode", problem)
        is_cacheable = all(map(_is_strided, tensors))
        for place, ((name, spec), dtype, value) in enumerate(zip(self._specs.items(), self._dtypes, args, strict=True)):
            if dtype is None and place >= self._inputs:
                return Rejection("arguments", f"{name}: a scalar output cannot be passed as an argument")
            if dtype is None or value is None:
                if problem := _scalar_problem(spec, self._scalars.get(name, object), value):
                    return Rejection("arguments", f"{name}: {problem}", is_cacheable)
            elif problem := _tensor_problem(spec, dtype, value):
                return Rejection("tensor", f"{name}: {problem}", is_cacheable and isinstance(value, torch.Tensor))
        return self._rejection_of_combination(args, tensors)

    def _rejection_of_combination(self, args: Sequence[Any], tensors: Sequence[torch.Tensor]) -> Rejection | None:
        device = tensors[0].device
        if any(tensor.device != device for tensor in tensors):
            return Rejection("device", "tensors are on several devices", is_cacheable=True)
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
            return Rejection("grad", "a tensor requires a gradient", is_cacheable=True)
        if problem := self._size_problem(args):
            return Rejection("size", problem, is_cacheable=True)
        problem = self._overlap(args) if len(args) > self._inputs else None
        return None if problem is None else Rejection("overlap", problem)

    def _size_problem(self, args: Sequence[Any]) -> str | None:
        definition, inputs, outputs = self._definition, args[: self._inputs], args[self._inputs :]
        try:
            axes = self._read_axes(inputs)
            shapes = definition.get_output_shapes(axes) if outputs else []
        except AxisError as error:
            return str(error)
        for name, shape, value in zip(definition.outputs, shapes, outputs, strict=False):  # there may be no outputs
            if shape is not None and tuple(value.shape) != shape:
                return f"{name}: shape {list(value.shape)} instead of {list(shape)}"
        return self._constraint_problem({**self._const_axes, **axes}) if definition.constraints else None

    def _constraint_problem(self, axes: Mapping[str, int]) -> str | None:
        for constraint in self._definition.constraints:  # constraints on values would need a device synchronization
            if constraint_names(constraint) <= axes.keys() and not evaluate_constraint(constraint, axes):
                return f"constraint {constraint!r} does not hold"
        return None

    def _overlap(self, args: Sequence[Any]) -> str | None:
        """An output that shares memory with another argument: verified calls have none."""
        inputs = [_extent(value) for value in args[: self._inputs] if isinstance(value, torch.Tensor)]
        taken: list[tuple[int, int]] = []
        for value in args[self._inputs :]:
            begin, end = _extent(value)
            if any(begin < other_end and other < end for other, other_end in (*inputs, *taken)):
                return "an output overlaps another argument"
            taken.append((begin, end))
        return None


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    begin = tensor.data_ptr()
    return begin, begin + tensor.nbytes


def _scalar_problem(spec: TensorSpec, kind: type, value: object) -> str | None:
    if value is None:
        return None if spec.optional else "None, but not optional"
    return None if type(value) is kind else f"{type(value).__name__} instead of {kind.__name__}"


def _is_strided(value: Any) -> bool:
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    return not (value.is_nested or torch._is_functional_tensor(value))  # noqa: SLF001 torch has no public name for it


def has_nested(args: Sequence[Any]) -> bool:
    """Whether a tensor is nested. It may be of layout strided, but has no shape, and torch's guards abort for it."""
    return any(isinstance(arg, torch.Tensor) and arg.is_nested for arg in args)


def _tensor_problem(spec: TensorSpec, dtype: torch.dtype, value: Any) -> str | None:
    if type(value) not in _PLAIN_TYPES or not _is_strided(value):
        return f"{type(value).__name__} is not a plain strided tensor"
    if value.dtype is not dtype:
        return f"{value.dtype} instead of {dtype}"
    if value.dim() != len(spec.shape or ()):
        return f"{value.dim()} dimensions instead of {len(spec.shape or ())}"
    if not value.is_contiguous():
        return "not contiguous"
    return "lazily conjugated or negated" if value.is_conj() or value.is_neg() else None


def mode_problem(tensors: Sequence[torch.Tensor]) -> str | None:
    """A mode of torch that changes what a call means, or a device on which a kernel would not run."""
    if torch.autograd.forward_ad._current_level >= 0:  # noqa: SLF001 torch has no public name for it
        return "forward-mode differentiation is active"
    device = tensors[0].device
    if device.type not in ("cpu", "cuda"):
        return f"tensors are on {device.type!r}"
    if torch.is_autocast_enabled(device.type):
        return "autocast is enabled"
    if torch._C._len_torch_dispatch_stack() or torch._C._functorch.peek_interpreter_stack() is not None:  # noqa: SLF001
        return "a torch dispatch mode or functorch transform is active"
    if has_function_mode():
        return "a torch function mode is active"
    if device.type == "cuda" and torch.cuda.current_device() != device.index:
        return f"the current CUDA device is not {device}"
    return None


def has_function_mode() -> bool:
    """Whether a torch function mode is active, other than that of a default device, which concerns no kernel."""
    places = range(torch._C._len_torch_function_stack())  # noqa: SLF001 torch has no public name for it
    return any(not isinstance(torch._C._get_function_stack_at(place), DeviceContext) for place in places)  # noqa: SLF001
