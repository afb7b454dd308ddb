"""The page of a comparison of two runs or solutions: the verdicts, the changes by latency, and all workloads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import attrs

from .charts import COMPARISON_SPEC
from .comparing import WORSE, Comparison, Pair, Verdict
from .page_template import fill_page
from .quantities import latency_with_bounds


def comparison_page(found: Comparison) -> str:
    """The page.

    Raises:
        ChartsUnavailable: vl-convert is not installed.
    """
    digest = {
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "counts": found.counts,
        "ratio": found.ratio_text,
        "isWorse": found.is_worse,
        "worse": sorted(map(str, WORSE)),
        "order": list(map(str, Verdict)),
        "pairs": [_pair(pair) for pair in found.pairs],
        "spec": COMPARISON_SPEC,
    }
    return fill_page("comparison", f"{found.before} → {found.after}", {"comparison": digest})


def _pair(pair: Pair) -> Mapping[str, Any]:
    """A pair as plain values, with the quotient of the medians where latencies were compared."""
    point = pair.after_ms / pair.before_ms if pair.decided_by and pair.after_ms and pair.before_ms else None
    interval = pair.ratio_interval
    is_drawn = interval is not None and interval[0] > 0 and math.isfinite(interval[1])
    texts = {
        "before": _latency(pair.before_ms, pair.before_bounds_ms),
        "after": _latency(pair.after_ms, pair.after_bounds_ms),
    }
    return attrs.asdict(pair) | texts | {"point": point, "ratio_interval": interval if is_drawn else None}


def _latency(latency_ms: float | None, bounds_ms: tuple[float, float] | None) -> str:
    return "-" if latency_ms is None else latency_with_bounds(latency_ms, bounds_ms).replace(" us", " µs")
