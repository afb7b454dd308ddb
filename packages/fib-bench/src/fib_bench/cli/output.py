"""Output of commands: JSON on stdout for programs, consoles and tables of rich for people."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence

from fib_schema.command import unescaped
from fib_schema.display import escape_controls, escape_line, finite_values
from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table
from rich.text import Text


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


def say(console: Console, text: str, style: str = "") -> None:
    """Print text that may hold data; its lines are not wrapped."""
    console.print(safe_text(text, style), soft_wrap=True)


def print_done(text: str, fields: Mapping[str, str], following: str = "", style: str = "green") -> None:
    """Print what a command did: a line, the fields, and the command that follows."""
    console = output_console()
    say(console, text, style)
    for title, value in fields.items():
        say(console, f"  {title:12} {value}")
    if following:
        say(console, f"next: {following}")


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


def make_table(title: str, words: Sequence[str] = (), numbers: Sequence[str] = ()) -> Table:
    """A table without rows: words stand on the left, numbers on the right."""
    table = Table(title=title or None, box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for column in words:
        table.add_column(column, no_wrap=True)
    for column in numbers:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def print_table(console: Console, table: Table) -> None:
    """Print a table. Nothing is cut or broken: on a terminal that is too narrow each row takes several lines.

    A file or a pipe gets one line for each row, whatever its length.
    """
    if title := table.title:
        table.title = None  # rich centres it, or pads it with spaces
        say(console, str(title), "bold")
    width = Measurement.get(console, console.options.update(max_width=10_000), table).maximum
    if width > console.width and console.is_terminal:
        _print_stacked(console, table)
        return
    table.width = width
    console.print(table, crop=False)


def _print_stacked(console: Console, table: Table) -> None:
    """Print each row on several lines: its words, then each number with its heading."""
    cells = [[console.render_str(str(cell)).plain for cell in column.cells] for column in table.columns]
    for row, texts in zip(table.rows, zip(*cells, strict=True), strict=True):
        for column, text in zip(table.columns, texts, strict=True):
            line = text if column.justify == "left" else f"    {column.header}: {text}"
            say(console, line, str(row.style or ""))
