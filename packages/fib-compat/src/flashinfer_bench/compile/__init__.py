"""Builders of solutions, their registry, and built solutions."""

from __future__ import annotations

from fib_compile import Builder, BuilderRegistry, BuildError, Runnable, RunnableMetadata

from .._legacy_members import add_legacy_members
from .._model_methods import add_model_methods

__all__ = ["BuildError", "Builder", "BuilderRegistry", "Runnable", "RunnableMetadata", "get_registry"]

add_model_methods(RunnableMetadata)
add_legacy_members(BuilderRegistry)
add_legacy_members(Runnable)


def get_registry() -> BuilderRegistry:
    """The first release's name of `BuilderRegistry.get_instance`."""
    return BuilderRegistry.get_instance()
