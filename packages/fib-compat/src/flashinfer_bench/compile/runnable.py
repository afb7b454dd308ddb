"""Built solutions."""

from __future__ import annotations

from fib_compile import Runnable, RunnableMetadata

__all__ = ["Runnable", "RunnableMetadata"]
