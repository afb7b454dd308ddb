"""Tests of the README's examples."""

from __future__ import annotations

import re
from importlib.metadata import metadata
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"


def readme() -> str:
    """The README beside these tests, or what the installed package carries of it."""
    return README.read_text("utf-8") if README.exists() else str(metadata("fib-bench").get_payload())


@pytest.mark.usefixtures("shared_server")
def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", readme(), re.DOTALL)
    exec(compile(example, "README.md", "exec"), {})
    said = capsys.readouterr().out
    assert re.search(r"relu_clamp: PASSED", said)
    assert re.search(r"relu_abs: INCORRECT_NUMERICAL", said)
    assert "input set 0 (normal): output 'y'" in said
