"""Identifiers and the clock: random ids, hashes of contents, and the time that records state."""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from datetime import UTC, datetime

from fib_schema.framing import framed

USER_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,38}", re.ASCII)
"""Names of users: they become folder names of the data set."""


def new_id() -> str:
    """A random id of 32 hexadecimal digits, which nobody can guess."""
    return secrets.token_hex(16)


def digest(*parts: str) -> str:
    """A hash (64 hexadecimal digits) of texts; different sequences have different hashes."""
    return hashlib.sha256(framed(parts)).hexdigest()


def now() -> float:
    """The time in seconds since 1970 (UTC)."""
    return time.time()


def iso_time(seconds: float | None) -> str | None:
    """A time in ISO 8601 (UTC), in seconds."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
