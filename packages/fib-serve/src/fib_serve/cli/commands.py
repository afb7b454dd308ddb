"""Parts of parsers that several commands share: their type, the data set, the options of the state."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from fib_schema.command_parser import CommandParser

from ..settings import DATABASE_VARIABLE, default_state

Commands: TypeAlias = "argparse._SubParsersAction[CommandParser]"  # noqa: SLF001 - it has no public name


def add_command(
    commands: Commands, name: str, run: Callable[[argparse.Namespace], int], text: str
) -> argparse.ArgumentParser:
    """Add a command on the data set of a service."""
    parser = commands.add_parser(name, help=text)
    parser.add_argument("dataset", metavar="DATASET", help="the data set of the service")
    add_state_option(parser)
    parser.set_defaults(command=run)
    return parser


def add_state_option(parser: argparse.ArgumentParser) -> None:
    """Add the options for the state folder and the database."""
    parser.add_argument("--state", metavar="DIR", help="the folder of the service (default: DATASET.fib-serve)")
    parser.add_argument(
        "--database",
        metavar="URL",
        default=os.environ.get(DATABASE_VARIABLE) or None,
        help=f"postgresql://...; may stand in {DATABASE_VARIABLE}, which hides a password (default: SQLite in --state)",
    )


def state_of(arguments: argparse.Namespace) -> Path:
    """The state folder that the options name."""
    dataset = Path(arguments.dataset).resolve()
    return Path(arguments.state).resolve() if arguments.state else default_state(dataset)
