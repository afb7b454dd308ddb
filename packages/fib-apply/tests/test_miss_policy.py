"""Nearest keys: the grouped keys give what a scan of all keys gives."""

from __future__ import annotations

import math
from collections.abc import Mapping

from fib_apply import ApplyKey
from fib_apply.selection.rankings import NearestKeys
from hypothesis import given
from hypothesis import strategies as st

SIZES = st.integers(min_value=0, max_value=12)
KEYS = st.builds(
    lambda a, b, c, feats: ApplyKey({"a": a, "b": b, "c": c}, feats),
    SIZES,
    SIZES,
    st.integers(min_value=1, max_value=2),
    st.sampled_from([{}, {"f": 1}]),
)
FACTORS = st.sampled_from([1.0, 1.5, 2.0, 3.0, 100.0])


def nearest_by_scan(known: list[ApplyKey], key: ApplyKey, bounds: Mapping[str, float]) -> ApplyKey | None:
    found = []
    for other in known:
        if key.feats != other.feats:
            continue
        total = 0.0
        for (axis, size), (_, theirs) in zip(key.axes, other.axes, strict=True):
            if size != theirs:
                factor = max(size, theirs) / min(size, theirs) if min(size, theirs) > 0 else math.inf
                total += math.log(factor) if factor <= bounds.get(axis, 1.0) else math.inf
        if total < math.inf:
            found.append((total, other.axes, other))
    return min(found, key=lambda pair: pair[:2])[2] if found else None


@given(known=st.lists(KEYS), key=KEYS, bounds=st.dictionaries(st.sampled_from("abz"), FACTORS))
def test_finds_what_a_scan_finds(known: list[ApplyKey], key: ApplyKey, bounds: dict[str, float]) -> None:
    assert NearestKeys(known, bounds).find(key) == nearest_by_scan(known, key, bounds)
