"""Tests of the commands in pages, READMEs and help texts: the parsers accept them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMMAND = re.compile(r"^ *(?:\$ )?(fib-(?:apply|bench|compat|compile|integrations|schema|tracer) (?!.*: )\S.*)$", re.M)
MODULES = {"fib-bench": "fib_bench.cli.main"}
"""Commands whose parser is not in the module ``cli``."""
BEHIND = re.compile(r"\"\"\"| {2,}| [|>#]| && | \.\.\.|\\$")
"""The end of a command: an explanation, a redirection or a continuation."""


def shown() -> Iterator[tuple[str, str]]:
    """Commands, each with its file."""
    sources = (ROOT / "packages").glob("*/src/*/**/*.py")
    helps = [file for file in sources if file.name in ("cli.py", "help_pages.py", "parser.py")]
    for file in [*helps, *ROOT.glob("packages/*/README.md"), *ROOT.glob("docs/*/*.md"), ROOT / "README.md"]:
        for match in COMMAND.finditer(file.read_text("utf-8").replace("\\\n", "")):
            yield str(file.relative_to(ROOT)), BEHIND.split(match[1])[0]


SHOWN = sorted(set(shown()))


def test_every_command_is_shown_somewhere() -> None:
    assert len({command.split()[0] for _, command in SHOWN}) == 7


@pytest.mark.parametrize(("file", "command"), SHOWN)
def test_a_shown_command_parses(file: str, command: str) -> None:
    program, *words = shlex.split(command)
    if program == "fib-compat":
        parser = import_module("fib_compat.cli.parser").make_parser()
    else:
        name = program.replace("-", "_")
        parser = import_module(MODULES.get(program, f"{name}.cli"))._parser()
    if words[-1:] == ["--help"]:
        return
    parser.parse_args(words)  # exits with a message if they are wrong
