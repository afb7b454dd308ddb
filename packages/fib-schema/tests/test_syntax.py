"""Parsing of code that is not run: by many threads at once, and without the compiler's warnings."""

from __future__ import annotations

import ast
import gc
import threading
import time
import warnings
from collections.abc import Iterator

import pytest
from fib_schema.syntax import parse_expression, parse_source

SOURCE = "def run(x):\n" + "".join(f"    x = (x + {n}) * [x, {{'a': (x,)}}][{n % 2}]\n" for n in range(60))


class Garbage:
    """Object that lets other threads run while it is collected, which may happen during a parse."""

    def __init__(self) -> None:
        self.cycle = self

    def __del__(self) -> None:
        time.sleep(0)


@pytest.fixture
def _collecting_often() -> Iterator[None]:
    thresholds = gc.get_threshold()
    gc.set_threshold(50)
    yield
    gc.set_threshold(*thresholds)


@pytest.mark.usefixtures("_collecting_often")
def test_threads_may_parse_at_once() -> None:
    """CPython before 3.11.9 and 3.12.3 raises a SystemError now and then, in one of them (gh-106905)."""
    expected, problems = ast.dump(parse_source(SOURCE)), []

    def parse() -> None:
        try:
            for _ in range(30):
                Garbage()
                if ast.dump(parse_source(SOURCE)) != expected:
                    problems.append("differs")
        except BaseException as error:  # noqa: BLE001 told below
            problems.append(repr(error))

    threads = [threading.Thread(target=parse) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []


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
