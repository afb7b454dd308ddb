"""Database of the service: submissions, their queue, users, events and devices.

Trace files are the truth for results. What the database holds of them is an index that `queue.reconciliation` rebuilds.
"""

from __future__ import annotations

from .engine import Database
from .migrate import migrate

__all__ = ["Database", "migrate"]
