"""Output of commands: messages on stderr, tables and JSON on stdout."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


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
