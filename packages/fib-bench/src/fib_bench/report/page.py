"""The page of a report: the leaderboard, definitions with charts, failures and sources, and the environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from fib_schema.package_init import installed_version

from .charts import GREY, OTHERS, PALETTE, SPECS
from .leaderboard import Entry
from .page_data import STATUSES, PageData, Section
from .page_template import fill_page
from .results import FAST_GRID

_LEADERS = (
    "section",
    "solution",
    "author",
    "language",
    "passed",
    "total",
    "speedup",
    "said",
    "baseline",
    "fast",
    "area",
    "fraction",
    "low",
    "high",
    "problem",
    "flags",
    "ranked",
    "labels",
    "by",
)


def page_of(data: PageData) -> str:
    """The page.

    Raises:
        ChartsUnavailable: vl-convert is not installed.
    """
    blocks: dict[str, Mapping[str, Any]] = {"digest": _overview(data)}
    blocks |= {f"section-{index}": section.columns for index, section in enumerate(data.sections)}
    blocks |= {f"sources-{index}": {"all": section.sources} for index, section in enumerate(data.sections)}
    return fill_page("page", data.name, blocks)


def _overview(data: PageData) -> dict[str, Any]:
    """The part of the page that is visible before a section is opened."""
    return {
        "name": data.name,
        "note": data.options.note,
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "counts": data.counts,
        "statuses": data.statuses,
        "environments": data.environments,
        "authors": data.authors,
        "authorsNote": data.authors_note,
        "baselineAuthor": data.options.baseline_author,
        "fastFactors": [f"{factor:g}" for factor in data.options.fast_factors],
        "sections": [
            [
                section.definition,
                section.op_type,
                section.description,
                section.hardware,
                len(section.columns["workloads"]),
            ]
            for section in data.sections
        ],
        "leaderFields": _LEADERS,
        "leaders": [_leader(i, row) for i, section in enumerate(data.sections) for row in section.entries],
        "baselines": _baselines(data.sections),
        "statusNames": STATUSES,
        "grid": FAST_GRID,
        "specs": SPECS,
        "harness": installed_version("fib-bench"),
        "methods": sorted({method for section in data.sections for method in section.columns["methods"]}),
        "palette": PALETTE,
        "grey": GREY,
        "others": OTHERS,
    }


def _leader(section: int, row: Entry) -> list[Any]:
    low, high = row.latency_ms or (None, None)
    fast = [_rounded(share) if row.is_ranked else None for share in row.fast_p.values()]
    area = row.fast_area if row.is_ranked else None
    speedup = _number_or_text(row.speedup, row.speedup_text)
    baseline = _number_or_text(row.baseline_speedup, row.baseline_speedup_text)
    area, fraction, low, high = map(_rounded, (area, row.attainable_fraction, low, high))
    words = (section, row.solution, row.author, row.language, row.passed, row.total)
    notes = (row.problem[:400], list(row.flags), row.is_ranked, list(row.labels), ", ".join(row.timed_by))
    return [*words, speedup, row.speedup_text, baseline, fast, area, fraction, low, high, *notes]


def _number_or_text(number: float | None, text: str) -> float | str | None:
    """A ratio for the page: the number, or why there is none; None if it is unknown."""
    return _rounded(number) if number is not None else None if text == "-" else text


def _baselines(sections: Sequence[Section]) -> list[str]:
    return sorted({row.baseline for section in sections for row in section.entries if row.baseline is not None})


def _rounded(number: float | None) -> float | None:
    """The number rounded to four digits; None if JSON cannot express it."""
    return None if number is None or not 0 <= number < float("inf") else float(f"{number:.4g}")
