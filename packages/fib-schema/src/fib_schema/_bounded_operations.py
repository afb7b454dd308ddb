"""Operations of constraints with bounded cost: on numbers, lists, and tensors of any library.

Expressions come with data sets and are not trusted. Integers have at most `MAX_INTEGER_BITS`. The elements that all
tensor operations of one evaluation read and write are limited to a multiple of those that the inputs have, so
that broadcasting cannot fill memory. No operation repeats a list, and iterating in Python ends after `MAX_ITEMS`.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

MAX_INTEGER_BITS = 1024
"""Limit of an integer's bits, from the exponent of a float."""
MAX_ITEMS = 1000
"""Limit of a list that is made, and of a tensor that a function such as ``sum`` iterates over."""
_MIN_ELEMENTS = 1 << 20
_PASSES = 16
"""Limit of reads and writes of the elements of all inputs."""

_ARITHMETIC: Mapping[type[ast.AST], Callable[[Any, Any], Any]] = MappingProxyType({
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
})  # fmt: skip
_UNARY: Mapping[type[ast.AST], Callable[[Any], Any]] = MappingProxyType({
    ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Not: operator.not_,
})  # fmt: skip
_COMPARISONS: Mapping[type[ast.AST], Callable[[Any, Any], Any]] = MappingProxyType({
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt,
    ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
})  # fmt: skip
_IDENTITIES: Mapping[type[ast.AST], Callable[[Any, Any], bool]] = MappingProxyType({
    ast.Is: operator.is_, ast.IsNot: operator.is_not,
})  # fmt: skip
OPERATORS = (*_ARITHMETIC, *_UNARY, *_COMPARISONS, *_IDENTITIES, ast.In, ast.NotIn)
_OF_ONE: Mapping[str, Callable[[Any], Any]] = MappingProxyType({"abs": abs, "int": int, "len": len})
_OF_MANY: Mapping[str, Callable[[Any], Any]] = MappingProxyType({"all": all, "any": any, "max": max, "min": min})
FUNCTIONS = frozenset({*_OF_ONE, *_OF_MANY, "sum"})
ATTRIBUTES = frozenset({"shape", "ndim", "dtype", "T"})
_REDUCTIONS = frozenset({"max", "min", "sum", "all", "any", "amax", "amin", "diff"})
METHODS = _REDUCTIONS | {"item", "size", "dim", "numel"}


class TooExpensive(ValueError):
    """An operation that would exceed a limit."""


class BoundedOperations:
    """The operations of one evaluation.

    Args:
        values: The axes and inputs; the sizes of the inputs bound those of the results.
    """

    def __init__(self, values: Iterable[Any]) -> None:
        self._elements_left = max(_MIN_ELEMENTS, _PASSES * sum(map(_size_of, values)))

    def arithmetic(self, op: type[ast.AST], left: Any, right: Any) -> Any:
        """``left op right``; lists are only concatenated."""
        if isinstance(left, list | tuple) and isinstance(right, list | tuple) and op is ast.Add:
            if len(left) + len(right) > MAX_ITEMS:
                raise TooExpensive(f"a list of {len(left) + len(right)} items is too long (at most {MAX_ITEMS})")
            return (*left, *right)
        self._check_operands(left, right)
        return bounded(_ARITHMETIC[op](left, right))

    def unary(self, op: type[ast.AST], value: Any) -> Any:
        """``op value``."""
        self._charge(value)
        return bounded(_UNARY[op](value))

    def compare(self, op: type[ast.AST], left: Any, right: Any) -> Any:
        """``left op right`` of a comparison."""
        if op in _IDENTITIES:
            return _IDENTITIES[op](left, right)
        if op in {ast.In, ast.NotIn}:
            return self._contains(right, left) is (op is ast.In)
        if isinstance(left, list | tuple) or isinstance(right, list | tuple):
            _check_plain(left)
            _check_plain(right)
        else:
            self._charge_broadcast(left, right)
        return _COMPARISONS[op](left, right)

    def subscript(self, value: Any, index: Any) -> Any:
        """``value[index]``; indices are integers, slices, None, and single elements of tensors, which copy nothing."""
        for item in index if isinstance(index, tuple) else (index,):
            if not _is_index(item):
                raise TypeError("an index is an integer or a slice")
        if isinstance(value, list | tuple) and isinstance(index, slice):
            self._charge(value)
        return bounded(value[index])

    def attribute(self, value: Any, name: str) -> Any:
        """``value.name``."""
        return bounded(getattr(value, name))

    def method(self, value: Any, name: str, arguments: Sequence[Any]) -> Any:
        """``value.name(*arguments)``; arguments are dimensions."""
        if name == "diff" and arguments:
            raise TypeError("diff() takes no arguments")
        for argument in arguments:
            _check_plain(argument)
        if name in _REDUCTIONS:
            self._charge(value)
        return bounded(getattr(value, name)(*arguments))

    def function(self, name: str, arguments: Sequence[Any]) -> Any:
        """``name(*arguments)``."""
        if name in _OF_ONE:
            (value,) = arguments
            self._charge(value)
            return bounded(_OF_ONE[name](value))
        if name in {"all", "any", "sum"} and len(arguments) != 1:
            raise TypeError(f"{name}() takes one list")
        items = list(self._items(name, arguments[0])) if len(arguments) == 1 else arguments
        for item in items:
            if _size_of(item) > 1 or isinstance(item, list | tuple):
                raise TypeError(f"{name}() takes numbers; tensors have a method {name}()")
        if name == "sum":
            total: Any = 0
            for item in items:
                total = bounded(total + item)
            return total
        return _OF_MANY[name](items)

    def _items(self, name: str, value: Any) -> Iterable[Any]:
        self._charge(value)
        shape = _shape_of(value)
        if shape and shape[0] > MAX_ITEMS and not isinstance(value, list | tuple):
            raise TooExpensive(f"{name}() of {shape[0]} elements takes too long; use the tensor's method {name}()")
        items: Iterable[Any] = value
        return items

    def _contains(self, container: Any, item: Any) -> bool:
        if isinstance(container, list | tuple):
            return any(one is item or bool(self.compare(ast.Eq, one, item)) for one in container)
        self._charge_broadcast(container, item)
        return item in container

    def _check_operands(self, left: Any, right: Any) -> None:
        for value in (left, right):
            if isinstance(value, list | tuple | str | bytes):
                raise TypeError(f"a {type(value).__name__} is not an operand of arithmetic")
        self._charge_broadcast(left, right)

    def _charge(self, value: Any) -> None:
        self._use(_size_of(value))

    def _charge_broadcast(self, left: Any, right: Any) -> None:
        shapes = [shape for shape in (_shape_of(left), _shape_of(right)) if shape is not None]
        if shapes:
            rank = max(map(len, shapes))
            padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
            self._use(math.prod(map(max, zip(*padded, strict=True))))

    def _use(self, elements: int) -> None:
        self._elements_left -= elements
        if self._elements_left < 0:
            raise TooExpensive(f"the tensors are too large for this constraint ({elements} more elements)")


def bounded(value: Any) -> Any:
    """The value.

    Raises:
        TooExpensive: It is an integer that is too large.
    """
    if isinstance(value, int) and value.bit_length() > MAX_INTEGER_BITS:
        raise TooExpensive(f"an integer of {value.bit_length()} bits is too large (at most {MAX_INTEGER_BITS})")
    return value


def _shape_of(value: Any) -> Sequence[int] | None:
    """The shape of a tensor; None of anything else."""
    shape = getattr(value, "shape", None)
    return shape if isinstance(shape, tuple) and all(isinstance(size, int) for size in shape) else None


def _size_of(value: Any) -> int:
    """The number of elements of a tensor or a list; 0 of anything else."""
    if (shape := _shape_of(value)) is not None:
        return math.prod(shape)
    return len(value) if isinstance(value, list | tuple) else 0


def _is_index(value: Any) -> bool:
    if isinstance(value, slice):
        return all(part is None or _is_index(part) for part in (value.start, value.stop, value.step))
    return value is None or (isinstance(value, int) and not isinstance(value, bool)) or _shape_of(value) == ()


def _check_plain(value: Any) -> None:
    """Refuse a list that holds a tensor: comparing it would compare the tensors, with broadcasting."""
    for item in value if isinstance(value, list | tuple) else (value,):
        if isinstance(item, list | tuple):
            _check_plain(item)
        elif not (item is None or isinstance(item, int | float)) and _size_of(item) != 1:
            raise TypeError("a list is only compared with lists of numbers, and a dimension is a number")
