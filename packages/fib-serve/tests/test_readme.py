"""Tests of the README."""

from __future__ import annotations

import re
from importlib.metadata import metadata
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"


def readme() -> str:
    """The README beside these tests, or what the installed package carries of it."""
    return README.read_text("utf-8") if README.exists() else str(metadata("fib-serve").get_payload())


def test_every_command_of_the_readme_exists(capsys: pytest.CaptureFixture[str]) -> None:
    from fib_serve.cli.main import main

    commands = dict.fromkeys(re.findall(r"^\$? ?fib-serve ([a-z]+)", readme(), re.MULTILINE))
    assert "run" in commands
    for command in commands:
        with pytest.raises(SystemExit) as exit_:
            main([command, "--help"])
        assert exit_.value.code == 0, command
    capsys.readouterr()
