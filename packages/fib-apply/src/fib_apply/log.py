"""Logger of this package."""

from __future__ import annotations

import logging
from collections.abc import Hashable

logger = logging.getLogger("fib_apply")
_warned: dict[Hashable, object] = {}


def warn_once(reason: Hashable, text: str) -> None:
    """Log a warning at the first call for a reason; of several threads, one logs it."""
    token = object()
    if _warned.setdefault(reason, token) is token:
        logger.warning("%s", text)
