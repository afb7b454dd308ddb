"""Digests of sequences of parts, for names in the cache."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from fib_schema.framing import framed

__all__ = ["digest", "framed"]


def digest(parts: Iterable[str | bytes], length: int = 40) -> str:
    """Hexadecimal digits that two different sequences of parts do not share."""
    return hashlib.sha256(framed(parts)).hexdigest()[:length]
