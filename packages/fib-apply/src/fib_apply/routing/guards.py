"""Guards: compiled conditions that let a call through if it equals an earlier one in everything that matters.

A guard checks types, dtypes, devices, shapes, strides and the modes of torch in a fraction of a microsecond. It uses
torch's own tensor guards, those of compiled graphs, if they work as expected here; else generated Python.

This module imports torch: guards are compiled when a call is there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import attrs
import torch

from ..signal_errors import is_from_signal_handler
from .native.module import NativeGuards, loaded_guards
from .native.self_test import find_tensor_problem
from .validation import has_function_mode, mode_problem

Guard: TypeAlias = Callable[..., Any]
"""True for a call that equals the one it was compiled from; takes the definition's arguments."""

_ALIGNMENT = 16
"""Bytes. Benchmarked tensors have this alignment, and vectorised loads need it."""


@attrs.frozen(kw_only=True)
class GuardOptions:
    """Checks of a guard beside types, dtypes, devices, shapes, strides and modes."""

    outputs: int = 0
    """The number of outputs at the end of the arguments; they must not overlap with others."""
    is_aligned: bool = False
    """Whether addresses must be multiples of `_ALIGNMENT`, as those of the first call are."""
    may_capture: bool = True
    """Whether calls pass while a CUDA graph is captured."""
    has_grad: bool = False
    """Whether gradients must be recorded or must not be, if a tensor requires one."""
    is_specialized: bool = False
    """Whether scalars must be equal in what kernels specialize on; see `specialization`."""


_DEFAULT = GuardOptions()


def make_native_guard(native: NativeGuards, args: Sequence[Any], options: GuardOptions) -> Guard | None:
    """A native guard from a call; None if the native module cannot describe the call."""
    tensors = [value for value in args if isinstance(value, torch.Tensor)]
    return native.make_guard(
        tuple(args),
        options.outputs,
        _ALIGNMENT if options.is_aligned else 1,
        options.has_grad,
        options.is_specialized,
        not options.may_capture and any(tensor.is_cuda for tensor in tensors),
        _is_multi_device(tensors),
    )


def compile_guard(args: Sequence[Any], options: GuardOptions = _DEFAULT) -> Guard:
    """Compile a guard from a call that a `CallValidator` accepted or rejected: a native one if that can be.

    Args:
        args: The call's arguments.
        options: What is checked.
    """
    native = loaded_guards()
    guard = None if native is None else make_native_guard(native, args, options)
    return compile_python_guard(args, options) if guard is None else guard


def compile_python_guard(args: Sequence[Any], options: GuardOptions = _DEFAULT) -> Guard:
    """Compile a guard of Python conditions and torch's tensor guards.

    Args:
        args: The call's arguments.
        options: What is checked.
    """
    scope: dict[str, Any] = {
        "grad": torch.is_grad_enabled,
        "device": torch.cuda.current_device,
        "capturing": torch.cuda.is_current_stream_capturing,
        "type": type,
        "modes": torch._C._len_torch_function_stack,  # noqa: SLF001 torch has no public name for it
        "has_function_mode": has_function_mode,
        "forward_ad": torch.autograd.forward_ad,
    }
    names = [f"a{index}" for index in range(len(args))]
    tensors: dict[str, torch.Tensor] = {}
    conditions: list[str] = []
    for name, value in zip(names, args, strict=True):
        if not isinstance(value, torch.Tensor):
            scope[f"t_{name}"] = type(value)
            conditions.append(f"type({name}) is t_{name}")
            if options.is_specialized and isinstance(value, int):
                scope["specialization"] = specialization
                conditions.append(f"specialization({name}) == {specialization(value)!r}")
        elif same := next((other for other, known in tensors.items() if known is value), None):
            conditions.append(f"{name} is {same}")  # torch's guards take each tensor only once
        else:
            tensors[name] = value
    scope["guard"] = _tensor_guard_compiler()(list(tensors.values()))
    conditions.append(f"guard({', '.join(tensors)})")
    conditions.append("(not modes() or not has_function_mode()) and forward_ad._current_level < 0")
    if any(tensor.requires_grad for tensor in tensors.values()):
        conditions.insert(0, "grad()" if options.has_grad else "not grad()")
    conditions += _address_conditions(list(tensors.items()), options.outputs, is_aligned=options.is_aligned)
    if _is_multi_device(tensors.values()):
        conditions.append(f"device() == {next(iter(tensors.values())).device.index}")
    if not options.may_capture and any(tensor.is_cuda for tensor in tensors.values()):
        conditions.insert(0, "not capturing()")
    code = f"lambda {', '.join(names)}: {' and '.join(conditions)}"
    made: Guard = eval(code, scope)  # noqa: S307 made of numbers and our own names
    return made


def _address_conditions(tensors: Sequence[tuple[str, torch.Tensor]], outputs: int, *, is_aligned: bool) -> list[str]:
    """Conditions of alignment and of outputs that overlap with no other tensor. Each address is read once.

    Args:
        tensors: Contiguous tensors, outputs last.
        outputs: The number of outputs.
        is_aligned: Whether addresses must be aligned.
    """
    if not (outputs or is_aligned):
        return []
    addresses = " | ".join(f"(p_{name} := {name}.data_ptr())" for name, _ in tensors)
    conditions = [f"not ({addresses}) & {_ALIGNMENT - 1 if is_aligned else 0}"]
    for index in range(len(tensors) - outputs, len(tensors)):
        name, tensor = tensors[index]
        conditions += [
            f"not -{tensor.nbytes} < p_{name} - p_{other} < {another.nbytes}" for other, another in tensors[:index]
        ]
    return conditions


def specialization(value: Any) -> Any:
    """The properties of a scalar that Triton compiles for: whether an integer is 1, a multiple of 16, and small."""
    if isinstance(value, bool):
        return value
    return (value == 1, value % 16 == 0, -(1 << 31) <= value < 1 << 31) if isinstance(value, int) else None


def are_aligned(args: Sequence[Any]) -> bool:
    """Whether all tensors have the alignment of benchmarked ones."""
    return all(arg.data_ptr() % _ALIGNMENT == 0 for arg in args if isinstance(arg, torch.Tensor))


def _is_multi_device(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether the current CUDA device could be another than that of the tensors."""
    return any(tensor.is_cuda for tensor in tensors) and torch.cuda.device_count() > 1


@functools.cache
def _tensor_guard_compiler() -> Callable[[Sequence[torch.Tensor]], Guard]:
    """The compiler of tensor guards: that of torch if its guards work as expected, else that of Python guards."""
    try:
        return _python_guard if find_tensor_problem(_torch_guard) else _torch_guard
    except Exception as error:
        if is_from_signal_handler(error):
            raise
        return _python_guard


def _torch_guard(tensors: Sequence[torch.Tensor]) -> Guard:
    """Measured on two cores: 0.25 us for two tensors and 0.5 us for six; generated Python takes 0.3 us for each."""
    from torch._C._dynamo import guards

    kind: Any = guards.TensorGuards  # its type stub does not declare the arguments
    sizes = [list(tensor.shape) for tensor in tensors]
    strides = [list(tensor.stride()) for tensor in tensors]
    made: Guard = kind(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check
    return made


def _python_guard(tensors: Sequence[torch.Tensor]) -> Guard:
    names = [f"a{index}" for index in range(len(tensors))]
    scope: dict[str, Any] = {"Tensor": torch.Tensor, "Parameter": torch.nn.Parameter, "has_mode": _has_mode}
    conditions = []
    for name, tensor in zip(names, tensors, strict=True):
        scope |= {f"{name}_{field}": getattr(tensor, field) for field in ("dtype", "device", "shape")}
        scope[f"{name}_type"], scope[f"{name}_stride"] = type(tensor), tensor.stride()
        conditions += [
            f"type({name}) is {name}_type",
            f"{name}.dtype is {name}_dtype",
            f"{name}.shape == {name}_shape",
            f"{name}.stride() == {name}_stride",
            f"{name}.device == {name}_device",
            f"{name}.requires_grad is {tensor.requires_grad}",
        ]
    code = f"lambda {', '.join(names)}: {' and '.join([*conditions, f'not has_mode({names[0]})'])}"
    made: Guard = eval(code, scope)  # noqa: S307 made of a0, a1 and names of fields
    return made


def _has_mode(tensor: torch.Tensor) -> bool:
    return mode_problem([tensor]) is not None or tensor.layout is not torch.strided
