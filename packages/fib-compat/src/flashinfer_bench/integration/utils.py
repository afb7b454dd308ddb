"""Nothing: asking for a documented name says what does the same."""

from __future__ import annotations

from ..replaced import explaining

__all__: list[str] = []

__getattr__ = explaining(__name__)
