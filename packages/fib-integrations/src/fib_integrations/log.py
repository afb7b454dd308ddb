"""The logger of this package; nothing is printed."""

from __future__ import annotations

import logging

logger = logging.getLogger("fib_integrations")
