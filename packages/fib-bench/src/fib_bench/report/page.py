"""One HTML file with everything: it needs no network, and opens on a phone.

What solutions wrote is data here and never markup: it lies in JSON blocks that hold no ``<``, and
the script puts it into the page as text. A content security policy lets nothing run but the two
scripts that the page was made with, and nothing be loaded.
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

from .charts import GREY, OTHERS, PALETTE, SPECS, bundle
from .digest import STATUSES, Digest, Section
from .standings import FAST_GRID, Standing

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
    "complaint",
    "flags",
)


def page_of(digest: Digest) -> str:
    """The page.

    Raises:
        ChartsUnavailable: What draws the charts is not installed.
    """
    scripts = [_closed(bundle()), _closed(_asset("page.js"))]
    hashes = " ".join(f"'sha256-{_sha256(script)}'" for script in scripts)
    blocks = [_block("digest", _overview(digest))]
    blocks += [_block(f"section-{index}", section.columns) for index, section in enumerate(digest.sections)]
    parts = {
        "policy": f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'",
        "title": html.escape(digest.name),
        "style": _asset("page.css"),
        "blocks": "\n".join(blocks),
        "vega": scripts[0],
        "script": scripts[1],
    }
    page = []
    for index, piece in enumerate(_asset("page.html").split("%%")):
        page.append(parts[piece] if index % 2 else piece)  # one pass: what is put in is not looked at again
    return "".join(page)


def _overview(digest: Digest) -> dict[str, Any]:
    """What the page shows before a section is opened."""
    return {
        "name": digest.name,
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "counts": digest.counts,
        "statuses": digest.statuses,
        "environments": digest.environments,
        "authors": digest.authors,
        "authorsNote": digest.authors_note,
        "baselineAuthor": digest.options.baseline_author,
        "winFactors": [f"{factor:g}" for factor in digest.options.win_factors],
        "sections": [
            [
                section.definition,
                section.op_type,
                section.description,
                section.hardware,
                len(section.columns["workloads"]),
            ]
            for section in digest.sections
        ],
        "leaderFields": _LEADERS,
        "leaders": [_leader(i, row) for i, section in enumerate(digest.sections) for row in section.standings],
        "baselines": _baselines(digest.sections),
        "statusNames": STATUSES,
        "grid": FAST_GRID,
        "specs": SPECS,
        "palette": PALETTE,
        "grey": GREY,
        "others": OTHERS,
    }


def _leader(section: int, row: Standing) -> list[Any]:
    low, high = row.latency_ms or (None, None)
    wins = [_rounded(share) for share in row.win_at.values()]
    numbers = (row.speedup, row.baseline_speedup, row.fast_area, row.attainable_fraction, low, high)
    speedup, baseline, area, fraction, low, high = map(_rounded, numbers)
    words = (section, row.solution, row.author, row.language, row.passed, row.total)
    return [*words, speedup, baseline, wins, area, fraction, low, high, row.complaint[:400], list(row.flags)]


def _baselines(sections: Sequence[Section]) -> list[str]:
    return sorted({row.baseline for section in sections for row in section.standings if row.baseline is not None})


def _rounded(number: float | None) -> float | None:
    """Four digits; nothing where it is no number that JSON knows."""
    return None if number is None or not 0 <= number < float("inf") else float(f"{number:.4g}")


def _block(name: str, value: Mapping[str, Any]) -> str:
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)  # ASCII: no separator of lines is in it
    for letter in "<>&":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return f'<script type="application/json" id="{name}">{text}</script>'


def _closed(script: str) -> str:
    """A script that does not end the element that it stands in."""
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _sha256(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text("utf-8")
