"""Constraints of definitions: small expressions over axes and inputs, evaluated without `eval`.

Source: the public flashinfer-trace data set, whose definitions state relations such as
``len_indptr == batch_size + 1`` and ``total_q == qo_indptr[-1].item()``.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from .errors import ConstraintError
from .syntax import parse_expression

_OPERATORS: Mapping[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: operator.not_,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "abs": abs, "all": all, "any": any, "int": int, "len": len, "max": max, "min": min, "sum": sum,
}  # fmt: skip
_ATTRIBUTES = frozenset({"shape", "ndim", "dtype", "T"})
_METHODS = frozenset({"item", "size", "dim", "numel", "max", "min", "sum", "all", "any", "amax", "amin", "diff"})
_MAX_LENGTH = 2_000


def parse_constraint(text: str) -> ast.expr:
    """Parse a constraint and check that it uses the allowed syntax only.

    Allowed are names, literals, comparisons, ``and``/``or``/``not``, arithmetic without powers,
    subscripts and slices, the attributes and methods of tensors that read a shape or reduce
    (``.shape``, ``.item()``, ``.max()`` ...) and a few functions such as ``len`` and ``max``.

    Raises:
        ConstraintError: The text is no expression or uses anything else.
    """
    return _parsed(text)


def constraint_names(text: str) -> frozenset[str]:
    """The names of axes and inputs that a constraint reads."""
    names = {node.id for node in ast.walk(_parsed(text)) if isinstance(node, ast.Name)}
    return frozenset(names - _FUNCTIONS.keys())


def evaluate_constraint(text: str, values: Mapping[str, Any]) -> bool:
    """Evaluate a constraint.

    Args:
        text: The constraint.
        values: Axis values (int) and inputs (tensors, scalars or None), by name.

    Raises:
        ConstraintError: The text is not allowed, a name is missing, or the evaluation fails.
    """
    tree = _parsed(text)
    try:
        return bool(_value(tree, values))
    except ConstraintError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise ConstraintError(text, f"cannot be evaluated: {type(error).__name__}: {error}") from error


@lru_cache(maxsize=4096)
def _parsed(text: str) -> ast.expr:
    if len(text) > _MAX_LENGTH:
        raise ConstraintError(text[:60] + "...", f"is longer than {_MAX_LENGTH} characters")
    try:
        tree = parse_expression(text.strip())
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ConstraintError(text, f"is not an expression: {error}") from error
    for node in ast.walk(tree):
        if problem := _problem(node):
            raise ConstraintError(text, problem)
    return tree


_PLAIN_NODES = (
    ast.Name, ast.Load, ast.Compare, ast.BoolOp, ast.And, ast.Or, ast.BinOp, ast.UnaryOp,
    ast.Subscript, ast.Slice, ast.Tuple, ast.List, ast.IfExp, *_OPERATORS,
)  # fmt: skip


def _problem(node: ast.AST) -> str | None:
    match node:
        case ast.Constant(value=value) if isinstance(value, int | float | str | bool | type(None)):
            return None
        case ast.Attribute(attr=attr):
            return None if attr in _ATTRIBUTES | _METHODS else f"attribute .{attr} is not allowed"
        case ast.Call(func=ast.Name(id=name), keywords=[]):
            return None if name in _FUNCTIONS else f"function {name}() is not allowed"
        case ast.Call(func=ast.Attribute(attr=attr), keywords=[]):
            return None if attr in _METHODS else f"method .{attr}() is not allowed"
        case _ if isinstance(node, _PLAIN_NODES):
            return None
    return f"{type(node).__name__} is not allowed"


def _value(node: ast.expr | None, names: Mapping[str, Any]) -> Any:
    match node:
        case None:
            return None
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            if name not in names:
                raise ConstraintError(ast.unparse(node), f"{name!r} is neither an axis nor an input")
            return names[name]
        case ast.Compare():
            return _compare(node, names)
        case ast.BoolOp(op=ast.And(), values=values):
            return all(_value(value, names) for value in values)
        case ast.BoolOp(values=values):
            return any(_value(value, names) for value in values)
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATORS[type(op)](_value(left, names), _value(right, names))
        case ast.UnaryOp(op=op, operand=operand):
            return _OPERATORS[type(op)](_value(operand, names))
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return _value(body if _value(test, names) else orelse, names)
        case ast.Subscript(value=value, slice=index):
            return _value(value, names)[_value(index, names)]
        case ast.Slice(lower=lower, upper=upper, step=step):
            return slice(_value(lower, names), _value(upper, names), _value(step, names))
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            return tuple(_value(element, names) for element in elements)
        case ast.Attribute(value=value, attr=attr):
            return getattr(_value(value, names), attr)
        case ast.Call(func=ast.Name(id=name), args=args):
            return _FUNCTIONS[name](*(_value(arg, names) for arg in args))
        case ast.Call(func=function, args=args):
            return _value(function, names)(*(_value(arg, names) for arg in args))
    raise ConstraintError(ast.unparse(node), f"{type(node).__name__} is not allowed")


def _compare(node: ast.Compare, names: Mapping[str, Any]) -> bool:
    left = _value(node.left, names)
    for op, comparator in zip(node.ops, node.comparators, strict=True):
        right = _value(comparator, names)
        if not _OPERATORS[type(op)](left, right):
            return False
        left = right
    return True
