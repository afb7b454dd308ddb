"""Builds solutions."""

from __future__ import annotations

from fib_compile import Builder, BuilderRegistry, BuildError, Runnable, RunnableMetadata

from .._models import add_model_methods
from .._older_names import add_older_names
from .registry import get_registry

__all__ = ["BuildError", "Builder", "BuilderRegistry", "Runnable", "RunnableMetadata", "get_registry"]

add_model_methods(RunnableMetadata)
for _kind in (BuilderRegistry, Runnable):
    add_older_names(_kind)
