"""Tables of what `arm_turns.py` measured, with 95 % intervals, and the problems that make a run prove nothing."""

import json
import math
import statistics
import sys
from collections import Counter

from arm_turns import decided, is_same_model, place, planned

LEAST_ROUNDS = 5
SPEED, FIRST = "tokens_per_second", "first_token_ms"
"""Names of what is timed in records."""
_T_975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045,
)  # fmt: skip
"""Quantiles of Student's t distribution for 95 % intervals, from one degree of freedom on."""


def interval(values):
    """The mean, and its 95 % interval; infinite for a single value."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, -math.inf, math.inf
    quantile = _T_975[min(len(values) - 1, len(_T_975)) - 1]
    half = quantile * statistics.stdev(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def ratio(rounds):
    """The ratio of an arm's values to plain's, with a 95 % interval.

    Within a round the values of a turn are compared, and the median ratio counts. It is the only value of the round, as
    turns of the same two processes say nothing about other processes.

    Args:
        rounds: The values of an arm and of plain in each round, by turn.
    """
    logarithms = [
        statistics.median(math.log(ours / theirs) for ours, theirs in zip(*pair, strict=True)) for pair in rounds
    ]
    mean, low, high = interval(logarithms)
    return math.exp(mean), math.exp(low), math.exp(high)


def of_arm(records, mode, arm):
    return {n: record for (n, m, a), record in records.items() if (m, a) == (mode, arm)}


def pairs_of(records, mode, arm, name):
    """The values of an arm and of plain in each round that has both."""
    plain = of_arm(records, mode, "plain")
    return {n: (record[name], plain[n][name]) for n, record in of_arm(records, mode, arm).items() if n in plain}


_MOST_KERNELS = 12
"""Kernels in a table of device times."""
_OTHER_KERNELS = ("winners", "slow")
"""Arms whose kernels may round otherwise; the decode of `slow` has a plan of its own."""


def records_of(out, options):
    wanted = [key for group in planned(options.rounds, options.arms, options.modes) for key in group]
    return {key: json.loads(path.read_text()) for key in wanted if (path := place(out, key)).exists()}


def problems_of(records, options):
    """Reasons why the records prove nothing, or a claim that does not hold."""
    found = []
    machines = {record["machine"] for record in records.values()}
    if len(machines) > 1:
        found.append(f"the rounds are of {len(machines)} machines: {', '.join(sorted(machines))}")
    firsts = {mode: record for (_, mode, _), record in reversed(records.items())}
    pairs = [(record, first, mode == m) for (_, mode, _), record in records.items() for m, first in firsts.items()]
    if not all(is_same_model(record, first, is_same_mode=is_same) for record, first, is_same in pairs):
        found.append("the rounds have several models or versions")
    for mode in options.modes:
        whole = [n for n in range(options.rounds) if all((n, mode, arm) in records for arm in options.arms)]
        if len(whole) < LEAST_ROUNDS:
            found.append(f"{mode}: {len(whole)} complete rounds, fewer than {LEAST_ROUNDS}")
        for arm in options.arms:
            mine = {record["tokens"] for record in of_arm(records, mode, arm).values()}
            plain = {record["tokens"] for record in of_arm(records, mode, "plain").values()}
            if arm not in _OTHER_KERNELS and mine and plain and mine != plain:
                found.append(f"{mode}, {arm}: other tokens than plain")
        found += _problems_of_routing(records, mode)
    return found


def _problems_of_routing(records, mode):
    """Runs without hits, and rankings that do not carry over.

    With CUDA graphs, calls of decode are counted while these are captured, and only winners may be captured: the
    kernels of the other arms plan on the host.
    """
    if mode == "graphs":
        for record in of_arm(records, mode, "winners").values():
            if not any(count for name, count in record["captured"]["hits"].items() if "decode" in name):
                yield f"{mode}, winners: no captured decode of a run is a hit"
                break
        return
    for arm in ("routed", "slow"):
        if not all(decided(record) for record in of_arm(records, mode, arm).values()):
            yield f"{mode}, {arm}: a run has no hits, and no recorded key whose best is the original"
    pairs = {arm: list(pairs_of(records, mode, arm, "tokens_per_second").values()) for arm in ("winners", "slow")}
    if pairs["winners"] and ratio(pairs["winners"])[2] < 1:
        yield f"{mode}, winners: slower than plain"
    if pairs["slow"] and ratio(pairs["slow"])[2] >= 1:
        yield f"{mode}, slow: not slower than plain, although its solutions are"


def report(out, options):
    records = records_of(out, options)
    if not records:
        print("no records", file=sys.stderr)
        return 1
    shapes = {mode: record["shape"] for (_, mode, _), record in records.items()}
    first = next(iter(records.values()))
    text = "; ".join(f"{mode}: {json.dumps(shape)}" for mode, shape in shapes.items())
    print(f"{first['machine']}; {text}; {len(first['tokens_per_second'])} turns in each round\n")
    print("| mode | arm | rounds | tokens/s (95 %) | against plain | first token, ms | against plain | start, s |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for mode in options.modes:
        for arm in options.arms:
            if of_arm(records, mode, arm):
                print(_row(records, mode, arm))
    for mode in options.modes:
        for arm in options.arms:
            mine = list(of_arm(records, mode, arm).values())
            if any(record["hits"] or record["misses"] for record in (*mine, *(r["at_start"] for r in mine))):
                _print_counts(f"{mode}, {arm}", mine)
                _print_counts(f"{mode}, {arm}, at the start", [record["at_start"] for record in mine])
                if mode == "graphs":
                    _print_counts(f"{mode}, {arm}, captured", [record["captured"] for record in mine])
        of_first = {arm: records[0, mode, arm] for arm in options.arms if (0, mode, arm) in records}
        print_device_times({arm: record["device_ms"] for arm, record in of_first.items()}, mode)
    for path in sorted((out / "settings").glob("*.json")):
        _print_counts(f"eager, routed, {path.stem}", [json.loads(path.read_text())])
    problems = problems_of(records, options)
    for name in ("two-ranks/trace", "two-ranks/route-routed", "two-ranks/route-winners", "tutorial/followed"):
        if (path := out / f"{name}.json").exists():
            found = json.loads(path.read_text())
            print(f"\n{name}: {found['value']}")
            problems += [f"{name}: {problem}" for problem in found["problems"]]
    print("\nproblems: " + ("none" if not problems else ""))
    for problem in problems:
        print(f"- {problem}")
        print(f"problem: {problem}", file=sys.stderr)
    return int(bool(problems))


def _row(records, mode, arm):
    mine = of_arm(records, mode, arm)
    cells = [mode, arm, str(len(mine))]
    for name, digits in (("tokens_per_second", 0), ("first_token_ms", 2)):
        mean, low, high = interval([statistics.median(record[name]) for record in mine.values()])
        cells.append(f"{mean:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})")
        pairs = {} if arm == "plain" else pairs_of(records, mode, arm, name)
        cells.append("{:.4f} ({:.4f} to {:.4f})".format(*ratio(pairs.values())) if pairs else "")
    cells.append(f"{mine[0]['start_seconds']:.1f}" if 0 in mine else "")  # of the others, several start together
    return f"| {' | '.join(cells)} |"


def _print_counts(title, records):
    """Print the sums of what was counted; at the start of the engine, that includes the capture of graphs."""
    for kind in ("hits", "misses", "unsupported"):
        total = Counter()
        for record in records:
            total.update(record[kind])
        print(f"\n{title}, {kind}: {sum(total.values())}")
        for name, count in total.most_common():
            print(f"- {name}: {count}")


def print_device_times(arms, mode):
    """Print the time of the longest kernels in each arm, of one generation in the first round."""
    longest = Counter()
    for times in arms.values():
        longest |= Counter(times)
    print(f"\n| device time in ms, {mode} | {' | '.join(arms)} |\n| --- |{' --- |' * len(arms)}")
    for name, _ in longest.most_common(_MOST_KERNELS):
        print(f"| `{name[:80]}` | {' | '.join(f'{times.get(name, 0.0):.2f}' for times in arms.values())} |")
    print(f"| all | {' | '.join(f'{sum(times.values()):.2f}' for times in arms.values())} |")
