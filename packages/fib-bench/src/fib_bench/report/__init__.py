"""Reports: leaderboards, comparisons, merged data sets, and an HTML page, made from the traces of a data set.

The functions turn traces into rows of plain values; `fib_bench.cli.tables` prints rows for people, ``--json`` and
``--csv`` for programs. No module here imports torch.
"""

from __future__ import annotations

from .best import Best, best
from .leaderboard import Author, Entry, Summary, leaderboard, summarise
from .ratios import Outcome, Ratio, speedup_of
from .results import DeviceResults, Options, error_line, failure_text, group_results, latest

__all__ = [
    "Author",
    "Best",
    "DeviceResults",
    "Entry",
    "Options",
    "Outcome",
    "Ratio",
    "Summary",
    "best",
    "error_line",
    "failure_text",
    "group_results",
    "latest",
    "leaderboard",
    "speedup_of",
    "summarise",
]
