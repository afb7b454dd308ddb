"""Kernel tracing. Traces a Triton solution once, with fake tensors, into a graph of its allocations and launches.

`InliningPolicy` puts such a graph in the place of an opaque operator, so that a compiler sees the launches. Only
solutions are traced that do nothing else and keep no state: their functions are copied, with globals of their own in
which each kernel is wrapped by `torch.library.wrap_triton` (`constant_floats`), and everything that might hold state is
refused.
"""

from __future__ import annotations

import builtins
import dis
import hashlib
import operator
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType
from typing import Any, TypeAlias

import attrs
import torch
from fib_compile import Runnable
from fib_schema.framing import framed

from .constant_floats import TracedKernel

_LIBRARIES = frozenset(
    {"builtins", "collections", "contextlib", "functools", "itertools", "math", "operator", "torch", "triton", "typing"}
)
"""Modules whose functions solutions may call: they keep no state that a trace with fake tensors could spoil."""
_CONSTANTS = (type(None), bool, int, float, complex, str, bytes, type(...), torch.dtype, torch.device)
_REFUSED_NAMES = {
    "data_ptr": "reads addresses",
    **dict.fromkeys(("Stream", "stream", "current_stream", "Event", "ExternalStream"), "uses CUDA streams"),
    "is_current_stream_capturing": "depends on whether a CUDA graph is captured",
}
_PLAIN_OPERATORS = frozenset(
    f"aten::{name}"
    for name in (
        "clone", "copy_", "empty", "empty_like", "empty_strided", "fill_", "full", "full_like", "new_empty",
        "new_empty_strided", "new_full", "new_ones", "new_zeros", "ones", "ones_like", "zero_", "zeros", "zeros_like",
    )
)  # fmt: skip
"""Operators beside launches and views. A compiler may compute any other one in another way than was verified."""
_WIDENED = "which Inductor passes as float64 and Triton as float32"


class NotInlined(Exception):
    """A call that stays an opaque operator; the message is the reason."""


@attrs.frozen
class TensorMeta:
    """Everything that a trace knows about a tensor."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def empty(self, device: str | None = None) -> torch.Tensor:
        """A tensor like this; on another device if one is given."""
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=device or self.device)


Input: TypeAlias = "TensorMeta | bool | int | float | None"


@attrs.frozen
class KernelGraph:
    """The allocations and launches of a solution for one kind of call."""

    module: Any = attrs.field(repr=False)
    """A `torch.fx.GraphModule`, which takes the tensors among the inputs."""
    digest: str
    """A hash of the graph, of its kernels' sources and of all constants; equal in all processes."""

    def __call__(self, *args: Any) -> Any:
        """Call the graph with the definition's inputs; scalars are constants of the graph."""
        return self.module(*(arg for arg in args if isinstance(arg, torch.Tensor)))


def trace_kernels(runnable: Runnable, inputs: Sequence[Input]) -> KernelGraph:
    """Trace a value-returning call of a Triton solution.

    Args:
        runnable: The solution.
        inputs: The definition's inputs.

    Raises:
        NotInlined: The solution does other things than launch kernels, or a trace of it fails.
    """
    try:
        return _trace(runnable, inputs)
    except NotInlined:
        raise
    except Exception as error:  # of the solution, or of torch
        raise NotInlined(f"tracing it raised {type(error).__name__}: {_first_line(error)}") from error


def _trace(runnable: Runnable, inputs: Sequence[Input]) -> KernelGraph:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    solution = Runnable(_FunctionCopier().copy(runnable.function), runnable.metadata)

    def call(*tensors: Any) -> Any:
        remaining = iter(tensors)
        return solution.call_value_returning(*(next(remaining) if isinstance(i, TensorMeta) else i for i in inputs))

    metas = [value for value in inputs if isinstance(value, TensorMeta)]
    is_cuda = metas[0].device.type == "cuda"
    with torch.no_grad(), torch.cuda.device(metas[0].device) if is_cuda else nullcontext(), FakeTensorMode():
        module = make_fx(call)(*(meta.empty() for meta in metas))
        _GraphCheck(module.graph, runnable).run()
    return KernelGraph(module, _digest(module.graph, inputs))


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0][:300]


# -- copies of functions -------------------------------------------------------------------------


class _FunctionCopier:
    """Copies functions of a solution together with all that they use, with kernels wrapped for tracing."""

    def __init__(self) -> None:
        self._copies: dict[int, FunctionType] = {}

    def copy(self, function: Any) -> FunctionType:
        """A copy of a function that shares no state with it."""
        if not isinstance(function, FunctionType):
            raise NotInlined(f"its function is a {type(function).__name__}")
        if id(function) in self._copies:
            return self._copies[id(function)]
        cells = function.__closure__ or ()
        closure = tuple(CellType(self._value(function.__name__, cell.cell_contents)) for cell in cells)
        scope: dict[str, Any] = {"__builtins__": builtins, "__name__": function.__module__}
        defaults = self._value(function.__name__, function.__defaults__)
        made = FunctionType(function.__code__, scope, function.__name__, defaults, closure)
        self._copies[id(function)] = made
        made.__kwdefaults__ = self._value(function.__name__, function.__kwdefaults__)
        for name in _names(function.__code__):
            if name in function.__globals__:
                scope[name] = self._value(name, function.__globals__[name])
        return made

    def _value(self, name: str, value: Any) -> Any:
        kind = type(value)
        if kind in _CONSTANTS:
            return value
        if kind in (tuple, list, set, frozenset):
            return kind(self._value(name, one) for one in value)
        if kind is dict:
            return {self._value(name, key): self._value(name, one) for key, one in value.items()}
        if kind is FunctionType and not _is_of_library(value.__module__):
            return self.copy(value)
        if kind.__module__.partition(".")[0] == "triton":
            return _wrap_kernel(name, value)
        is_plain = kind in (FunctionType, BuiltinFunctionType) or isinstance(value, type)
        module = value.__name__ if kind is ModuleType else value.__module__ if is_plain else None
        if module is not None and _is_of_library(module):
            return value
        raise NotInlined(f"{name!r} is a {kind.__name__}, which may keep state between calls")


def _is_of_library(module: str | None) -> bool:
    return module is not None and module.partition(".")[0] in _LIBRARIES


def _wrap_kernel(name: str, value: Any) -> Any:
    """A kernel wrapped for tracing; other objects of Triton, such as a `constexpr`, as they are."""
    from triton.runtime.jit import JITFunction, KernelInterface

    if not isinstance(value, KernelInterface):
        return value
    if not isinstance(value, JITFunction):
        kind = type(value).__name__
        raise NotInlined(f"kernel {name!r} is an {kind}, which decides at each launch how to run")
    if getattr(value, "pre_run_hooks", None):
        raise NotInlined(f"kernel {name!r} has hooks that run before each launch")
    return TracedKernel(value)


def _names(code: CodeType) -> Iterator[str]:
    """The global names that code reads."""
    for instruction in dis.get_instructions(code):
        name, where = instruction.argval, code.co_name
        if instruction.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            raise NotInlined(f"{where!r} changes the global {name!r}")
        if instruction.opname == "IMPORT_NAME" and not _is_of_library(name or None):
            raise NotInlined(f"{where!r} imports {name or 'a module of its own'!r} when it is called")
        if instruction.opname in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL", "LOAD_NAME"):
            if name in _REFUSED_NAMES:
                raise NotInlined(f"{where!r} {_REFUSED_NAMES[name]}")
            if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                yield name
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


# -- checks of graphs ----------------------------------------------------------------------------


@attrs.frozen
class _GraphCheck:
    """Checks that a graph only launches kernels, which write to nothing but memory that the graph allocates."""

    graph: Any
    runnable: Runnable

    def run(self) -> None:
        launches = 0
        for node in self.graph.nodes:
            if _is_launch(node):
                launches += 1
                if name := _float_argument(node):
                    raise NotInlined(f"kernel {_kernel(node).fn.__name__!r} takes the float {name!r}, {_WIDENED}")
                self._check_written(f"kernel {_kernel(node).fn.__name__!r}", _written_by(node))
            elif node.op == "get_attr":
                raise NotInlined("it uses a tensor that is not an input")
            elif node.op == "call_function" and not _is_view(node):
                name = getattr(node.target, "_schema", node.target)
                if getattr(name, "name", None) not in _PLAIN_OPERATORS:
                    raise NotInlined(f"it calls {node.target} beside its kernels")
                if name.name.endswith("_"):
                    self._check_written(name.name, [node.args[0]])
            elif node.op == "output":
                self._check_results(node)
        if not launches:
            raise NotInlined("it launches no kernel")

    def _check_written(self, what: str, written: Sequence[Any]) -> None:
        if any(_owner(node).op == "placeholder" for node in written):
            raise NotInlined(f"{what} writes to an input, as far as torch can tell")

    def _check_results(self, output: Any) -> None:
        """Check that results are as the definition says, contiguous and in memory of their own."""
        found = output.args[0] if isinstance(output.args[0], (tuple, list)) else [output.args[0]]
        definition = self.runnable.metadata.definition
        dtypes = () if definition is None else definition.torch_output_dtypes
        if not all(isinstance(node, torch.fx.Node) for node in found) or len(found) != len(dtypes):
            raise NotInlined("it does not return a tensor for each output")
        for node, dtype in zip(found, dtypes, strict=True):
            value = node.meta["val"]
            if value.dtype is not dtype or not value.is_contiguous():
                raise NotInlined(f"a result is {value.dtype} with strides {list(value.stride())}")
        owners = [_owner(node) for node in found]
        if len(set(owners)) < len(owners) or any(node.op == "placeholder" for node in owners):
            raise NotInlined("a result shares memory with an input or another result")


def _is_launch(node: Any) -> bool:
    from torch._higher_order_ops.triton_kernel_wrap import triton_kernel_wrapper_mutation

    return node.op == "call_function" and node.target is triton_kernel_wrapper_mutation


def _is_view(node: Any) -> bool:
    """Whether a node only returns a view of its first argument."""
    if node.target is operator.getitem:
        return True
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.returns:
        return False
    aliases = [result.alias_info for result in schema.returns]
    return all(alias is not None and not alias.is_write for alias in aliases)


def _owner(node: Any) -> Any:
    """The node that allocates the memory of a node's value."""
    while node.op == "call_function" and _is_view(node):
        node = node.args[0]
    return node


def _kernel(launch: Any) -> Any:
    """The kernel of a launch; torch wraps one that is launched with options such as ``num_warps``."""
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

    kernel: Any = kernel_side_table.get_kernel(launch.kwargs["kernel_idx"])
    return kernel.fn if hasattr(kernel, "configs") else kernel


def _float_argument(launch: Any) -> str | None:
    """The name of a float that a launch passes to its kernel at run time; None if there is none."""
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

    options = launch.kwargs
    passed = {**kernel_side_table.get_constant_args(options["constant_args_idx"]), **options["kwargs"]}
    compiled = {parameter.name for parameter in _kernel(launch).params if parameter.is_constexpr}
    return next((name for name, value in passed.items() if type(value) is float and name not in compiled), None)


def _written_by(launch: Any) -> list[Any]:
    """The nodes that a launch writes to; all if torch cannot analyze the kernel."""
    from torch._higher_order_ops.triton_kernel_wrap import get_mutated_tensors

    options = launch.kwargs
    values = {name: _example(value) for name, value in options["kwargs"].items()}
    names = get_mutated_tensors(
        options["kernel_idx"], options["constant_args_idx"], values, options["tma_descriptor_metadata"]
    )
    return [options["kwargs"][name] for name in names]


def _example(value: Any) -> Any:
    return value.meta["val"] if isinstance(value, torch.fx.Node) else value


def _digest(graph: Any, inputs: Sequence[Input]) -> str:
    """A hash of a graph. Numbers of kernels in this process are replaced by the hashes of their sources."""
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

    parts = [repr(inputs)]
    for node in graph.nodes:
        options = dict(node.kwargs)
        if _is_launch(node):
            kernel = kernel_side_table.get_kernel(options["kernel_idx"])
            options["kernel_idx"] = _kernel(node).cache_key, [str(one) for one in getattr(kernel, "configs", ())]
            options["constant_args_idx"] = kernel_side_table.get_constant_args(options["constant_args_idx"])
        parts.append(f"{node.name} {node.op} {node.target} {node.args!r} {options!r}")
    return hashlib.sha256(framed(parts)).hexdigest()[:12]
