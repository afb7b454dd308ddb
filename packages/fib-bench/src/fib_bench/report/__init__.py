"""What the traces of a data set say: standings, comparisons, merged sets, and one page with all of it.

Functions here turn traces into plain rows; `tables` shows rows to people, ``--json`` and ``--csv`` to
programs. Nothing here imports torch.
"""

from __future__ import annotations

from .standings import Author, Best, Standing, Summary, best, complaint, contests, latest, leaderboard, summarise

__all__ = [
    "Author",
    "Best",
    "Standing",
    "Summary",
    "best",
    "complaint",
    "contests",
    "latest",
    "leaderboard",
    "summarise",
]
