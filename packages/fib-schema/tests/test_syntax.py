"""Parsing of code that is not run: by many threads at once, and without the compiler's warnings."""

import ast
import warnings

import pytest
from fib_schema.syntax import parse_expression, parse_source, undefined_names


def test_an_expression_is_parsed():
    assert ast.unparse(parse_expression("a[-1] == b + 1")) == "a[-1] == b + 1"


@pytest.mark.parametrize("text", ["def run(:", "x = '", "\0"])
def test_what_does_not_parse_is_an_error(text):
    with pytest.raises((SyntaxError, ValueError)):
        parse_source(text)
    with pytest.raises((SyntaxError, ValueError)):
        parse_expression(text)


def test_invalid_escapes_cause_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parse_source(r"x = '\d'")


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        ("import torch\ndef run(x):\n    return _turn(x, y := 2) + y\n", ["_turn"]),
        ("from a import *\ndef run(x):\n    return turn(x)\n", []),
        ("def run(x):\n    global q\n    q = 1\n    return [i for i in x if q < len(x)]\n", []),
        ("class A:\n    z = 1\n    def go(self):\n        return self.z + A.z + B\n", ["B"]),
        ("x = " + " + ".join(["1"] * 50_000), []),
        ("try:\n    import fast\nexcept ImportError:\n    fast = None\nname = __name__\n", []),
    ],
)
def test_names_that_nothing_defines_are_found(text, unknown):
    assert undefined_names(text) == unknown
