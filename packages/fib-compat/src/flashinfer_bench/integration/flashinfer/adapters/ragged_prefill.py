"""The adapter for ragged prefill."""

from __future__ import annotations

from fib_integrations.adapters.ragged_prefill import RAGGED_PREFILL

from ....replaced import explaining

__all__ = ["RAGGED_PREFILL"]

__getattr__ = explaining(__name__)
