"""The HTML page of a report: one file that needs no network.

Text of solutions is data and never markup: it is stored in JSON blocks without ``<``, and the script inserts it as
text nodes, logs under a heading that marks them as untrusted. A content security policy allows only the page's own
two scripts, and no loading.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import resources
from typing import Any

from fib_schema.display import escape_line, escape_values, finite_values

from .charts import GREY, OTHERS, PALETTE, SPECS, bundle
from .leaderboard import Entry
from .page_data import STATUSES, PageData, Section
from .results import FAST_GRID

_LEADERS = (
    "section",
    "solution",
    "author",
    "language",
    "passed",
    "total",
    "speedup",
    "baseline",
    "wins",
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
    scripts = [_closed(bundle()), _closed(_asset("page.js"))]
    hashes = " ".join(f"'sha256-{_sha256(script)}'" for script in scripts)
    blocks = [_block("digest", _overview(data))]
    blocks += [_block(f"section-{index}", section.columns) for index, section in enumerate(data.sections)]
    parts = {
        "policy": f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'",
        "title": html.escape(escape_line(data.name)),
        "style": _asset("page.css"),
        "blocks": "\n".join(blocks),
        "vega": scripts[0],
        "script": scripts[1],
    }
    page = []
    for index, piece in enumerate(_asset("page.html").split("%%")):
        page.append(parts[piece] if index % 2 else piece)  # one pass: inserted text is not searched for markers
    return "".join(page)


def _overview(data: PageData) -> dict[str, Any]:
    """The part of the page that is visible before a section is opened."""
    return {
        "name": data.name,
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "counts": data.counts,
        "statuses": data.statuses,
        "environments": data.environments,
        "authors": data.authors,
        "authorsNote": data.authors_note,
        "baselineAuthor": data.options.baseline_author,
        "winFactors": [f"{factor:g}" for factor in data.options.win_factors],
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
        "palette": PALETTE,
        "grey": GREY,
        "others": OTHERS,
    }


def _leader(section: int, row: Entry) -> list[Any]:
    low, high = row.latency_ms or (None, None)
    wins = [_rounded(share) if row.is_ranked else None for share in row.win_at.values()]
    area = row.fast_area if row.is_ranked else None
    speedup = _number_or_text(row.speedup, row.speedup_text)
    baseline = _number_or_text(row.baseline_speedup, row.baseline_speedup_text)
    area, fraction, low, high = map(_rounded, (area, row.attainable_fraction, low, high))
    words = (section, row.solution, row.author, row.language, row.passed, row.total)
    notes = (row.problem[:400], list(row.flags), row.is_ranked, list(row.labels), ", ".join(row.timed_by))
    return [*words, speedup, baseline, wins, area, fraction, low, high, *notes]


def _number_or_text(number: float | None, text: str) -> float | str | None:
    """A ratio for the page: the number, or why there is none; None if it is unknown."""
    return _rounded(number) if number is not None else None if text == "-" else text


def _baselines(sections: Sequence[Section]) -> list[str]:
    return sorted({row.baseline for section in sections for row in section.entries if row.baseline is not None})


def _rounded(number: float | None) -> float | None:
    """The number rounded to four digits; None if JSON cannot express it."""
    return None if number is None or not 0 <= number < float("inf") else float(f"{number:.4g}")


def _block(name: str, value: Mapping[str, Any]) -> str:
    # in ASCII, so no separator of lines is in it
    text = json.dumps(finite_values(escape_values(value)), separators=(",", ":"), allow_nan=False)
    for letter in "<>&":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return f'<script type="application/json" id="{name}">{text}</script>'


def _closed(script: str) -> str:
    """A script that cannot close its own element."""
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _sha256(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text("utf-8")
