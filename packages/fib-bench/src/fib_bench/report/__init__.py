"""Reports: leaderboards, comparisons, merged data sets, and an HTML page, made from the traces of a data set.

The functions turn traces into rows of plain values; `fib_bench.cli.output` prints rows for people, ``--json`` for
programs. No module here imports torch.
"""

from __future__ import annotations

from .leaderboard import Best, LeaderboardRow, Summary, best, error_line, failure_text, leaderboard, summarise
from .ratios import Outcome, Ratio, speedup_of

__all__ = [
    "Best",
    "LeaderboardRow",
    "Outcome",
    "Ratio",
    "Summary",
    "best",
    "error_line",
    "failure_text",
    "leaderboard",
    "speedup_of",
    "summarise",
]
