"""Output for programs: JSON and CSV on stdout."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any

_PAIRS = frozenset({"latency_ms", "interval_ms", "speedup_interval", "baseline_speedup_interval", "ratio_interval"})
"""Fields of two numbers."""


def print_json(value: object) -> None:
    """Print one JSON value."""
    json.dump(_finite(value), sys.stdout, indent=2)
    sys.stdout.write("\n")


def _finite(value: Any) -> Any:
    """The value with NaN and infinity as strings, as in data sets, so that every JSON reader accepts it."""
    if isinstance(value, float) and not abs(value) < float("inf"):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


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
    """The value, quoted if a spreadsheet would read it as a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value
