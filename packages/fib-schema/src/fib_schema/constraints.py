"""Constraints of definitions: small expressions over axes and inputs.

Constraints are trusted as references are. Their syntax is limited to what states relations, so that they stay readable
and have no effects.

Source: the public flashinfer-trace data set, whose definitions state relations such as
``len_indptr == batch_size + 1`` and ``total_q == qo_indptr[-1].item()``.
"""

from __future__ import annotations

import ast
import builtins
import warnings
from collections.abc import Mapping
from functools import lru_cache
from types import CodeType
from typing import Any

from .errors import ConstraintError
from .syntax import parse_expression

_FUNCTIONS = frozenset({"abs", "all", "any", "int", "len", "max", "min", "sum"})
_ATTRIBUTES = frozenset({"shape", "ndim", "dtype", "T"})
_METHODS = frozenset({"max", "min", "sum", "all", "any", "amax", "amin", "diff", "item", "size", "dim", "numel"})


@lru_cache(maxsize=512)
def parse_constraint(text: str) -> ast.expr:
    """Parse a constraint and check that it uses the allowed syntax only.

    Allowed are names, numbers, lists, comparisons, ``and``/``or``/``not``, arithmetic without powers,
    subscripts and slices, the attributes and methods of tensors that read a shape or reduce
    (``.shape``, ``.item()``, ``.max()`` ...) and a few functions such as ``len`` and ``max``.

    Raises:
        ConstraintError: The text is not an expression, uses anything else or is too deeply nested.
    """
    try:
        tree = parse_expression(text.strip())
        problem = next((problem for node in ast.walk(tree) if (problem := _problem(node))), None)
        ast.unparse(tree)  # refuses what is nested too deeply, before it is compiled
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ConstraintError(text[:200], f"is not an expression: {error}") from error
    if problem:
        raise ConstraintError(text, problem)
    return tree


def constraint_names(text: str) -> frozenset[str]:
    """The names of axes and inputs that a constraint reads."""
    names = {node.id for node in ast.walk(parse_constraint(text)) if isinstance(node, ast.Name)}
    return frozenset(names - _FUNCTIONS)


def evaluate_constraint(text: str, values: Mapping[str, Any]) -> bool:
    """Evaluate a constraint, given axis values (int) and inputs (tensors, scalars or None) by name.

    Raises:
        ConstraintError: The text is not allowed, a name is missing, or the evaluation fails.
    """
    code = _compiled(text)
    try:
        return bool(eval(code, {"__builtins__": {}, **_CALLABLE}, dict(values)))  # noqa: S307 the syntax is checked
    except NameError as error:
        raise ConstraintError(text, f"{error.name!r} is neither an axis nor an input") from error
    except (ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError) as error:
        raise ConstraintError(text, f"cannot be evaluated: {type(error).__name__}: {error}") from error


_CALLABLE = {name: getattr(builtins, name) for name in _FUNCTIONS}


@lru_cache(maxsize=512)
def _compiled(text: str) -> CodeType:
    tree = _TuplesForLists().visit(ast.parse(ast.unparse(parse_constraint(text)), mode="eval"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # `is` with a literal
        return compile(ast.fix_missing_locations(tree), "<constraint>", "eval")


class _TuplesForLists(ast.NodeTransformer):
    """Makes a list equal to the shape, a tuple, that it is compared with."""

    def visit_List(self, node: ast.List) -> ast.Tuple:
        self.generic_visit(node)
        return ast.Tuple(node.elts, ast.Load())


_PLAIN_NODES = (
    ast.Name, ast.Load, ast.Compare, ast.BoolOp, ast.And, ast.Or, ast.BinOp, ast.UnaryOp,
    ast.Subscript, ast.Slice, ast.Tuple, ast.List, ast.IfExp, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv,
    ast.Mod, ast.USub, ast.UAdd, ast.Not, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Is, ast.IsNot,
    ast.In, ast.NotIn,
)  # fmt: skip


def _problem(node: ast.AST) -> str | None:
    match node:
        case ast.Constant(value=str()):
            return "text is not allowed; axes and inputs are numbers and tensors"
        case ast.Constant(value=value) if isinstance(value, int | float | type(None)):
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
