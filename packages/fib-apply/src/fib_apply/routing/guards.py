"""Guards: whether a call is like those that were verified.

There are two. `Guard` looks at everything and says what is different; it takes some microseconds.
What it has admitted once it turns into a *check* of that very pattern of types, dtypes, devices,
sizes and strides, which takes a fraction of one. Checks are torch's own, those that compiled graphs
are guarded with, where they do what they should; else they are generated Python.

Imports torch: nobody has a call to guard before it is there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import attrs
import torch
from fib_compile.device import dtype_str_to_python_dtype, torch_dtype
from fib_schema import AxisError, Definition, TensorSpec, constraint_names, evaluate_constraint

Check: TypeAlias = Callable[..., Any]
"""True for a call like the one that it was made from; takes the definition's arguments."""

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_ALIGNMENT = 16
"""Bytes: what benchmarked tensors have at least, and vectorised loads need."""


@attrs.frozen
class Refusal:
    """Why a call is not like verified ones."""

    kind: str
    """One of a few words, for counting."""
    problem: str
    is_lasting: bool = False
    """Whether it lies in the tensors alone: calls of the same pattern will be refused as well."""

    def __str__(self) -> str:
        return self.problem


class Guard:
    """Looks at the calls of one definition.

    Args:
        definition: Whose calls these are.
        has_outputs: Whether outputs are among the arguments, behind the inputs.
    """

    def __init__(self, definition: Definition, *, has_outputs: bool) -> None:
        self._definition = definition
        outputs = definition.outputs if has_outputs else {}
        self._specs = {**definition.inputs, **outputs}
        self._inputs = len(definition.inputs)
        self.arity = len(self._specs)
        """How many arguments a call has."""
        self._dtypes = [None if spec.shape is None else torch_dtype(spec.dtype) for spec in self._specs.values()]
        self._scalars = {
            name: dtype_str_to_python_dtype(spec.dtype) for name, spec in self._specs.items() if spec.shape is None
        }

    def refusal(self, args: Sequence[Any]) -> Refusal | None:
        """What makes a call different from verified ones; None if nothing does.

        Args:
            args: The definition's inputs, and its outputs if they are arguments.
        """
        if len(args) != len(self._specs):
            return Refusal("arguments", f"{len(args)} arguments instead of {len(self._specs)}")
        tensors = [value for value in args if isinstance(value, torch.Tensor)]
        if not tensors:
            return Refusal("arguments", "no tensor among the arguments")
        if problem := _mode_problem(tensors):
            return Refusal("mode", problem)
        is_lasting = all(map(_is_strided, tensors))
        for place, ((name, spec), dtype, value) in enumerate(zip(self._specs.items(), self._dtypes, args, strict=True)):
            if dtype is None and place >= self._inputs:
                return Refusal("arguments", f"{name}: an output that is a number cannot be passed")
            if dtype is None or value is None:
                if problem := _scalar_problem(spec, self._scalars.get(name, object), value):
                    return Refusal("arguments", f"{name}: {problem}", is_lasting)
            elif problem := _tensor_problem(spec, dtype, value):
                return Refusal("tensor", f"{name}: {problem}", is_lasting and isinstance(value, torch.Tensor))
        return self._refusal_of_all(args, tensors)

    def _refusal_of_all(self, args: Sequence[Any], tensors: Sequence[torch.Tensor]) -> Refusal | None:
        device = tensors[0].device
        if any(tensor.device != device for tensor in tensors):
            return Refusal("device", "tensors on several devices", is_lasting=True)
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
            return Refusal("grad", "a tensor requires a gradient", is_lasting=True)
        if problem := self._size_problem(args):
            return Refusal("size", problem, is_lasting=True)
        problem = self._overlap(args)
        return None if problem is None else Refusal("overlap", problem)

    def _size_problem(self, args: Sequence[Any]) -> str | None:
        definition, inputs, outputs = self._definition, args[: self._inputs], args[self._inputs :]
        try:
            axes = definition.get_axes_values_from_inputs(inputs)
            shapes = definition.get_output_shapes(axes) if outputs else []
        except AxisError as error:
            return str(error)
        for name, shape, value in zip(definition.outputs, shapes, outputs, strict=False):  # or no outputs at all
            if shape is not None and tuple(value.shape) != shape:
                return f"{name}: shape {list(value.shape)} instead of {list(shape)}"
        return self._constraint_problem({**definition.const_axes, **axes})

    def _constraint_problem(self, axes: Mapping[str, int]) -> str | None:
        for constraint in self._definition.constraints:  # those on values would have to wait for the device
            if constraint_names(constraint) <= axes.keys() and not evaluate_constraint(constraint, axes):
                return f"the constraint {constraint!r} does not hold"
        return None

    def _overlap(self, args: Sequence[Any]) -> str | None:
        """Outputs over inputs: verified calls have none."""
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
        return None if spec.optional else "None, and it is not optional"
    return None if type(value) is kind else f"{type(value).__name__} instead of {kind.__name__}"


def _is_strided(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided


def _tensor_problem(spec: TensorSpec, dtype: torch.dtype, value: Any) -> str | None:
    if type(value) not in _PLAIN or value.layout is not torch.strided:
        return f"{type(value).__name__} is no plain tensor"
    if value.dtype is not dtype:
        return f"{value.dtype} instead of {dtype}"
    if value.dim() != len(spec.shape or ()):
        return f"{value.dim()} dimensions instead of {len(spec.shape or ())}"
    if not value.is_contiguous():
        return "not contiguous"
    return "it is conjugated or negated in place" if value.is_conj() or value.is_neg() else None


def _mode_problem(tensors: Sequence[torch.Tensor]) -> str | None:
    """What turns a plain call into something else, and where a kernel would run elsewhere."""
    if torch.autograd.forward_ad._current_level >= 0:  # noqa: SLF001 torch has no public name for it
        return "tangents are carried forward"
    device = tensors[0].device
    if device.type not in ("cpu", "cuda"):
        return f"tensors on {device.type!r}"
    if torch.is_autocast_enabled(device.type):
        return "autocast is enabled"
    if torch._C._len_torch_dispatch_stack() or torch._C._functorch.peek_interpreter_stack() is not None:  # noqa: SLF001
        return "a mode or a transform of torch is active"
    if device.type == "cuda" and torch.cuda.current_device() != device.index:
        return "another device is the current one"
    return None


# -- checks of one pattern -----------------------------------------------------------------------


def check_of(
    args: Sequence[Any],
    *,
    outputs: int = 0,
    is_aligned: bool = False,
    may_capture: bool = True,
    has_grad: bool = False,
) -> Check:
    """A check for calls like one that a `Guard` has admitted or refused.

    Args:
        args: The call's arguments.
        outputs: How many of them, at the end, are outputs, which must not overlap with others.
        is_aligned: Whether addresses must be multiples of `_ALIGNMENT`, as those of the call must be.
        may_capture: Whether calls pass while a CUDA graph is captured.
        has_grad: Whether gradients are recorded, if a tensor requires one; else they must not be.
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
            conditions.append(f"{name} is {same}")  # torch's guards take each tensor once
        else:
            tensors[name] = value
    check = scope["check"] = _pattern_check()(list(tensors.values()))
    conditions.append(f"check({', '.join(tensors)})")
    if any(tensor.requires_grad for tensor in tensors.values()):
        conditions.insert(0, "grad()" if has_grad else "not grad()")
    conditions += _places(list(tensors.items()), outputs, is_aligned=is_aligned)
    if _device_matters(tensors):
        conditions.append(f"device() == {next(iter(tensors.values())).device.index}")
    if not may_capture and any(tensor.is_cuda for tensor in tensors.values()):
        conditions.insert(0, "not capturing()")
    if len(conditions) == 1 and len(tensors) == len(args):
        return check
    code = f"lambda {', '.join(names)}: {' and '.join(conditions)}"
    made: Check = eval(code, scope)  # noqa: S307 made of a0, a1, names of types and numbers
    return made


def _places(tensors: Sequence[tuple[str, torch.Tensor]], outputs: int, *, is_aligned: bool) -> list[str]:
    """Conditions on addresses, each of which is asked for once: of alignment, and that outputs overlap with no other.

    Args:
        tensors: Contiguous ones, the outputs last.
        outputs: How many of them are outputs.
        is_aligned: Whether they begin where benchmarked tensors may.
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


def is_aligned(args: Sequence[Any]) -> bool:
    """Whether all tensors begin where benchmarked ones may."""
    return all(arg.data_ptr() % _ALIGNMENT == 0 for arg in args if isinstance(arg, torch.Tensor))


def _device_matters(tensors: Mapping[str, torch.Tensor]) -> bool:
    """Whether a kernel could run on another device than the tensors'."""
    return any(tensor.is_cuda for tensor in tensors.values()) and torch.cuda.device_count() > 1


@functools.cache
def _pattern_check() -> Callable[[Sequence[torch.Tensor]], Check]:
    """How checks of tensors are made here: by torch itself if its guards do what they should."""
    try:
        return _by_torch if _tells_apart(_by_torch) else _by_python
    except Exception:  # noqa: BLE001 private to torch: whatever it raises, generated Python does the same
        return _by_python


def _by_torch(tensors: Sequence[torch.Tensor]) -> Check:
    """Measured on two cores: 0.25 us for two tensors and 0.5 us for six; generated Python takes 0.3 us for each."""
    from torch._C._dynamo import guards

    kind: Any = guards.TensorGuards  # what its arguments are, its types do not say
    sizes = [list(tensor.shape) for tensor in tensors]
    strides = [list(tensor.stride()) for tensor in tensors]
    made: Check = kind(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check
    return made


def _by_python(tensors: Sequence[torch.Tensor]) -> Check:
    names = [f"a{index}" for index in range(len(tensors))]
    scope: dict[str, Any] = {"Tensor": torch.Tensor, "Parameter": torch.nn.Parameter, "mode": _has_mode}
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
    code = f"lambda {', '.join(names)}: {' and '.join([*conditions, f'not mode({names[0]})'])}"
    made: Check = eval(code, scope)  # noqa: S307 made of a0, a1 and names of fields
    return made


def _has_mode(tensor: torch.Tensor) -> bool:
    return _mode_problem([tensor]) is not None or tensor.layout is not torch.strided


def _tells_apart(make: Callable[[Sequence[torch.Tensor]], Check]) -> bool:
    """Whether checks that are made so admit what they must, and nothing else."""
    a, b = torch.zeros(2, 3), torch.zeros(3)
    check = make([a, b])
    if check(b, b):
        return False
    others = [a.double(), a[:1], a.T.contiguous().T, a.unsqueeze(0), torch.zeros(2, 4), a.to("meta")]
    others += [a.clone().requires_grad_(), torch.nn.Parameter(a, requires_grad=False), a.to_sparse()]
    if any(check(other, b) for other in others) or not check(torch.ones(2, 3), b):
        return False
    seen: list[bool] = []

    def look(x: torch.Tensor) -> torch.Tensor:
        seen.append(bool(check(x, b)))
        return x

    torch.vmap(look)(torch.zeros(2, 2, 3))
    with torch.autocast("cpu"):
        look(a)
    return not any(seen)
