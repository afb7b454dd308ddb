"""Runtimes, and which one is in force."""

from __future__ import annotations

from fib_apply import ApplyRuntime, get_runtime, set_runtime

__all__ = ["ApplyRuntime", "get_runtime", "set_runtime"]
