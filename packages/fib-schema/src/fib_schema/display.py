"""Display of text that comes from data. Control characters and invisible characters are shown escaped.

A name could otherwise reorder a line of a table (U+202E), and an escape sequence in a log could rewrite the terminal.
Everything that a command prints passes here (`fib_schema.command`), and so do pages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import isfinite
from typing import Any

_HIDDEN = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 without tab and newline, C1
    "\xad\u061c\u180e\u200b-\u200f\u2060-\u206f\ufeff\ufff9-\ufffb"  # invisible, or marks of direction
    "\u2028-\u202e"  # separators of lines, embeddings and overrides of direction
    "\ud800-\udfff"  # halves of surrogate pairs, which no encoding can write
    "\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0"  # joiners, fillers and vowels without a shape
    "\ufe00-\ufe0f\U000e0100-\U000e01ef"  # variation selectors, a sequence of which can carry any bytes
    "\U000e0000-\U000e007f"  # tags
)
_IN_TEXT = re.compile(f"[{_HIDDEN}]")
_IN_LINE = re.compile(f"[\t\n{_HIDDEN}]")


def escape_controls(text: str) -> str:
    """The text with backslash escapes for control and invisible characters; tabs and newlines stay."""
    return text if text.isascii() and text.isprintable() else _IN_TEXT.sub(_escape, text)


def escape_line(text: str) -> str:
    """As `escape_controls`, with tabs and newlines escaped too: for one cell of a table."""
    return text if text.isascii() and text.isprintable() else _IN_LINE.sub(_escape, text)


def shortened(text: str, most: int = 300) -> str:
    """A text in one line of at most `most` characters, for `repr`."""
    text = escape_line(text)
    return text if len(text) <= most else f"{text[: most - 3]}..."


def aligned(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """The lines of a table, whose columns are as wide as their longest cell."""
    lines = [[escape_line(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        yield "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()


def counted(count: int, noun: str, plural: str = "") -> str:
    """A count with its noun, whose plural has an s unless it is given: ``1 trace``, ``2 traces``."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


def latency_unit(milliseconds: float) -> tuple[float, str]:
    """The factor from milliseconds to a fitting unit, and its name."""
    if milliseconds >= 1000:
        return 1e-3, "s"
    return (1.0, "ms") if milliseconds >= 1 else (1e3, "us")


def format_latency(milliseconds: float) -> str:
    """A latency with three digits and a fitting unit."""
    factor, unit = latency_unit(milliseconds)
    return f"{milliseconds * factor:.3g} {unit}"


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()


def escape_values(value: Any) -> Any:
    """A JSON value with all its texts, keys included, as `escape_controls` gives them: for pages and charts."""
    return _mapped(value, lambda item: escape_controls(item) if isinstance(item, str) else item)


def finite_values(value: Any) -> Any:
    """The value with NaN and infinity as strings, as in data sets, so that every JSON reader accepts it."""
    return _mapped(value, lambda item: finite_value(item) if isinstance(item, float) else item)


def finite_value(number: float) -> float | str:
    """The number, or the word for NaN or an infinity."""
    if isfinite(number):
        return number
    return "NaN" if number != number else "Infinity" if number > 0 else "-Infinity"


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """A JSON value whose keys and scalars are changed."""
    if isinstance(value, Mapping):
        return {change(key): _mapped(item, change) for key, item in value.items()}
    return [_mapped(item, change) for item in value] if isinstance(value, list | tuple) else change(value)
