"""The adapter for paged decode."""

from __future__ import annotations

from fib_integrations.adapters.gqa_paged import GQA_PAGED_DECODE

from ....replaced import explaining

__all__ = ["GQA_PAGED_DECODE"]

__getattr__ = explaining(__name__)
