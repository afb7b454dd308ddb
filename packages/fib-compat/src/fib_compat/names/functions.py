"""Documented functions and constants with a different form in the FIB packages."""

from __future__ import annotations

from typing import TypeAlias

from fib_apply.environment import enabled_by_environment
from fib_compile import BuilderRegistry
from fib_schema import DType

__all__ = [
    "ALLOWED_DTYPES",
    "ScalarValue",
    "get_fib_enable_apply",
    "get_fib_enable_tracing",
    "get_registry",
]

ALLOWED_DTYPES = frozenset(DType)
ScalarValue: TypeAlias = int | float | bool


def get_registry() -> BuilderRegistry:
    """The first release's name of `BuilderRegistry.get_instance`."""
    return BuilderRegistry.get_instance()


def get_fib_enable_apply() -> bool:
    """Whether ``FIB_ENABLE_APPLY`` enables routing; each call reads the environment."""
    return bool(enabled_by_environment("FIB_ENABLE_APPLY"))


def get_fib_enable_tracing() -> bool:
    """Whether ``FIB_ENABLE_TRACING`` enables tracing; each call reads the environment."""
    return bool(enabled_by_environment("FIB_ENABLE_TRACING"))
