"""Reasons why the fallback serves a call, as metrics and messages state them. No torch."""

from __future__ import annotations

BEING_BUILT = "being built"
"""The only reason for a miss that ends by itself."""
NOT_AGREED = "not agreed"
"""The reason for a miss that ends when the replicas are synchronized."""
FALLBACK_IS_BEST = "the fallback is the best"
"""The reason for a miss whose key is recorded: the best solution is the fallback in another form."""
NOTHING_BUILT = "nothing built"
"""The reason for a miss whose solutions could not be built, or not be loaded."""
QUARANTINED = "quarantined"
"""The reason for a miss whose solutions are left out, at least one of them because it failed in a call."""
