"""Call validation: whether a call matches a definition and the conditions under which solutions were verified.

A `CallValidator` checks everything and says what differs, in some microseconds. Later calls with the same types,
dtypes, devices, shapes and strides only pass a compiled guard; see `guards`.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import torch
from fib_compile.device import dtype_str_to_python_dtype, torch_dtype
from fib_schema import AxisError, ConstraintError, Definition, TensorSpec, constraint_names, evaluate_constraint
from fib_schema.strides import Strides, normalized_strides, storage_elements, strides_problem
from torch.utils._device import DeviceContext

from ..key import compile_axis_reader


@attrs.frozen
class Rejection:
    """Reason why no verified solution can serve a call."""

    reason: str
    """One of a few words, for metrics."""
    problem: str
    is_cacheable: bool = False
    """Whether it depends on properties of the tensors that a guard checks: equal calls will be rejected as well."""


class CallValidator:
    """Validates the calls of one definition."""

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
        """Reason for rejecting a call; None if it is valid."""
        if len(args) != len(self._specs):
            return Rejection("arguments", f"{len(args)} arguments instead of {len(self._specs)}")
        tensors = [value for value in args if isinstance(value, torch.Tensor)]
        if not tensors:
            return Rejection("arguments", "no argument is a tensor")
        if has_nested(tensors):
            return Rejection("tensor", "a tensor is nested")
        if problem := mode_problem(tensors):
            return Rejection("mode", problem)
        is_cacheable = all(map(is_strided, tensors))
        if (default := torch.get_default_dtype()) is not torch.float32:
            problem = f"the default dtype is {default}, and solutions are verified with torch.float32"
            return Rejection("mode", problem, is_cacheable)
        for place, ((name, spec), dtype, value) in enumerate(zip(self._specs.items(), self._dtypes, args, strict=True)):
            if dtype is None and place >= self._inputs:
                return Rejection("arguments", f"{name}: a scalar output cannot be passed as an argument")
            if dtype is None or value is None:
                if problem := _scalar_problem(spec, self._scalars.get(name, object), value):
                    return Rejection("arguments", f"{name}: {problem}", is_cacheable)
            elif problem := _tensor_problem(spec, dtype, value, is_input=place < self._inputs):
                return Rejection("tensor", f"{name}: {problem}", is_cacheable and isinstance(value, torch.Tensor))
        return self._rejection_of_combination(args, tensors)

    def result_problem(self, inputs: Sequence[Any], results: Sequence[Any]) -> str | None:
        """The reason why results of a valid call do not fit the definition; None if they do."""
        definition, device = self._definition, next(each.device for each in inputs if isinstance(each, torch.Tensor))
        try:
            shapes = definition.get_output_shapes(self._read_axes(inputs))
        except AxisError:  # an axis of outputs alone, of which inputs say nothing
            shapes = [None] * len(results)
        for (name, spec), shape, value in zip(definition.outputs.items(), shapes, results, strict=True):
            if spec.shape is None:
                continue
            if not is_strided(value) or value.is_conj() or value.is_neg():
                return f"{name} is a {type(value).__name__}" + (" of another kind" * isinstance(value, torch.Tensor))
            found = value.dtype, tuple(value.shape), value.device
            wanted = torch_dtype(spec.dtype), found[1] if shape is None else shape, device
            if found != wanted:
                return f"{name} has {found[0]} {list(found[1])} on {found[2]} instead of {wanted[0]} {list(wanted[1])}"
        return None

    def _rejection_of_combination(self, args: Sequence[Any], tensors: Sequence[torch.Tensor]) -> Rejection | None:
        device = tensors[0].device
        if any(tensor.device != device for tensor in tensors):
            return Rejection("device", "tensors are on several devices", is_cacheable=True)
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
            return Rejection("grad", "a tensor requires a gradient", is_cacheable=True)
        if problem := self._size_problem(args):
            return Rejection("size", problem, is_cacheable=True)
        return self._overlap(args) if len(args) > self._inputs else None

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
        return self.constraint_problem({**self._const_axes, **axes}) if definition.constraints else None

    def constraint_problem(self, axes: Mapping[str, int]) -> str | None:
        """The constraint that does not hold for the sizes of axes; None if all hold."""
        for constraint in self._definition.constraints:  # constraints on values would need a device synchronization
            try:
                if constraint_names(constraint) <= axes.keys() and not evaluate_constraint(constraint, axes):
                    return f"constraint {constraint!r} does not hold"
            except ConstraintError as error:  # e.g. it divides by a size that is 0
                return str(error)
        return None

    def _overlap(self, args: Sequence[Any]) -> Rejection | None:
        """An output that shares memory with another argument: verified calls have none.

        Guards compare arguments by identity, but do not look for overlaps of different tensors in rejected calls.
        """
        inputs = [_extent(value) for value in args[: self._inputs] if isinstance(value, torch.Tensor)]
        taken: list[tuple[int, int]] = []
        for value in args[self._inputs :]:
            begin, end = _extent(value)
            if any(begin < other_end and other < end for other, other_end in (*inputs, *taken)):
                is_same = any(value is other for other in args[: self._inputs])
                return Rejection("overlap", "an output overlaps another argument", is_cacheable=is_same)
            taken.append((begin, end))
        return None


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    begin = tensor.data_ptr()
    return begin, begin + extent_bytes(tensor)


def extent_bytes(tensor: torch.Tensor) -> int:
    """The bytes from the first to the last element of a tensor, those in between included."""
    return storage_elements(tensor.shape, tensor.stride()) * tensor.element_size()


def call_strides(definition: Definition, args: Sequence[Any]) -> dict[str, Strides]:
    """The strides of a call's inputs that are not contiguous, by name."""
    found = {}
    for name, value in zip(definition.inputs, args, strict=False):  # outputs may follow
        if isinstance(value, torch.Tensor) and not value.is_contiguous():
            strides = normalized_strides(value.shape, value.stride())
            assert strides is not None, "torch and fib_schema differ in what is contiguous"
            found[name] = strides
    return found


def _scalar_problem(spec: TensorSpec, kind: type, value: object) -> str | None:
    if value is None:
        return None if spec.optional else "None, but not optional"
    return None if type(value) is kind else f"{type(value).__name__} instead of {kind.__name__}"


def is_strided(value: Any) -> bool:
    """Whether a value is a strided tensor that owns memory."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    return not torch._C._dispatch_keys(value).raw_repr() & ~_plain_keys()  # noqa: SLF001 torch has no public name for it


@functools.cache
def _plain_keys() -> int:
    """The dispatch keys of tensors that own memory, as bits; the same as in the native module.

    All others are of tensors whose elements lie elsewhere: nested, functional, batched by ``vmap``, known to be zero.
    """
    names = (
        "CUDA", "Meta", "ADInplaceOrView", "AutogradCPU", "AutogradCUDA", "AutogradMeta", "AutocastCPU",
        "AutocastCUDA", "Conjugate", "Negative",
    )  # fmt: skip
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)  # noqa: SLF001
    for name in names:
        keys = keys.add(getattr(torch._C.DispatchKey, name))  # noqa: SLF001
    return int(keys.raw_repr())


def has_nested(args: Sequence[Any]) -> bool:
    """Whether a tensor is nested. It may be of layout strided, but has no shape, and torch's guards abort for it."""
    for arg in args:  # noqa: SIM110 `any` takes twice the time
        if isinstance(arg, torch.Tensor) and arg.is_nested:
            return True
    return False


def _tensor_problem(spec: TensorSpec, dtype: torch.dtype, value: Any, *, is_input: bool) -> str | None:
    if not is_plain_type(type(value)) or not is_strided(value):
        return f"{type(value).__name__} is not a plain strided tensor"
    if value.dtype is not dtype:
        return f"{value.dtype} instead of {dtype}"
    if value.dim() != len(spec.shape or ()):
        return f"{value.dim()} dimensions instead of {len(spec.shape or ())}"
    if not value.is_contiguous():
        strides = normalized_strides(value.shape, value.stride()) or ()
        if not is_input or strides_problem(value.shape, strides) is not None:
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
    if torch._C._is_tracing():  # noqa: SLF001
        return "torch.jit.trace is active"
    if has_function_mode():
        return "a torch function mode is active"
    if device.type == "cuda" and torch.cuda.current_device() != device.index:
        return f"the current CUDA device is not {device}"
    return None


def has_function_mode() -> bool:
    """Whether a torch function mode is active, other than that of a default device, which concerns no kernel."""
    places = range(torch._C._len_torch_function_stack())  # noqa: SLF001 torch has no public name for it
    return any(not isinstance(torch._C._get_function_stack_at(place), DeviceContext) for place in places)  # noqa: SLF001


# -- types of tensors ----------------------------------------------------------------------------------
#
# Engines keep weights in subclasses of `torch.nn.Parameter` that only say how a weight is loaded. They are accepted by
# their qualified names, and only if the class that is found under a name changes nothing that a kernel or torch sees.

_VLLM = "vllm.model_executor.parameter"
_SGLANG = "sglang.srt.layers.parameter"
_NAMES = (
    "BasevLLMParameter", "RowvLLMParameter", "ModelWeightParameter", "GroupQuantScaleParameter",
    "ChannelQuantScaleParameter", "BlockQuantScaleParameter", "PerTensorScaleParameter", "PackedColumnParameter",
    "PackedvLLMParameter",
)  # fmt: skip
ACCEPTED_TYPES = frozenset(f"{module}.{name}" for module in (_VLLM, _SGLANG) for name in _NAMES)
"""Qualified names, as in vLLM 0.26.0 and SGLang 0.5.17."""

_OF_EACH_CLASS = frozenset(vars(type("Empty", (torch.nn.Parameter,), {}))) | {"__new__", "__init__", "__annotations__"}
"""Attributes of any subclass, and those that only concern how an object is made."""
_HOOK, _DISPATCH = "__torch_function__", "__torch_dispatch__"


_PARAMETERS_OF_HOOK = ["cls", "func", "types", "args", "kwargs"]
_CALLS_OF_BASE = [
    *(f"return super().__torch_function__(func, types, args, {each})" for each in ("kwargs", "kwargs or {}")),
    "return super().__torch_function__(func, types, args, {} if kwargs is None else kwargs)",
    "if kwargs is None:\n    kwargs = {}\nreturn super().__torch_function__(func, types, args, kwargs)",
]
"""The bodies of hooks that are accepted."""


def is_plain_type(kind: type) -> bool:
    """Whether tensors of a type behave as plain ones."""
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        return True
    return _is_accepted(kind, getattr(getattr(kind, _HOOK, None), "__func__", None))


@functools.lru_cache(maxsize=256)
def _is_accepted(kind: Any, hook: Any) -> bool:
    """The answer for a class while it has this hook; another one is looked at again."""
    del hook
    return f"{kind.__module__}.{kind.__qualname__}" in ACCEPTED_TYPES and behaviour_problem(kind) is None


def behaviour_problem(kind: type) -> str | None:
    """Reason why tensors of a subclass of `torch.nn.Parameter` may behave differently; None if they do not."""
    if not issubclass(kind, torch.nn.Parameter):
        return f"{kind.__qualname__} is not a torch.nn.Parameter"
    for cls in kind.__mro__[: kind.__mro__.index(torch.nn.Parameter)]:
        own = vars(cls)
        if _DISPATCH in own:
            return f"{cls.__qualname__} defines {_DISPATCH}"
        if _HOOK in own and not _only_delegates(own[_HOOK]):
            return f"{cls.__qualname__} defines {_HOOK}, which does more than to call that of its base class"
        changed = [name for name in own if hasattr(torch.Tensor, name) and name not in _OF_EACH_CLASS | {_HOOK}]
        if changed:
            return f"{cls.__qualname__} changes {', '.join(sorted(changed))}"
    return None


def _only_delegates(hook: Any) -> bool:
    """Whether a ``__torch_function__`` calls that of its base class and returns the result, by its source."""
    try:
        source = textwrap.dedent(inspect.getsource(hook.__func__.__code__))
        (function,) = ast.parse(source).body
    except (AttributeError, OSError, SyntaxError):
        return False
    if not isinstance(function, ast.FunctionDef) or not isinstance(hook, classmethod):
        return False
    body = "\n".join(map(ast.unparse, function.body))
    return [each.arg for each in function.args.args] == _PARAMETERS_OF_HOOK and body in _CALLS_OF_BASE
