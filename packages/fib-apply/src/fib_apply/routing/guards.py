"""Guards: compiled conditions that let a call through if it equals an earlier one in everything that matters.

A guard checks types, dtypes, devices, shapes, strides and the modes of torch in a fraction of a microsecond. There are
two forms: those of the native module, and generated Python around torch's own tensor guards for where that is missing.

This module imports torch: guards are compiled when a call is there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch

from ..events import logger
from .native.module import NativeGuards, loaded_guards
from .native.self_test import find_tensor_problem
from .validation import extent_bytes, has_function_mode

Guard: TypeAlias = Callable[..., Any]
"""True for a call that equals the one it was compiled from; takes the definition's arguments."""

_ALIGNMENT = 16
"""Bytes. Benchmarked tensors have this alignment, and vectorised loads need it."""


class GuardOptions(NamedTuple):
    """Checks of a guard beside types, dtypes, devices, shapes, strides and modes."""

    outputs: int = 0
    """The number of outputs at the end of the arguments; they must not overlap with others."""
    is_aligned: bool = False
    """Whether addresses must be multiples of `_ALIGNMENT`, as those of the first call are."""
    may_capture: bool = True
    """Whether calls pass while a CUDA graph is captured."""
    has_grad: bool = False
    """Whether gradients must be recorded or must not be, if a tensor requires one."""
    compares_numbers: bool = False
    """Whether numbers must be equal, because selection or compilation depends on them."""
    ignores_sizes: bool = False
    """Whether sizes and strides may differ, but not numbers of dimensions. Outputs cannot be checked then."""


_DEFAULT = GuardOptions()


_TYPED, _EQUAL = -1, -2
_NUMBERS = (bool, int, float)


def make_native_guard(native: NativeGuards, args: Sequence[Any], options: GuardOptions) -> Guard | None:
    """A native guard from a call; None if the native module cannot describe the call."""
    has_cuda = _has_cuda(args)
    made: Guard | None = native.make_guard(
        tuple(args),
        options.outputs,
        _ALIGNMENT if options.is_aligned else 1,
        options.has_grad,
        options.compares_numbers,
        has_cuda and not options.may_capture,
        has_cuda and torch.cuda.device_count() > 1,
        options.ignores_sizes,
    )
    return made


def compile_guard(args: Sequence[Any], options: GuardOptions = _DEFAULT) -> Guard | None:
    """Compile a guard from a call that a `CallValidator` accepted or rejected: a native one if that can be.

    None if there is no usable form of guards: such calls take the slow path.
    """
    native = loaded_guards()
    guard = None if native is None else make_native_guard(native, args, options)
    return compile_python_guard(args, options) if guard is None else guard


def compile_python_guard(args: Sequence[Any], options: GuardOptions = _DEFAULT) -> Guard | None:
    """Compile a guard of Python conditions and torch's tensor guards; None if the latter cannot be used."""
    if _tensor_guard_problem() is not None:
        return None
    first: dict[int, int] = {}  # by identity
    places = [first.setdefault(id(v), place) if isinstance(v, torch.Tensor) else _TYPED for place, v in enumerate(args)]
    numbers = []
    for place, value in enumerate(args) if options.compares_numbers else ():
        if type(value) in _NUMBERS:
            places[place] = _EQUAL
            numbers.append(value)
    tensors = [args[place] for place in first.values()]
    has_cuda = _has_cuda(tensors)
    conditions = _Conditions(
        tuple(places),
        options.outputs,
        options.is_aligned,
        options.has_grad if any(tensor.requires_grad for tensor in tensors) else None,
        has_cuda and not options.may_capture,
        has_cuda and torch.cuda.device_count() > 1,
    )
    return _compile_factory(conditions)(
        _tensor_guard(tensors, ignores_sizes=options.ignores_sizes),
        [type(value) for value in args if not isinstance(value, torch.Tensor)],
        numbers,
        [extent_bytes(tensor) for tensor in tensors] if options.outputs else (),
        tensors[0].device.index if conditions.checks_device else None,
        torch.get_default_dtype(),
    )


class _Conditions(NamedTuple):
    """The part of a guard that its code depends on; all else are values.

    A named tuple is made and hashed in a third of the time that an attrs class takes.
    """

    places: tuple[int, ...]
    """Of each tensor the first argument that is the same one; of others `_TYPED` or `_EQUAL`."""
    outputs: int
    is_aligned: bool
    grad: bool | None
    """Whether gradients must be recorded; None if no tensor requires one."""
    checks_capture: bool
    checks_device: bool


@functools.lru_cache(maxsize=1024)
def _compile_factory(conditions: _Conditions) -> Callable[..., Guard]:
    """Compile a function that makes guards of the same conditions, because compiling each guard takes 20 us and more.

    It takes a tensor guard, the types of arguments that are no tensors, the values of some of them, the bytes of
    tensors, the index of their device, and the default dtype.
    """
    names = [f"a{place}" for place in range(len(conditions.places))]
    pairs = list(zip(names, conditions.places, strict=True))
    tensors = [name for place, name in enumerate(names) if conditions.places[place] == place]
    others = [name for name, same in pairs if same < 0]
    numbers = [name for name, same in pairs if same == _EQUAL]
    found = [
        *(["not capturing()"] if conditions.checks_capture else []),
        *([] if conditions.grad is None else ["grad()" if conditions.grad else "not grad()"]),
        *(f"type({name}) is t_{name}" for name in others),
        *(f"({name} is n_{name} or {name} == n_{name})" for name in numbers),
        *(f"{name} is {names[same]}" for name, same in pairs if same >= 0 and name != names[same]),
        f"guard({', '.join(tensors)})",  # torch's guards take each tensor only once
        "(not modes() or not has_function_mode()) and forward_ad._current_level < 0 and default_dtype() is default",
        *_address_conditions(tensors, conditions.outputs, is_aligned=conditions.is_aligned),
        *(["device() == index"] if conditions.checks_device else []),
    ]
    extents = tensors if conditions.outputs else []
    lines = [
        "def make(guard, types, numbers, extents, index, default):",
        f"    [{', '.join(f't_{name}' for name in others)}] = types",
        f"    [{', '.join(f'n_{name}' for name in numbers)}] = numbers",
        f"    [{', '.join(f'e_{name}' for name in extents)}] = extents",
        f"    return lambda {', '.join(names)}: {' and '.join(found)}",
    ]
    scope: dict[str, Any] = {
        "grad": torch.is_grad_enabled,
        "device": torch.cuda.current_device,
        "capturing": torch.cuda.is_current_stream_capturing,
        "type": type,
        "modes": torch._C._len_torch_function_stack,  # noqa: SLF001 torch has no public name for it
        "has_function_mode": has_function_mode,
        "forward_ad": torch.autograd.forward_ad,
        "default_dtype": torch.get_default_dtype,
    }
    exec(compile("\n".join(lines), "<fib_apply guard>", "exec"), scope)  # noqa: S102 made of numbers and our own names
    made: Callable[..., Guard] = scope["make"]
    return made


def _address_conditions(tensors: Sequence[str], outputs: int, *, is_aligned: bool) -> list[str]:
    """Conditions of alignment and of outputs that overlap with no other tensor. Each address is read once."""
    if not (outputs or is_aligned):
        return []
    addresses = " | ".join(f"(p_{name} := {name}.data_ptr())" for name in tensors)
    conditions = [f"not ({addresses}) & {_ALIGNMENT - 1 if is_aligned else 0}"]
    for index in range(len(tensors) - outputs, len(tensors)):
        name = tensors[index]
        conditions += [f"not -e_{name} < p_{name} - p_{other} < e_{other}" for other in tensors[:index]]
    return conditions


def are_aligned(args: Sequence[Any]) -> bool:
    """Whether all tensors have the alignment of benchmarked ones."""
    return all(arg.data_ptr() % _ALIGNMENT == 0 for arg in args if isinstance(arg, torch.Tensor))


def _has_cuda(args: Iterable[Any]) -> bool:
    """Whether an argument is a tensor on a CUDA device."""
    for arg in args:  # noqa: SIM110 `any` takes twice the time
        if isinstance(arg, torch.Tensor) and arg.is_cuda:
            return True
    return False


def _tensor_guard(tensors: Sequence[torch.Tensor], *, ignores_sizes: bool = False) -> Guard:
    """Torch's guard of tensors, that of compiled graphs.

    Measured on two cores: 0.25 us for two tensors and 0.5 us for six; generated Python takes 0.3 us for each.
    """
    sizes: list[list[int | None]]
    strides: list[list[int | None]]
    if ignores_sizes:
        sizes = strides = [[None] * tensor.dim() for tensor in tensors]
    else:
        sizes = [[*tensor.shape] for tensor in tensors]
        strides = [[*tensor.stride()] for tensor in tensors]
    made: Guard = _tensor_guard_type()(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check
    return made


@functools.cache
def _tensor_guard_type() -> Any:  # its type stub does not declare the arguments
    from torch._C._dynamo import guards

    return guards.TensorGuards


@functools.cache
def _tensor_guard_problem() -> str | None:
    """Reason why torch's guards, which are private to it, cannot be used; None if they work as expected."""
    try:
        problem = find_tensor_problem(_tensor_guard)
    except Exception as error:  # noqa: BLE001 - another version of torch may have other guards, or none
        problem = f"{type(error).__name__}: {error}"
    if problem is not None:
        logger.warning("no call takes the fast path until native guards are loaded: torch's guards: %s", problem)
    return problem
