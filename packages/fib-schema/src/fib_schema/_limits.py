"""Limits of what is read."""

from __future__ import annotations

MAX_RECORD_BYTES = 64 << 20
"""The largest record that is read; the largest of the public ones is below 1 MB."""
MAX_LINE_BYTES = 1 << 30
"""The largest line that is skipped; the rest of a file with a larger one is not read."""
MAX_DEPTH = 100
"""Deepest nesting of the objects and lists of a record; each consumer of a record recurses over them."""
MAX_SIZE = 2**63 - 1
"""The largest size of an axis: that of a tensor is a 64-bit integer."""
