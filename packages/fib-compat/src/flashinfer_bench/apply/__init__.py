"""Routing of calls to the fastest verified solutions."""

from __future__ import annotations

from fib_apply import (
    ApplyConfig,
    ApplyConfigRegistry,
    ApplyRuntime,
    apply,
    disable_apply,
    enable_apply,
    get_apply_hook,
    get_runtime,
    set_apply_hook,
    set_runtime,
)

from .._model_methods import add_model_methods

__all__ = [
    "ApplyConfig",
    "ApplyConfigRegistry",
    "ApplyRuntime",
    "apply",
    "disable_apply",
    "enable_apply",
    "get_apply_hook",
    "get_default_registry",
    "get_runtime",
    "set_apply_hook",
    "set_runtime",
]

add_model_methods(ApplyConfig)


def get_default_registry() -> ApplyConfigRegistry:
    """The settings that `enable_apply` uses without an argument: the defaults, for every definition."""
    return ApplyConfigRegistry()
