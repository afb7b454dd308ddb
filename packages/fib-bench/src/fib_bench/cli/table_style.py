"""The style of all tables. One look at all widths, in which nothing is cut."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from .printing import safe_text

_FOLDED = 16
"""A column of words may be folded to so many characters."""


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
    """Print a table; where its columns do not fit, lines are longer than the terminal is wide."""
    options = console.options.update(max_width=10_000)
    widths = [
        max(Measurement.get(console, options, cell).maximum for cell in (column.header, *column.cells)) + 2
        for column in table.columns
    ]
    least = sum(
        width if column.no_wrap else min(width, _FOLDED + 2)
        for width, column in zip(widths, table.columns, strict=True)
    )
    if least > console.width:
        table.width = least
    if title := table.title:
        table.title = None  # rich centres it, or pads it with spaces
        console.print(safe_text(str(title), "bold"), soft_wrap=True)
    console.print(table, crop=False)
