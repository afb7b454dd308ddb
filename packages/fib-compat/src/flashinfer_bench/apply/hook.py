"""The function that hears of calls before they are routed."""

from __future__ import annotations

from fib_apply import get_apply_hook, set_apply_hook

__all__ = ["get_apply_hook", "set_apply_hook"]
