"""Output: JSON and CSV on stdout for programs, consoles of rich for people."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from fib_schema.command import unescaped
from fib_schema.display import escape_controls, escape_line, finite_values
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment
from rich.text import Text

_PAIRS = frozenset({"latency_ms", "interval_ms", "speedup_interval", "baseline_speedup_interval", "ratio_interval"})
"""Fields of two numbers."""


class _Terminal(Console):
    """A console that escapes control characters of texts, whichever way they come to it, but not its own colours."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text = segment.text
            is_plain = segment.control is not None or text.isprintable()
            yield segment if is_plain else Segment(escape_controls(text), segment.style)

    def on_broken_pipe(self) -> None:
        """Leave the exit code to `run_command`."""
        raise  # noqa: PLE0704 - it is called while the error is handled


def output_console() -> Console:
    """A console on stdout; make it when it is used, because stdout may be redirected."""
    return _Terminal(file=unescaped(sys.stdout))


def error_console() -> Console:
    """A console on stderr."""
    return _Terminal(file=unescaped(sys.stderr), stderr=True)


def safe_text(text: str, style: str = "") -> Text:
    """Text of one or more lines that may hold data; rich drops some control characters, so they are escaped before."""
    return Text(escape_controls(text), style)


def safe_cell(text: str) -> str:
    """Text of one line that may hold data, as markup of rich."""
    return escape(escape_line(text))


def print_json(value: object) -> None:
    """Print one JSON value."""
    json.dump(finite_values(value), sys.stdout, indent=2)
    sys.stdout.write("\n")


def print_csv(rows: Iterable[Mapping[str, Any]]) -> None:
    """Print rows under a line of their fields."""
    flat = [dict(_flat(row)) for row in rows]
    fields = list(dict.fromkeys(field for row in flat for field in row))
    writer = csv.DictWriter(sys.stdout, fields, lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)


def _flat(row: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    """The fields of a row, those of a mapping or a pair as ``field.key``, flags in one cell."""
    for field, value in row.items():
        if field == "axes":
            yield field, _cell(", ".join(f"{axis}={size}" for axis, size in value.items()))
        elif isinstance(value, Mapping):
            yield from ((f"{field}.{key}", _cell(item)) for key, item in value.items())
        elif field in _PAIRS and not isinstance(value, float):
            low, high = value or (None, None)
            yield from ((f"{field}.low", low), (f"{field}.high", high))
        else:
            yield field, _cell(" ".join(map(str, value)) if isinstance(value, list | tuple) else value)


def _cell(value: Any) -> Any:
    """The value, escaped as in tables, and quoted if a spreadsheet would read it as a formula."""
    if isinstance(value, str):
        value = escape_line(value)
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value
