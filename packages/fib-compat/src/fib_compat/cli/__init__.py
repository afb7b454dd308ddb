"""The command ``fib-compat``."""

from __future__ import annotations

from .main import cli

__all__ = ["cli"]
