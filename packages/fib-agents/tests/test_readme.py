"""Tests of the README: examples, and the lists of tools and guides."""

from __future__ import annotations

import re
from importlib.metadata import metadata
from pathlib import Path

import pytest
from fib_agents.guides import GUIDES
from fib_agents.toolbox import TOOLS

README = Path(__file__).parent.parent / "README.md"


def readme() -> str:
    """The README beside these tests, or what the installed package carries of it."""
    return README.read_text("utf-8") if README.exists() else str(metadata("fib-agents").get_payload())


@pytest.mark.parametrize("example", re.findall(r"```python\n(.*?)```", readme(), re.DOTALL))
def test_examples_run(example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    exec(compile(example, "README.md", "exec"), {})


def test_all_tools_and_guides_are_named() -> None:
    text = readme()
    assert [name for name in TOOLS if f"`{name}`" not in text] == []
    assert [name for name in GUIDES if name not in text] == []
