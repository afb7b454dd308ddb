"""Evaluation service for kernels of strangers: HTTP API, durable queue, leaderboard pages, client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fib_schema.package_init import lazy_exports, require_linux

__all__ = ["Client", "ServiceError", "ServiceUnreachable", "SubmissionInfo", "__version__"]

require_linux("fib-serve")

if TYPE_CHECKING:
    from .client import Client, ServiceError, ServiceUnreachable, SubmissionInfo

    __version__: str
else:
    __getattr__, __dir__ = lazy_exports(__name__, "fib-serve")
