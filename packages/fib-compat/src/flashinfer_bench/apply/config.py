"""The settings of routing."""

from __future__ import annotations

from fib_apply import ApplyConfig, ApplyConfigRegistry

__all__ = ["ApplyConfig", "ApplyConfigRegistry", "get_default_registry"]


def get_default_registry() -> ApplyConfigRegistry:
    """The settings that `enable_apply` uses if it is given none: the defaults, for every definition."""
    return ApplyConfigRegistry()
