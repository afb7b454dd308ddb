"""Parts that the commands share: their parsers, the data set and its state folder, and output."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from fib_schema.command import CommandParser

from ..settings import Settings, default_state

Commands: TypeAlias = "argparse._SubParsersAction[CommandParser]"  # noqa: SLF001 - it has no public name


def add_command(
    commands: Commands, name: str, run: Callable[[argparse.Namespace], int], text: str
) -> argparse.ArgumentParser:
    """Add a command on the data set of a service."""
    parser = commands.add_parser(name, help=text)
    parser.add_argument("dataset", metavar="DATASET", help="the data set of the service; its workloads are public")
    parser.add_argument("--state", metavar="DIR", help="the folder of the service (default: DATASET.fib-serve)")
    parser.set_defaults(command=run)
    return parser


def base_settings(arguments: argparse.Namespace, **more: Any) -> Settings:
    """The settings of a service, with paths that do not depend on the current folder."""
    dataset = Path(arguments.dataset).resolve()
    state = Path(arguments.state).resolve() if arguments.state else default_state(dataset)
    hidden = getattr(arguments, "hidden", None)
    hidden = None if hidden is None else str(Path(hidden).resolve())
    return Settings(dataset=str(dataset), state=str(state), hidden=hidden, **more)


def say(message: str) -> None:
    """Print a message for people on stderr."""
    print(message, file=sys.stderr, flush=True)


def print_json(value: object) -> None:
    """Print JSON in ASCII."""
    print(json.dumps(value, indent=2))


def print_table(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Print rows under headings, as wide as their widest text."""
    texts = [tuple(columns), *(tuple(_text(row.get(column)) for column in columns) for row in rows)]
    widths = [max(len(row[place]) for row in texts) for place in range(len(columns))]
    for row in texts:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())


def _text(value: object) -> str:
    if value is None:
        return "-"
    return "yes" if value is True else "no" if value is False else str(value)
