"""Guards: compiled conditions that let a call through if it equals an earlier one in everything that matters.

A guard checks types, dtypes, devices, shapes, strides and the modes of torch in a fraction of a microsecond. It uses
torch's own tensor guards, those of compiled graphs, if they work as expected here; else generated Python.

This module imports torch: guards are compiled when a call is there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from .validation import mode_problem

Guard: TypeAlias = Callable[..., Any]
"""True for a call that equals the one it was compiled from; takes the definition's arguments."""

_ALIGNMENT = 16
"""Bytes. Benchmarked tensors have this alignment, and vectorised loads need it."""


def compile_guard(
    args: Sequence[Any],
    *,
    outputs: int = 0,
    is_aligned: bool = False,
    may_capture: bool = True,
    has_grad: bool = False,
) -> Guard:
    """Compile a guard from a call that a `CallValidator` accepted or rejected.

    Args:
        args: The call's arguments.
        outputs: The number of outputs at the end of the arguments; they must not overlap with others.
        is_aligned: Whether addresses must be multiples of `_ALIGNMENT`, as those of `args` are.
        may_capture: Whether calls pass while a CUDA graph is captured.
        has_grad: Whether gradients must be recorded or must not be, if a tensor requires one.
    """
    scope: dict[str, Any] = {
        "grad": torch.is_grad_enabled,
        "device": torch.cuda.current_device,
        "capturing": torch.cuda.is_current_stream_capturing,
        "type": type,
    }
    names = [f"a{index}" for index in range(len(args))]
    tensors: dict[str, torch.Tensor] = {}
    conditions: list[str] = []
    for name, value in zip(names, args, strict=True):
        if not isinstance(value, torch.Tensor):
            scope[f"t_{name}"] = type(value)
            conditions.append(f"type({name}) is t_{name}")
        elif same := next((other for other, known in tensors.items() if known is value), None):
            conditions.append(f"{name} is {same}")  # torch's guards take each tensor only once
        else:
            tensors[name] = value
    guard = scope["guard"] = _tensor_guard_compiler()(list(tensors.values()))
    conditions.append(f"guard({', '.join(tensors)})")
    if any(tensor.requires_grad for tensor in tensors.values()):
        conditions.insert(0, "grad()" if has_grad else "not grad()")
    conditions += _address_conditions(list(tensors.items()), outputs, is_aligned=is_aligned)
    if _is_multi_device(tensors):
        conditions.append(f"device() == {next(iter(tensors.values())).device.index}")
    if not may_capture and any(tensor.is_cuda for tensor in tensors.values()):
        conditions.insert(0, "not capturing()")
    if len(conditions) == 1 and len(tensors) == len(args):
        return guard
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


def are_aligned(args: Sequence[Any]) -> bool:
    """Whether all tensors have the alignment of benchmarked ones."""
    return all(arg.data_ptr() % _ALIGNMENT == 0 for arg in args if isinstance(arg, torch.Tensor))


def _is_multi_device(tensors: Mapping[str, torch.Tensor]) -> bool:
    """Whether the current CUDA device could be another than that of the tensors."""
    return any(tensor.is_cuda for tensor in tensors.values()) and torch.cuda.device_count() > 1


@functools.cache
def _tensor_guard_compiler() -> Callable[[Sequence[torch.Tensor]], Guard]:
    """The compiler of tensor guards: that of torch if its guards work as expected, else that of Python guards."""
    try:
        return _torch_guard if _is_reliable(_torch_guard) else _python_guard
    except Exception:  # noqa: BLE001 an internal of torch may raise anything
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


def _is_reliable(compile_: Callable[[Sequence[torch.Tensor]], Guard]) -> bool:
    """Whether compiled guards accept equal tensors and reject all others, on a set of samples."""
    a, b = torch.zeros(2, 3), torch.zeros(3)
    guard = compile_([a, b])
    if guard(b, b):
        return False
    others = [a.double(), a[:1], a.T.contiguous().T, a.unsqueeze(0), torch.zeros(2, 4), a.to("meta")]
    others += [a.clone().requires_grad_(), torch.nn.Parameter(a, requires_grad=False), a.to_sparse()]
    if any(guard(other, b) for other in others) or not guard(torch.ones(2, 3), b):
        return False
    accepted: list[bool] = []

    def call(x: torch.Tensor) -> torch.Tensor:
        accepted.append(bool(guard(x, b)))
        return x

    torch.vmap(call)(torch.zeros(2, 2, 3))
    with torch.autocast("cpu"):
        call(a)
    return not any(accepted)
