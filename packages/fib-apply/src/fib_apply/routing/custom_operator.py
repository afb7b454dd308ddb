"""Custom operators: torch operators that call a decorated function, registered when a graph first needs them."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakValueDictionary

from ..errors import CannotRoute
from .operator_schema import NAMESPACE, OperatorSchema

if TYPE_CHECKING:
    import torch

_lock = threading.Lock()
_registered: list[Any] = []  # torch drops an operator whose Python object is collected


class CustomOperator:
    """A torch operator that calls a function."""

    _by_name: ClassVar[WeakValueDictionary[str, CustomOperator]] = WeakValueDictionary()

    def __init__(self, name: str, schema: OperatorSchema, entry: Callable[..., Any]) -> None:
        self.name = name
        self._schema = schema
        self._entry = entry
        self._is_registered = False

    @classmethod
    def named(cls, name: str, schema: OperatorSchema, entry: Callable[..., Any]) -> CustomOperator:
        """An operator of that name, with a number if the name is taken, e.g. by a function made in a loop."""
        with _lock:
            names = (f"{name}_{count}" if count else name for count in itertools.count())
            free = next(candidate for candidate in names if candidate not in cls._by_name)
            made = cls._by_name[free] = cls(free, schema, entry)
        return made

    def register(self) -> bool:
        """Register the operator, unless that was done; returns True, a constant for Dynamo."""
        with _lock:
            if not self._is_registered:
                self._register()
            self._is_registered = True
        return True

    def _register(self) -> None:
        import torch

        mutated = [f"a{index}" for index, argument in enumerate(self._schema.arguments) if argument.is_output]
        name, schema = f"{NAMESPACE}::{self.name}", self._schema.schema()
        made = torch.library.custom_op(name, self._run, mutates_args=mutated, schema=schema)
        made.register_fake(self._fake)
        _registered.append(made)

    def _run(self, *args: Any) -> Any:
        result = self._entry(*args)
        return None if self._schema.is_destination_passing else self._outputs(result, args)

    def _fake(self, *args: Any) -> Any:
        if self._schema.is_destination_passing:
            return None
        like = self._device_tensor(args)
        return _unwrap_single([like.new_empty(sizes, dtype=dtype) for dtype, sizes in self._schema.output_shapes(args)])

    def _device_tensor(self, args: Sequence[Any]) -> torch.Tensor:
        pairs = zip(self._schema.arguments, args, strict=True)
        found: torch.Tensor = next(arg for argument, arg in pairs if argument is self._schema.device_argument)
        return found

    def _outputs(self, result: Any, args: Sequence[Any]) -> Any:
        """The results as graphs expect them: contiguous, and in memory of their own."""
        import torch

        results = list(result) if isinstance(result, (tuple, list)) else [result]
        self._validate(results, args)
        taken = {arg.untyped_storage().data_ptr() for arg in args if isinstance(arg, torch.Tensor)}
        for index, tensor in enumerate(results):
            own = tensor.contiguous()
            if own.untyped_storage().data_ptr() in taken:
                own = own.clone(memory_format=torch.contiguous_format)
            taken.add(own.untyped_storage().data_ptr())
            results[index] = own
        return _unwrap_single(results)

    def _validate(self, results: Sequence[Any], args: Sequence[Any]) -> None:
        device = self._device_tensor(args).device
        found = [
            (getattr(r, "dtype", type(r)), list(getattr(r, "shape", ())), getattr(r, "device", None)) for r in results
        ]
        wanted = [(dtype, list(sizes), device) for dtype, sizes in self._schema.output_shapes(args)]
        if found != wanted:
            problem = f"in a compiled graph it must return {_describe(wanted)}, got {_describe(found)}"
            raise CannotRoute(self._schema.definition.name, problem)


def _unwrap_single(results: list[Any]) -> Any:
    return results[0] if len(results) == 1 else tuple(results)


def _describe(results: Sequence[tuple[object, list[int], object]]) -> str:
    return ", ".join(f"{dtype} {shape} on {device}" for dtype, shape, device in results)
