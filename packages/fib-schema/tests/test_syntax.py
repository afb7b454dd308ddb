"""Parsing of code that is not run: by many threads at once, and without the compiler's warnings."""

from __future__ import annotations

import ast
import warnings

import pytest
from fib_schema.syntax import parse_expression, parse_source

SOURCE = "def run(x):\n" + "".join(f"    x = (x + {n}) * [x, {{'a': (x,)}}][{n % 2}]\n" for n in range(60))


def test_an_expression_is_parsed() -> None:
    assert ast.unparse(parse_expression("a[-1] == b + 1")) == "a[-1] == b + 1"


@pytest.mark.parametrize("text", ["def run(:", "x = '", "\0"])
def test_what_does_not_parse_is_an_error(text: str) -> None:
    with pytest.raises((SyntaxError, ValueError)):
        parse_source(text)
    with pytest.raises((SyntaxError, ValueError)):
        parse_expression(text)


def test_invalid_escapes_cause_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parse_source(r"x = '\d'")
