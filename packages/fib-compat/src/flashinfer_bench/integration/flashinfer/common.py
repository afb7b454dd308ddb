"""Nothing: what adapters share is no interface; asking for a documented name says where its work is done."""

from __future__ import annotations

from ...replaced import explaining

__all__: list[str] = []

__getattr__ = explaining(__name__)
