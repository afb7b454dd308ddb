"""Tests of the README."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.metadata import metadata
from pathlib import Path
from typing import Any

import pytest
from fib_serve import ServiceError

from .samples import make_solution

README = Path(__file__).parent.parent / "README.md"


def readme() -> str:
    """The README beside these tests, or what the installed package carries of it."""
    return README.read_text("utf-8") if README.exists() else str(metadata("fib-serve").get_payload())


@pytest.mark.parametrize("example", re.findall(r"```python\n(.*?)```", readme(), re.DOTALL))
def test_examples_run(example: str, address: str, token: Callable[..., str]) -> None:
    namespace: dict[str, Any] = {}
    exec(compile(example, "README.md", "exec"), namespace)
    with pytest.raises(ServiceError, match="Definition not found"):
        namespace["evaluate"](address, token("alice"), make_solution(definition="nope"))


def test_every_command_of_the_readme_exists(capsys: pytest.CaptureFixture[str]) -> None:
    from fib_serve.cli.main import main

    commands = dict.fromkeys(re.findall(r"^fib-serve ([a-z]+)", readme(), re.MULTILINE))
    assert set(commands) >= {"run", "submit", "token"}
    for command in commands:
        with pytest.raises(SystemExit) as exit_:
            main([command, "--help"])
        assert exit_.value.code == 0, command
    capsys.readouterr()
