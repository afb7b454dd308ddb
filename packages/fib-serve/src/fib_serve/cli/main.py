"""Entry point of the command line."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from fib_schema.command import CommandParser, run_command

from .. import __version__
from ..errors import InvalidSetting
from .client_commands import add_client

_OF_SERVER = {
    "run": "start the service: API, queue, devices and pages",
    "token": "create, list and revoke tokens",
    "remove": "remove a user: revoke the tokens, and reject the submissions",
    "reject": "reject a submission: it stays visible, and does not rank",
    "unreject": "undo the rejection of a result",
}
"""The commands that need the extra `server`."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    return run_command("fib-serve", lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int:
    try:
        arguments = _parser().parse_args(argv)
        code: int = arguments.command(arguments)
    except ModuleNotFoundError as error:
        command = next((word for word in (sys.argv[1:] if argv is None else argv) if word in _OF_SERVER), None)
        if command is None:
            raise
        problem = f"needs {error.name}, which is not installed: pip install 'fib-serve[server]'"
        raise InvalidSetting(command, problem) from error
    return code


def _parser() -> CommandParser:
    parser = CommandParser(prog="fib-serve", description="Evaluation service and leaderboard for GPU kernels.")
    parser.add_argument("--version", action="version", version=f"fib-serve {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    add_client(commands)
    for name, text in _OF_SERVER.items():
        commands.add_parser(name, help=text).declaration = f"{__package__}.operator_commands:declare_{name}"
    return parser


if __name__ == "__main__":
    sys.exit(main())
