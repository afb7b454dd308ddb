"""Tests of usage errors: one line, with a suggestion for a word that is nearly right."""

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
            "tool run: argument --executor: invalid choice: 'rai'; did you mean ray? (help: tool run --help)",
        ),
        ("run D --seed 1.5", "tool run: argument --seed: invalid int value: '1.5' (help: tool run --help)"),
        ("run D --rtol x", "tool run: argument --rtol: invalid float value: 'x' (help: tool run --help)"),
        ("run", "tool run: the following arguments are required: DIR (help: tool run --help)"),
        ("", "tool: the following arguments are required: COMMAND (help: tool --help)"),
    ],
)
def test_a_usage_error_is_one_line_with_a_suggestion(words, message, capsys):
    with pytest.raises(SystemExit) as ended:
        _parser().parse_args(words.split())
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"{message}\n"


def test_valid_arguments_are_parsed_as_before():
    found = _parser().parse_args(["run", "D", "--solutions", "a", "b"])
    assert (found.dir, found.solutions) == ("D", ["a", "b"])
