"""Connects FlashInfer with apply and tracing."""

from __future__ import annotations

from fib_integrations import install_flashinfer_integrations

__all__ = ["install_flashinfer_integrations"]
