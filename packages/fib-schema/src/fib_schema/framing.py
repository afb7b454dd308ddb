"""Unambiguous encoding of parts for hashing: every part is preceded by its length."""

from __future__ import annotations

from collections.abc import Iterable


def framed(parts: Iterable[str | bytes]) -> bytes:
    """Join parts so that no two different sequences give the same bytes."""
    frames = bytearray()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        frames += len(data).to_bytes(8, "little")
        frames += data
    return bytes(frames)
