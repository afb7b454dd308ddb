"""The builders of this process, and what they have built."""

from __future__ import annotations

from fib_compile import BuilderRegistry

__all__ = ["BuilderRegistry", "get_registry"]


def get_registry() -> BuilderRegistry:
    """`BuilderRegistry.get_instance` as the first release called it."""
    return BuilderRegistry.get_instance()
