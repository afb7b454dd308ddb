"""Tests of the commands in pages, READMEs and help texts.

Parsers accept them, scripts and extras that they name exist, and every output that a page shows is compared by a test.
"""

import io
import re
import shlex
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
from fib_apply.events import routed
from fib_bench.cli.output import print_seconds
from fib_bench.events import Phase
from rich.console import Console

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = "agents|apply|bench|compat|compile|integrations|serve|tracer"
COMMAND = re.compile(rf"^ *(?:\$ )?(fib-(?:{PROGRAMS}) (?!.*: )\S.*)$", re.M)
MODULES = {"fib-bench": "fib_bench.cli.main", "fib-serve": "fib_serve.cli.main"}
"""Commands whose parser is not in the module ``cli``."""
BEHIND = re.compile(r"\"\"\"| {2,}| 2?[|>#\[]| && | \.\.\.|\\$")
"""The end of a command: an explanation, a redirection or a continuation."""


def shown():
    """Commands, each with its file."""
    sources = (ROOT / "packages").glob("*/src/*/**/*.py")
    helps = [file for file in sources if file.name in ("cli.py", "help_pages.py", "parser.py")]
    for file in [*helps, *ROOT.glob("packages/*/README.md"), *ROOT.glob("docs/*/*.md"), ROOT / "README.md"]:
        for match in COMMAND.finditer(file.read_text("utf-8").replace("\\\n", "")):
            yield str(file.relative_to(ROOT)), BEHIND.split(match[1])[0]


SHOWN = sorted(set(shown()))


def test_every_command_is_shown_somewhere():
    assert len({command.split()[0] for _, command in SHOWN}) == 8


@pytest.mark.parametrize(("file", "command"), SHOWN)
def test_a_shown_command_parses(file, command):
    program, *words = shlex.split(command)
    if program == "fib-compat":
        parser = import_module("fib_compat.cli").make_parser()
    else:
        name = program.replace("-", "_")
        parser = import_module(MODULES.get(program, f"{name}.cli"))._parser()
    if words[-1:] == ["--help"]:
        return
    parser.parse_args(words)  # exits with a message if they are wrong


PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("packages/*/README.md")]
FENCE = re.compile(r"^```(?P<kind>[^`\n]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
FOLLOWED = ("docs/tutorials/", "docs/how-to/", "README.md")
"""Pages whose commands run one after the other, and whose outputs are compared; see `test_pages`."""


def blocks():
    """The fenced blocks of all pages: file, kind and text."""
    for file in PAGES:
        for match in FENCE.finditer(file.read_text("utf-8")):
            yield str(file.relative_to(ROOT)), match["kind"], match["body"]


def test_commands_with_output_are_on_pages_that_are_followed():
    prompts = [(file, kind) for file, kind, text in blocks() if kind == "console" or re.search(r"^\$ ", text, re.M)]
    assert prompts
    assert [(file, kind) for file, kind in prompts if kind != "console" or not file.startswith(FOLLOWED)] == []


def test_scripts_in_commands_exist():
    """Of scripts that a page itself does not show."""
    named = set()
    for file in PAGES:
        text = file.read_text("utf-8")
        own = set(re.findall(r":caption: (\S+)", text))
        for path in re.findall(r"(?:python|bash|sh) ((?:\.\./)*[\w./-]+/[\w-]+\.(?:py|sh))", text):
            if path not in own:
                named.add((str(file.relative_to(ROOT)), path))
    assert named
    places = {(page, path): (ROOT / path, ROOT / Path(page).parent / path) for page, path in named}
    assert [named for named, paths in places.items() if not any(path.exists() for path in paths)] == []


def test_extras_that_are_to_be_installed_exist():
    named = set()
    for file in PAGES:
        for package, extras in re.findall(r"pip install.*?(fib-\w+)(?:\[([\w,-]+)\])?", file.read_text("utf-8")):
            named |= {(package, extra) for extra in (extras or "").split(",")}
    assert len(named) > 10
    for package, extra in named:
        manifest = tomllib.loads((ROOT / "packages" / package / "pyproject.toml").read_text())
        assert not extra or extra in manifest["project"]["optional-dependencies"], (package, extra)


def test_the_times_of_a_run_are_printed_as_their_page_shows():
    page = (ROOT / "docs" / "explanation" / "time-of-a-run.md").read_text("utf-8")
    (shown,) = (text.strip() for text in FENCE.findall(page) for text in text if "seconds: " in text)
    seconds = {Phase(name): float(number) for name, number in re.findall(r"([a-z][a-z ]*) (\d+\.\d)[,;]", shown)}
    assert tuple(seconds) == tuple(Phase)
    console = Console(file=io.StringIO(), width=200)
    print_seconds(console, seconds, 0.21)
    assert console.file.getvalue().strip() == shown


def test_the_line_of_a_routed_definition_is_logged_as_its_page_shows():
    event = routed("silu_w256", {"silu_aten": 10, "silu_triton": 2}, {"nothing chosen": 1, "nothing built": 1})
    assert f"```text\n{event}\n```" in (ROOT / "docs" / "how-to" / "a-serving-engine.md").read_text("utf-8")
