"""The adapter for paged prefill."""

from __future__ import annotations

from fib_integrations.adapters.gqa_paged import GQA_PAGED_PREFILL

from ....replaced import explaining

__all__ = ["GQA_PAGED_PREFILL"]

__getattr__ = explaining(__name__)
