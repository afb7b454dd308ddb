"""Entry point of the command line."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from fib_schema.command import CommandParser, run_command

from .. import __version__
from .client_commands import add_client


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    return run_command("fib-serve", lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int:
    words = sys.argv[1:] if argv is None else argv
    arguments = _parser(words).parse_args(words)
    code: int = arguments.command(arguments)
    return code


def _parser(words: Sequence[str] = ()) -> CommandParser:
    parser = CommandParser(prog="fib-serve", description="Evaluation service and leaderboard for GPU kernels.")
    parser.add_argument("--version", action="version", version=f"fib-serve {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    add_client(commands)
    if not {*words[:1]} & {*commands.choices}:  # the others import the service, which takes a second
        from .operator_commands import add_operator

        add_operator(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
