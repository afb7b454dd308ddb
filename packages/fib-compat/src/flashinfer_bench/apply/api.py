"""What an engine calls."""

from __future__ import annotations

from fib_apply import apply, disable_apply, enable_apply

__all__ = ["apply", "disable_apply", "enable_apply"]
