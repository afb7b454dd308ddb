"""The adapter for paged latent attention."""

from __future__ import annotations

from fib_integrations.adapters.mla_paged import MLA_PAGED

from ....replaced import explaining

__all__ = ["MLA_PAGED"]

__getattr__ = explaining(__name__)
