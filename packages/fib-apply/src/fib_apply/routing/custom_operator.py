"""Custom operators: torch operators that call a decorated function, registered when a graph first needs them."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn
from weakref import WeakValueDictionary

from fib_schema.definition import TORCH_DTYPE_NAMES

from ..errors import CannotRoute
from .codegen import compile_function
from .operator_schema import NAMESPACE, OperatorSchema

if TYPE_CHECKING:
    import torch

_lock = threading.Lock()
_registered: list[str] = []
"""The names of all registered operators."""


@functools.cache
def _library() -> Any:  # torch does not type it
    """The library of all operators; torch drops them when it is collected.

    A call of an operator that `torch.library.custom_op` registers takes 6 us longer: it has kernels in Python for
    autograd, and checks aliases that `CustomOperator` excludes.
    """
    import torch

    return torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]


class CustomOperator:
    """A torch operator that calls a function."""

    _by_name: ClassVar[WeakValueDictionary[str, CustomOperator]] = WeakValueDictionary()

    def __init__(self, name: str, schema: OperatorSchema, wrapper: Callable[..., Any]) -> None:
        self.name = name
        self._schema = schema
        self._wrapper = wrapper
        self._is_registered = False
        self._run: Callable[..., Any]
        self._inlined: set[str] = set()
        self._device_index = next(i for i, one in enumerate(schema.arguments) if one is schema.device_argument)
        self._results: list[tuple[Any, tuple[int | list[tuple[int, int]], ...]]] = []

    @classmethod
    def named(cls, name: str, schema: OperatorSchema, wrapper: Callable[..., Any]) -> CustomOperator:
        """An operator of that name, with a number if the name is taken, e.g. by a function made in a loop.

        Args:
            name: The name.
            schema: The operator's arguments and results.
            wrapper: The decorated function, which it calls.
        """
        with _lock:
            names = (f"{name}_{count}" if count else name for count in itertools.count())
            free = next(candidate for candidate in names if candidate not in cls._by_name)
            made = cls._by_name[free] = cls(free, schema, wrapper)
        return made

    @property
    def argument_names(self) -> list[str]:
        """The inputs and outputs that its arguments are, in order."""
        return [argument.name for argument in self._schema.arguments]

    def register(self) -> bool:
        """Register the operator, unless that was done; returns True, a constant for Dynamo."""
        with _lock:
            if not self._is_registered:
                self._register()
            self._is_registered = True
        return True

    def register_inlined(self, digest: str, graph: Callable[..., Any]) -> str:
        """Register an operator for calls of one kind that compilers replace by a graph; returns its name.

        Where no compiler decomposes it, e.g. in the backend ``eager``, it calls the decorated function, too.

        Args:
            digest: Identifies the graph in all processes: torch caches compiled code under the operator's name.
            graph: Takes the operator's arguments.
        """
        import torch
        from torch._subclasses.functional_tensor import FunctionalTensorMode

        def decompose(mode: Any, operator: Any, types: Any, args: Any, kwargs: Any) -> Any:
            del operator, types
            with mode:
                return graph(*args, **kwargs)

        name = f"{self.name}_inlined_{digest}"
        with _lock:
            if name not in self._inlined:
                self._define(name)
                rule = torch.library.register_torch_dispatch
                rule(f"{NAMESPACE}::{name}", FunctionalTensorMode, decompose, lib=_library())
                self._inlined.add(name)
        return name

    def _register(self) -> None:
        import torch

        for spec in self._schema.definition.outputs.values():
            axes = self._schema.result_axes(spec)
            sizes = tuple(axis if isinstance(axis, int) else self._schema.places[axis] for axis in axes)
            self._results.append((getattr(torch, TORCH_DTYPE_NAMES[spec.dtype]), sizes))
        self._run = self._make_run()
        self._define(self.name)
        if self._schema.is_destination_passing:
            _library().impl(self.name, self._mutate, "ADInplaceOrView", with_keyset=True)

    def _define(self, name: str) -> None:
        import torch

        library = _library()
        library.define(name + self._schema.schema(), tags=(torch.Tag.pt2_compliant_tag,))
        library.impl(name, self._run, "CompositeExplicitAutograd")
        torch.library.register_fake(f"{NAMESPACE}::{name}", self._fake, lib=library)
        _registered.append(name)

    def _mutate(self, keys: torch.DispatchKeySet, *args: Any) -> None:
        """Increment the versions of outputs, so that autograd notices that they are overwritten; then run."""
        import torch

        for argument, value in zip(self._schema.arguments, args, strict=True):
            if argument.is_output:
                torch.autograd.graph.increment_version(value)
        operator = getattr(getattr(torch.ops, NAMESPACE), self.name).default
        operator.redispatch(keys & torch._C._after_ADInplaceOrView_keyset, *args)  # noqa: SLF001 torch has no public name

    def _make_run(self) -> Callable[..., Any]:
        """The implementation. Generated checks of results take a quarter of the time of `_audit`."""
        import torch

        scope = {
            "_fib_wrapper": self._wrapper,
            "_fib_audit": self._audit,
            "_fib_type": type,
            "_fib_tensor": torch.Tensor,
            "_fib_dtype": self._results[0][0],
            "_fib_is_alias": getattr(torch._C, "_is_alias_of", _have_one_storage),  # noqa: SLF001 no public name
        }
        return compile_function(self._schema.run_source(), "run", scope, f"fib-apply operator {self.name}")

    def _fake(self, *args: Any) -> Any:
        if self._schema.is_destination_passing:
            return None
        like = args[self._device_index]
        return _unwrap_single([like.new_empty(sizes, dtype=dtype) for dtype, sizes in self._schema.output_shapes(args)])

    def _audit(self, result: Any, args: Sequence[Any]) -> Any:
        """The results as graphs expect them: contiguous, and in memory of their own."""
        import torch

        results = list(result) if isinstance(result, (tuple, list)) else [result]
        if not self._are_valid(results, args):
            self._raise_invalid(results, args)
        taken = {arg.untyped_storage().data_ptr() for arg in args if isinstance(arg, torch.Tensor)}
        for index, tensor in enumerate(results):
            own = tensor.contiguous()
            if own.untyped_storage().data_ptr() in taken:
                own = own.clone(memory_format=torch.contiguous_format)
            taken.add(own.untyped_storage().data_ptr())
            results[index] = own
        return _unwrap_single(results)

    def _are_valid(self, results: Sequence[Any], args: Sequence[Any]) -> bool:
        """Whether results have the declared dtypes, shapes and device; called for each call of a graph."""
        device = args[self._device_index].device
        if len(results) != len(self._results):
            return False
        for found, (dtype, sizes) in zip(results, self._results, strict=True):
            if getattr(found, "dtype", None) is not dtype or found.device != device or len(found.shape) != len(sizes):
                return False
            for size, wanted in zip(found.shape, sizes, strict=True):
                if size != (wanted if isinstance(wanted, int) else _size_at(wanted, args)):
                    return False
        return True

    def _raise_invalid(self, results: Sequence[Any], args: Sequence[Any]) -> NoReturn:
        device = args[self._device_index].device
        found = [
            (getattr(r, "dtype", type(r)), list(getattr(r, "shape", ())), getattr(r, "device", None)) for r in results
        ]
        wanted = [(dtype, list(sizes), device) for dtype, sizes in self._schema.output_shapes(args)]
        problem = f"in a compiled graph it must return {_describe(wanted)}, got {_describe(found)}"
        raise CannotRoute(self._schema.definition.name, problem)


def _have_one_storage(one: Any, other: Any) -> bool:
    return bool(one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr())


def _size_at(places: Sequence[tuple[int, int]], args: Sequence[Any]) -> Any:
    """The size of an axis: that of the first argument that is present."""
    for index, dim in places:
        if args[index] is not None:
            return args[index].shape[dim]
    return None


def _unwrap_single(results: list[Any]) -> Any:
    return results[0] if len(results) == 1 else tuple(results)


def _describe(results: Sequence[tuple[object, list[int], object]]) -> str:
    return ", ".join(f"{dtype} {shape} on {device}" for dtype, shape, device in results)
