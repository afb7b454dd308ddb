"""Constraints of definitions: small expressions over axes and inputs, evaluated without `eval` and at a bounded cost.

Source: the public flashinfer-trace data set, whose definitions state relations such as
``len_indptr == batch_size + 1`` and ``total_q == qo_indptr[-1].item()``.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from ._bounded_operations import (
    ATTRIBUTES,
    FUNCTIONS,
    MAX_INTEGER_BITS,
    METHODS,
    OPERATORS,
    BoundedOperations,
    TooExpensive,
    bounded,
)
from .errors import ConstraintError
from .syntax import parse_expression

_MAX_LENGTH = 2_000
_MAX_NODES = 500
_MAX_DEPTH = 100
"""Limit of the syntax tree; one level takes two frames of the interpreter's stack."""


def parse_constraint(text: str) -> ast.expr:
    """Parse a constraint and check that it uses the allowed syntax only.

    Allowed are names, numbers, lists, comparisons, ``and``/``or``/``not``, arithmetic without powers,
    subscripts and slices, the attributes and methods of tensors that read a shape or reduce
    (``.shape``, ``.item()``, ``.max()`` ...) and a few functions such as ``len`` and ``max``.

    Raises:
        ConstraintError: The text is not an expression, uses anything else or is too long or too deeply nested.
    """
    return _parsed(text)


def constraint_names(text: str) -> frozenset[str]:
    """The names of axes and inputs that a constraint reads."""
    names = {node.id for node in ast.walk(_parsed(text)) if isinstance(node, ast.Name)}
    return frozenset(names - FUNCTIONS)


def evaluate_constraint(text: str, values: Mapping[str, Any]) -> bool:
    """Evaluate a constraint, at a bounded cost: integers and intermediate tensors are limited.

    Args:
        text: The constraint.
        values: Axis values (int) and inputs (tensors, scalars or None), by name.

    Raises:
        ConstraintError: The text is not allowed, a name is missing, a limit is exceeded, or the evaluation fails.
    """
    tree = _parsed(text)
    try:
        return bool(_Evaluation(values).value(tree))
    except ConstraintError:
        raise
    except TooExpensive as error:
        raise ConstraintError(text, str(error)) from error
    except (ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError) as error:
        raise ConstraintError(text, f"cannot be evaluated: {type(error).__name__}: {error}") from error


@lru_cache(maxsize=512)  # of at most 500 nodes of about 400 bytes: 100 MB at worst
def _parsed(text: str) -> ast.expr:
    if len(text) > _MAX_LENGTH:
        raise ConstraintError(text[:60] + "...", f"is longer than {_MAX_LENGTH} characters")
    try:
        tree = parse_expression(text.strip())
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ConstraintError(text, f"is not an expression: {error}") from error
    level: list[ast.AST] = [tree]
    count = depth = 0
    while level:
        count, depth = count + len(level), depth + 1
        if count > _MAX_NODES:
            raise ConstraintError(text, f"has more than {_MAX_NODES} names, numbers and operators; split it")
        if depth > _MAX_DEPTH:
            raise ConstraintError(text, f"is nested more than {_MAX_DEPTH} levels deep; split it")
        for node in level:
            if problem := _problem(node):
                raise ConstraintError(text, problem)
        level = [child for node in level for child in ast.iter_child_nodes(node)]
    return tree


_PLAIN_NODES = (
    ast.Name, ast.Load, ast.Compare, ast.BoolOp, ast.And, ast.Or, ast.BinOp, ast.UnaryOp,
    ast.Subscript, ast.Slice, ast.Tuple, ast.List, ast.IfExp, *OPERATORS,
)  # fmt: skip


def _problem(node: ast.AST) -> str | None:
    match node:
        case ast.Constant(value=str()):
            return "text is not allowed; axes and inputs are numbers and tensors"
        case ast.Constant(value=int(value)):
            size = value.bit_length()
            return None if size <= MAX_INTEGER_BITS else f"an integer of {size} bits is too large"
        case ast.Constant(value=value) if isinstance(value, float | type(None)):
            return None
        case ast.Attribute(attr=attr):
            return None if attr in ATTRIBUTES | METHODS else f"attribute .{attr} is not allowed"
        case ast.Call(func=ast.Name(id=name), keywords=[]):
            return None if name in FUNCTIONS else f"function {name}() is not allowed"
        case ast.Call(func=ast.Attribute(attr=attr), keywords=[]):
            return None if attr in METHODS else f"method .{attr}() is not allowed"
        case _ if isinstance(node, _PLAIN_NODES):
            return None
    return f"{type(node).__name__} is not allowed"


class _Evaluation:
    """An evaluation of a parsed constraint; each node is evaluated once at most."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        self._names = names
        self._operations = BoundedOperations(names.values())

    def value(self, node: ast.expr) -> Any:
        """The value of an expression."""
        operations = self._operations
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return self._name(name)
            case ast.Compare():
                return self._compare(node)
            case ast.BoolOp(op=op, values=values):
                return self._first(values, ends=isinstance(op, ast.Or))
            case ast.BinOp(left=left, op=op, right=right):
                return operations.arithmetic(type(op), self.value(left), self.value(right))
            case ast.UnaryOp(op=op, operand=operand):
                return operations.unary(type(op), self.value(operand))
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self.value(body if self.value(test) else orelse)
            case ast.Subscript(value=value, slice=index):
                return operations.subscript(self.value(value), self.value(index))
            case ast.Slice(lower=lower, upper=upper, step=step):
                return slice(*(None if part is None else self.value(part) for part in (lower, upper, step)))
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                return tuple(self.value(element) for element in elements)
            case ast.Attribute(value=value, attr=attr):
                return operations.attribute(self.value(value), attr)
            case ast.Call(func=ast.Attribute(value=value, attr=attr), args=args):
                return operations.method(self.value(value), attr, [self.value(arg) for arg in args])
            case ast.Call(func=ast.Name(id=name), args=args):
                return operations.function(name, [self.value(arg) for arg in args])
        raise TypeError(f"{type(node).__name__} is not allowed")

    def _name(self, name: str) -> Any:
        if name not in self._names:
            raise ConstraintError(name, f"{name!r} is neither an axis nor an input")
        return bounded(self._names[name])

    def _first(self, nodes: Sequence[ast.expr], *, ends: bool) -> Any:
        """The first value that is true (`ends`) or false, else the last, as `or` and `and` have it."""
        for node in nodes[:-1]:
            value = self.value(node)
            if bool(value) is ends:
                return value
        return self.value(nodes[-1])

    def _compare(self, node: ast.Compare) -> Any:
        """The conjunction of a chain such as ``0 < a <= b``; each operand is evaluated once."""
        left, holds = self.value(node.left), True
        for op, comparator in zip(node.ops, node.comparators, strict=True):
            right = self.value(comparator)
            holds = self._operations.compare(type(op), left, right)
            if not (len(node.ops) == 1 or holds):
                return False
            left = right
        return holds
