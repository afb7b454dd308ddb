"""Values of the environment variables; each call reads the environment."""

from __future__ import annotations

from fib_apply.environment import enabled_by_environment
from fib_schema import get_fib_cache_path, get_fib_dataset_path

__all__ = ["get_fib_cache_path", "get_fib_dataset_path", "get_fib_enable_apply", "get_fib_enable_tracing"]


def get_fib_enable_apply() -> bool:
    """Whether ``FIB_ENABLE_APPLY`` enables routing."""
    return bool(enabled_by_environment("FIB_ENABLE_APPLY"))


def get_fib_enable_tracing() -> bool:
    """Whether ``FIB_ENABLE_TRACING`` enables tracing."""
    return bool(enabled_by_environment("FIB_ENABLE_TRACING"))
