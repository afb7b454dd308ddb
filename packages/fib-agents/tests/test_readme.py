"""Tests of the README: its examples run."""

from __future__ import annotations

import re
from importlib.metadata import metadata
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"


def readme() -> str:
    """The README beside these tests, or what the installed package carries of it."""
    return README.read_text("utf-8") if README.exists() else str(metadata("fib-agents").get_payload())


@pytest.mark.parametrize("example", re.findall(r"```python\n(.*?)```", readme(), re.DOTALL))
def test_examples_run(example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    exec(compile(example, "README.md", "exec"), {})
