"""Tests of the README: examples, settings, and the list of policies."""

from __future__ import annotations

import re
from importlib.metadata import metadata
from pathlib import Path

import pytest
from fib_tracer import PolicyRegistry, TracingConfigRegistry

README = Path(__file__).parent.parent / "README.md"


def readme() -> str:
    """The README beside these tests, or what the installed package carries of it."""
    return README.read_text("utf-8") if README.exists() else str(metadata("fib-tracer").get_payload())


@pytest.mark.parametrize("example", re.findall(r"```python\n(.*?)```", readme(), re.DOTALL))
def test_examples_run(example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(PolicyRegistry, "_filtering", dict(PolicyRegistry._filtering))
    exec(compile(example, "README.md", "exec"), {})


@pytest.mark.parametrize("settings", re.findall(r"```yaml\n(.*?)```", readme(), re.DOTALL))
def test_settings_of_the_readme_are_valid(settings: str) -> None:
    assert TracingConfigRegistry.from_yaml(settings).rules


def test_all_policies_are_named() -> None:
    names = [*PolicyRegistry.list_filter_policies(), *PolicyRegistry.list_input_dump_policies()]
    assert [name for name in names if f'"{name}"' not in readme()] == []
