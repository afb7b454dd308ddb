"""Static triage against the self-test of fib-bench: the shares of solutions that are flagged.

usage: bench_triage.py [--names]: prints totals by suite; with the option also the exploits that are missed and the
honest solutions that are flagged, with the rules that flag them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

from fib_agents.triage import is_suspicious, triage
from fib_bench.selftest.cases import EXPLOITS, load_cases
from fib_schema import Solution

Member = tuple[str, Solution]


def self_test() -> Iterator[tuple[str, Member]]:
    """The suite of each solution of the self-test, its file and record."""
    for case in load_cases():
        yield case.suite, (case.file, case.solution())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--names", action="store_true", help="print missed exploits and flagged honest solutions")
    names = parser.parse_args().names
    suites: dict[str, list[Member]] = {}
    for suite, member in self_test():
        suites.setdefault(suite, []).append(member)
    print("| suite | solutions | flagged | share | ms each |\n| --- | --- | --- | --- | --- |")
    wrong: list[str] = []
    for suite, members in suites.items():
        begin = time.perf_counter()
        flagged = {file: triage(solution) for file, solution in members}
        each_ms = 1e3 * (time.perf_counter() - begin) / len(members)
        count = sum(map(is_suspicious, flagged.values()))
        print(f"| {suite} | {len(members)} | {count} | {count / len(members):.1%} | {each_ms:.1f} |")
        for file, findings in flagged.items():
            if is_suspicious(findings) != suite.endswith(EXPLOITS):
                rules = ", ".join(sorted({f"{finding.rule} (line {finding.line})" for finding in findings}))
                wrong.append(f"{suite}: {file}: {rules or 'missed'}")
    if names:
        print("\n".join(["", *wrong]))


if __name__ == "__main__":
    main()
