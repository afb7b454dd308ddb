"""Start of routing and tracing by the environment, when `flashinfer_bench` is imported."""

from __future__ import annotations

import logging
import os

__all__ = ["start_by_environment"]

logger = logging.getLogger("flashinfer_bench")


def start_by_environment() -> None:
    """Enable what the environment asks for; an error is logged, and the program goes on without it."""
    if os.environ.get("FIB_ENABLE_APPLY", "0") in ("", "0") and os.environ.get("FIB_ENABLE_TRACING", "0") in ("", "0"):
        return  # without the imports below
    from fib_apply.environment import enabled_by_environment
    from fib_schema import FibError

    from . import collecting, routing

    try:
        if enabled_by_environment("FIB_ENABLE_APPLY"):
            routing.enable_apply()
        if enabled_by_environment("FIB_ENABLE_TRACING"):
            collecting.enable_tracing()
    except (FibError, OSError) as error:
        logger.error("the environment enables apply or tracing, which cannot start: %s", error)
