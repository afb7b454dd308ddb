"""Entry point of the command line."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from fib_schema.command import CommandParser, run_command

from .. import __version__
from .administration_commands import add_administration
from .client_commands import add_client
from .run_command import add_run


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    return run_command("fib-serve", lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int:
    arguments = _parser().parse_args(argv)
    code: int = arguments.command(arguments)
    return code


def _parser() -> CommandParser:
    parser = CommandParser(prog="fib-serve", description="Evaluation service and leaderboard for GPU kernels.")
    parser.add_argument("--version", action="version", version=f"fib-serve {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for add in (add_run, add_administration, add_client):
        add(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
