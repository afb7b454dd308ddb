"""Logger of this package."""

from __future__ import annotations

import logging

logger = logging.getLogger("fib_apply")
