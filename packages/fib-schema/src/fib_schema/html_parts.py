"""Parts of HTML pages for notebooks. All text is escaped, because solutions write names and logs."""

from __future__ import annotations

import html
from collections.abc import Iterable

from .display import escape_controls, shortened

MAX_LOG = 10_000
"""Characters of a log that are shown."""


def title(text: str) -> str:
    """A bold line."""
    return f"<p><b>{escaped(shortened(text))}</b></p>"


def paragraph(text: str | None) -> str:
    """A paragraph; nothing without text."""
    return f"<p>{escaped(text)}</p>" if text else ""


def details(summary: str, text: str, *, is_open: bool = False) -> str:
    """A text that can be folded."""
    opened = " open" if is_open else ""
    return f"<details{opened}><summary>{escaped(summary)}</summary><pre>{escaped(text)}</pre></details>"


def table(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A table; None is an empty cell."""
    head = "".join(f"<th>{escaped(column)}</th>" for column in columns)
    cells = ("".join(f"<td>{escaped('' if cell is None else cell)}</td>" for cell in row) for row in rows)
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def escaped(value: object) -> str:
    """The text of a value, without markup and control characters."""
    return html.escape(escape_controls(str(value)))
