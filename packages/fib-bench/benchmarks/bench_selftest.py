"""Runs the self-test several times, and prints every outcome that is not as it must be, in Markdown.

Run it with ``python packages/fib-bench/benchmarks/bench_selftest.py [--device cuda:0]``; a round takes
one to three minutes, and the first one compiles.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import Counter

from fib_bench.cli.selftest import summary_of
from fib_bench.selftest import choose, load_cases, run_selftest


def main() -> int:
    """Run the suites; returns 0 if all outcomes of all repetitions are as expected."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--only", nargs="+")
    arguments = parser.parse_args()
    cases = load_cases() if arguments.only is None else choose(load_cases(), arguments.only)
    seconds, verdicts = [], Counter[tuple[str, str, str, bool]]()
    for index in range(arguments.repetitions):
        begin = time.perf_counter()
        result = run_selftest(cases, arguments.device)
        seconds.append(time.perf_counter() - begin)
        verdicts.update((o.case.file, o.found, o.evidence[:200], o.holds) for o in result.outcomes)
        print(f"round {index + 1}: {seconds[-1]:.0f} s: {summary_of(result)}", flush=True)
    bad = [(key, count) for key, count in verdicts.items() if not key[3]]
    print(
        f"\n{arguments.repetitions} repetitions, {statistics.median(seconds):.0f} s each, {len(bad)} wrong outcomes\n"
    )
    for (name, found, evidence, _), count in bad:
        print(f"| {name} | {found} | {count} times | {evidence} |")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
