"""Tests of usage errors: one line, with a suggestion for a word that is nearly right."""

from __future__ import annotations

import argparse

import pytest
from fib_schema.command import CommandParser


def _parser() -> CommandParser:
    parser = CommandParser(prog="tool")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run = commands.add_parser("run")
    run.add_argument("dir", metavar="DIR")
    run.add_argument("--solutions", nargs="+")
    run.add_argument("--executor", choices=("local", "ray"))
    run.add_argument("--seed", type=int)
    run.add_argument("--rtol", type=float)
    commands.add_parser("summary")
    report = commands.add_parser("report")
    report.add_subparsers(metavar="REPORT").add_parser("html")
    return parser


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "run D --solutons x",
            "tool run: unknown option '--solutons'; did you mean --solutions? (help: tool run --help)",
        ),
        (
            "run D --solutons=x",
            "tool run: unknown option '--solutons'; did you mean --solutions? (help: tool run --help)",
        ),
        ("run D E", "tool run: unknown argument 'E' (help: tool run --help)"),
        ("run D --xyz --abc", "tool run: unknown options '--xyz', '--abc' (help: tool run --help)"),
        ("sumary", "tool: unknown command 'sumary'; did you mean summary? (help: tool --help)"),
        ("zzz", "tool: unknown command 'zzz'; choose from run, summary, report (help: tool --help)"),
        (
            "run D --executor rai",
            "tool run: argument --executor: invalid choice 'rai'; did you mean ray? (help: tool run --help)",
        ),
        ("html", "tool: unknown command 'html'; did you mean report html? (help: tool --help)"),
        ("run D --seed 1.5", "tool run: argument --seed: '1.5' is not a whole number (help: tool run --help)"),
        ("run D --rtol x", "tool run: argument --rtol: 'x' is not a number (help: tool run --help)"),
        ("run", "tool run: the following arguments are required: DIR (help: tool run --help)"),
        (
            "",
            "tool: the following arguments are required: COMMAND; choose from run, summary, report (help: tool --help)",
        ),
    ],
)
def test_a_usage_error_is_one_line_with_a_suggestion(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        _parser().parse_args(words.split())
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"{message}\n"


def test_valid_arguments_are_parsed_as_before() -> None:
    found = _parser().parse_args(["run", "D", "--solutions", "a", "b"])
    assert (found.dir, found.solutions) == ("D", ["a", "b"])


DESCRIPTION = """\
Run the solutions of a data set, check their results, and measure their latency on this machine.

It has
two short lines.

  tool run DIR                         a line of a table, which may be wider than the terminal"""


def test_tables_of_a_description_keep_their_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "42")
    table = "name         how the tool calls it\nentry point  the function that is called, or a class"
    parser = CommandParser(description=table, formatter_class=argparse.RawDescriptionHelpFormatter)
    rows = (
        "name         how the tool calls it",
        "entry point  the function that is",
        "             called, or a class",
    )
    assert "\n".join(rows) in parser.format_help()


@pytest.mark.parametrize("columns", [80, 160])
def test_paragraphs_of_a_description_fit_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    form = argparse.RawDescriptionHelpFormatter
    shown = CommandParser(prog="tool", description=DESCRIPTION, epilog="examples:\n  tool", formatter_class=form)
    text = shown.format_help()
    first, *others = DESCRIPTION.split("\n\n")
    assert all(other in text for other in [*others, "examples:\n  tool"])
    assert (first in text) == (columns == 160)
    assert first in " ".join(text.split("\n"))
    beginning = text.partition("It has")[0]
    assert max(map(len, beginning.split("\n"))) <= columns
