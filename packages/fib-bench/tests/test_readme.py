"""Tests of the README's examples."""

from __future__ import annotations

import re
from importlib.metadata import metadata
from itertools import zip_longest
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"


def readme() -> str:
    """The README beside these tests, or what the installed package carries of it."""
    return README.read_text("utf-8") if README.exists() else str(metadata("fib-bench").get_payload())


PRINTED = (
    ("relu_clamp PASSED Performance(", "relu_abs INCORRECT_NUMERICAL input set 0 (normal): output 'y'"),
)  # by the first example; the others print nothing


@pytest.mark.parametrize(
    ("example", "printed"),
    list(zip_longest(re.findall(r"```python\n(.*?)```", readme(), re.DOTALL), PRINTED, fillvalue=())),
)
@pytest.mark.usefixtures("shared_server")
def test_examples_run(example: str, printed: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(example, "README.md", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(printed)
    assert all(line.startswith(start) for line, start in zip(lines, printed, strict=True))
