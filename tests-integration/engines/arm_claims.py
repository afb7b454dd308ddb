"""Claims of the comparison of engines, line by line: what a run has measured, the limit, and whether it is met.

A limit on a ratio is met if its 95 % interval lies inside the limit, and not met if the interval lies outside;
otherwise the interval is the result. What a run has not measured is "not run": nothing is met without a measurement.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from arm_statistics import FIRST, LEAST_ROUNDS, SPEED, Record, Records, of_arm, own_pairs_of, pairs_of, ratio
from arm_turns import BEST_IS_ORIGINAL, decided

MET, NOT_MET, NOT_RUN, OPEN = "met", "not met", "not run", "open: the interval contains the limit"
_RATED = ("gqa_paged_decode", "gqa_paged_prefill", "rmsnorm")
_NO_KEY = "not recorded"
_LEAST_SHARE = 0.95
_WHAT = {SPEED: "tokens/s", FIRST: "first token"}
_SETTINGS = ("fp8-cache", "chunked-prefill", "speculative")


class Line(NamedTuple):
    """One line of the table."""

    number: str
    value: str
    limit: str
    result: str


def claims(out: Path, records: Records) -> list[Line]:
    """All lines, in the order of the issue.

    Args:
        out: The folder of the run.
        records: Of its engine processes.
    """
    lines = [*_shares(records)]
    for arm, name, speed, first in (
        ("routed", "overhead arm", 0.995, 1.01),
        ("off", "installed but off", 0.998, 1.002),
        ("tracing", "tracing, quotas full", 0.99, None),
    ):
        for mode in ("eager", "graphs"):
            lines += _ratios(records, mode, arm, name, SPEED, speed)
            if first is not None:
                lines += _ratios(records, mode, arm, name, FIRST, first)
    for mode in _MODES:
        lines += _ratios(records, mode, "winners", "winners", SPEED, 1.0)
    lines += [_start(out, records), *(_tokens(records, mode) for mode in _MODES)]
    lines += [_rounds(records, mode) for mode in _MODES]
    lines += [_setting(out, name) for name in _SETTINGS]
    lines += [
        _other(out / "two-ranks" / "trace.json", "two tensor-parallel ranks: traced without doubles"),
        _other(out / "two-ranks" / "route-routed.json", "two tensor-parallel ranks: routed alike, engine's kernels"),
        _other(out / "two-ranks" / "route-winners.json", "two tensor-parallel ranks: routed alike, winners"),
        _other(out / "tutorial" / "followed.json", "the tutorial, followed literally"),
    ]
    return lines


def print_claims(lines: Iterable[Line]) -> None:
    """Print the table."""
    print("\n| number | measured | limit | result |\n| --- | --- | --- | --- |")
    for line in lines:
        print(f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |")


_MODES = ("eager", "graphs")


def _shares(records: Records) -> Iterator[Line]:
    """Calls that a recorded key decided: by the overhead arm in eager mode, by captures of winners under CUDA graphs.

    The engine's own attention plans on the host and cannot be captured as a solution.
    """
    eager = [*of_arm(records, "eager", "routed").values()]
    for beginning in _RATED:
        total = _counted(eager, beginning)
        keyed = total["calls"] - total["without key"]
        served = f"{total['original']} of them by the original; {total['without key']} without key"
        text = f"{total['decided']} of {keyed}, {served}"
        number = f"eager, overhead arm: calls of {beginning} that a recorded key decided"
        yield _share(number, total["decided"], keyed, text)
    captured = [record["captured"] for record in of_arm(records, "graphs", "winners").values()]
    total = _counted(captured, "gqa_paged_decode")
    calls = total["calls"] + sum(_unsupported(record, "Decode") for record in captured)
    text = f"{total['hits']} of {calls}; {total['without key']} without key"
    yield _share("graphs, winners: captured calls of gqa_paged_decode that are routed", total["hits"], calls, text)


def _counted(records: Iterable[Mapping[str, Any]], beginning: str) -> Counter[str]:
    """Sums over records for the definitions with a beginning."""
    total: Counter[str] = Counter()
    for record in records:
        hits = sum(count for name, count in record["hits"].items() if name.startswith(beginning))
        misses = {name: count for name, count in record["misses"].items() if name.startswith(beginning)}
        total["hits"] += hits
        total["calls"] += hits + sum(misses.values())
        total["decided"] += decided(record, beginning)
        total["original"] += sum(n for name, n in misses.items() if name.endswith(f": {BEST_IS_ORIGINAL}"))
        total["without key"] += sum(n for name, n in misses.items() if name.endswith(f": {_NO_KEY}"))
    return total


def _unsupported(record: Mapping[str, Any], part: str) -> int:
    return sum(count for name, count in record["unsupported"].items() if part in name)


def _share(number: str, count: int, calls: int, text: str) -> Line:
    limit = f"{_LEAST_SHARE:.0%}"
    if not calls:
        return Line(number, "no calls", limit, NOT_RUN)
    share = count / calls
    return Line(number, f"{share:.1%} ({text})", limit, MET if share >= _LEAST_SHARE else NOT_MET)


def _ratios(records: Records, mode: str, arm: str, name: str, what: str, limit: float) -> Iterator[Line]:
    """Ratios to the values of plain, and to those of the same processes without FIB where these were timed."""
    plain = list(pairs_of(records, mode, arm, what).values())
    yield _ratio(f"{mode}, {name} against plain", plain, what, limit)
    if own := own_pairs_of(records, mode, arm, what):
        yield _ratio(f"{mode}, {name} against the same process without FIB", own, what, limit)


def _ratio(number: str, found: Sequence[tuple[Sequence[float], Sequence[float]]], what: str, limit: float) -> Line:
    """The speed must reach a limit, the time to the first token must not exceed it."""
    is_speed = what == SPEED
    number, bound = f"{number}: {_WHAT[what]}", f"{'at least' if is_speed else 'at most'} {limit:g}"
    if not found:
        return Line(number, "", bound, NOT_RUN)
    mean, low, high = ratio(found)
    is_met, is_missed = (low >= limit, high < limit) if is_speed else (high <= limit, low > limit)
    result = MET if is_met else NOT_MET if is_missed else OPEN
    return Line(number, f"{mean:.4f} ({low:.4f} to {high:.4f})", bound, result)


def _start(out: Path, records: Records) -> Line:
    """Start-up of routing, as `arm_start.py` has measured it."""
    path, limit = out / "start.json", "2 s"
    number = "start-up time added with a warm cache, table of 200 definitions"
    if path.exists():
        found = json.loads(path.read_text())
        several = ", ".join(f"{seconds:.2f}" for seconds in sorted(found["all"]))
        value = (
            f"{found['seconds']:.2f} s (of {several}), table of {found['definitions']} definitions; {found['ready']}"
        )
        return Line(number, value, limit, MET if found["seconds"] <= 2 and found["definitions"] >= 200 else NOT_MET)
    record = records.get((0, "eager", "routed"))
    value = "" if record is None else f"the arm's table alone: {record['switch_on_seconds']:.2f} s"
    return Line(number, value, limit, NOT_RUN)


def _tokens(records: Records, mode: str) -> Line:
    number = f"{mode}, overhead arm against plain: generated tokens"
    ours, plain = of_arm(records, mode, "routed"), of_arm(records, mode, "plain")
    both = [(ours[n]["tokens"], plain[n]["tokens"]) for n in ours if n in plain]
    if not both:
        return Line(number, "", "identical", NOT_RUN)
    same = sum(mine == theirs for mine, theirs in both)
    return Line(number, f"the same in {same} of {len(both)} rounds", "identical", MET if same == len(both) else NOT_MET)


def _rounds(records: Records, mode: str) -> Line:
    arms = {a for _, m, a in records if m == mode}
    whole = [n for n in {n for n, m, _ in records if m == mode} if all((n, mode, arm) in records for arm in arms)]
    machines = {record["machine"] for record in records.values()}
    value = f"{len(whole)} rounds of {', '.join(sorted(arms)) or 'no arm'} on {len(machines)} machine"
    is_met = len(whole) >= LEAST_ROUNDS and len(machines) == 1
    return Line(f"{mode}, complete rounds of one machine", value, f"{LEAST_ROUNDS}", MET if is_met else NOT_MET)


def _setting(out: Path, name: str) -> Line:
    """Calls with another setting of the engine: routed, or counted as fallbacks with a reason."""
    number, limit = f"eager, overhead arm, {name}: calls that are decided or have a reason", "all"
    path = out / "settings" / f"{name}.json"
    if not path.exists():
        failed = path.with_suffix(".failed")
        return Line(number, failed.read_text().strip().replace("\n", "; ") if failed.exists() else "", limit, NOT_RUN)
    record: Record = json.loads(path.read_text())
    reasons: Counter[str] = Counter()
    for miss, count in (*record["misses"].items(), *record["unsupported"].items()):
        reasons[miss.partition(": ")[2]] += count
    reasons.pop(BEST_IS_ORIGINAL, None)
    count = decided(record)
    value = f"{count} decided; {', '.join(f'{n} {reason}' for reason, n in reasons.most_common()) or 'no others'}"
    return Line(number, value, limit, MET if count or reasons else NOT_MET)


def _other(path: Path, number: str) -> Line:
    if not path.exists():
        return Line(number, "", "no problems", NOT_RUN)
    record = json.loads(path.read_text())
    value = record["value"] if not record["problems"] else "; ".join(record["problems"])
    return Line(number, value, "no problems", NOT_MET if record["problems"] else MET)
