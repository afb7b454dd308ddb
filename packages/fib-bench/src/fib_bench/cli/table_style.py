"""The style of all tables. Nothing is cut: on a terminal that is too narrow each row takes several lines."""

from __future__ import annotations

from collections.abc import Sequence

from fib_schema.display import stacked_row
from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from .printing import safe_text

_MIN_WORDS_WIDTH = 16
"""Characters to which a column of words may be folded."""


def make_table(title: str, words: Sequence[str] = (), numbers: Sequence[str] = ()) -> Table:
    """A table without rows.

    Args:
        title: Above it; it may hold data.
        words: Columns of text, which are folded on narrow terminals.
        numbers: Columns on the right whose cells stay on one line.
    """
    table = Table(
        title=title or None,
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for column in words:
        table.add_column(column, overflow="fold")
    for column in numbers:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def print_table(console: Console, table: Table) -> None:
    """Print a table; where its columns do not fit into a terminal, each row is printed on several lines.

    A file or a pipe gets one line for each row, whatever its length.
    """
    options = console.options.update(max_width=10_000)
    widths = [
        max(Measurement.get(console, options, cell).maximum for cell in (column.header, *column.cells)) + 2
        for column in table.columns
    ]
    least = sum(
        width if column.no_wrap else min(width, _MIN_WORDS_WIDTH + 2)
        for width, column in zip(widths, table.columns, strict=True)
    )
    if title := table.title:
        table.title = None  # rich centres it, or pads it with spaces
        console.print(safe_text(str(title), "bold"), soft_wrap=True)
    if least > console.width and console.is_terminal:
        _print_stacked(console, table)
        return
    if least > console.width:
        table.width = least
    console.print(table, crop=False)


def _print_stacked(console: Console, table: Table) -> None:
    """Print each row on several lines: its words, then its numbers with their headings."""
    is_name = [not column.no_wrap for column in table.columns]
    headings = [str(column.header) for column in table.columns]
    cells = [[console.render_str(str(cell)).plain for cell in column.cells] for column in table.columns]
    for row, texts in zip(table.rows, zip(*cells, strict=True), strict=True):
        names = [text for text, is_name_too in zip(texts, is_name, strict=True) if is_name_too]
        numbers = zip(headings, texts, is_name, strict=True)
        fields = {heading: text for heading, text, is_name_too in numbers if not is_name_too}
        for line in stacked_row(names, fields, console.width):
            console.print(safe_text(line, str(row.style or "")), soft_wrap=True)
