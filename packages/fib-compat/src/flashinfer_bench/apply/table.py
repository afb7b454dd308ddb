"""What was chosen for each definition and key."""

from __future__ import annotations

from fib_apply import ApplyTable

__all__ = ["ApplyTable"]
