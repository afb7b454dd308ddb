"""The examples of the README run."""

from __future__ import annotations

import re
from importlib.metadata import metadata
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"


def readme() -> str:
    """The README beside these tests, or what the installed package carries of it."""
    return README.read_text("utf-8") if README.exists() else str(metadata("fib-bench").get_payload())


@pytest.mark.parametrize("example", re.findall(r"```python\n(.*?)```", readme(), re.DOTALL))
@pytest.mark.usefixtures("shared_server")
def test_examples_run(example: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(example, "README.md", "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("relu_clamp PASSED Performance(")
    assert printed[1].startswith("relu_abs INCORRECT_NUMERICAL input set 0: output 'y'")
