"""Static triage against the self-test of fib-bench: the share of exploits that are flagged, and of honest solutions.

usage: bench_triage.py [--names]: prints totals by suite; with the option also the exploits that are missed and the
honest solutions that are flagged, with the rules that flag them.
"""

from __future__ import annotations

import argparse
import time

from fib_agents.triage import is_suspicious, triage
from fib_bench.selftest.cases import EXPLOITS, Case, load_cases
from fib_bench.selftest.definitions import OPS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--names", action="store_true", help="print missed exploits and flagged honest solutions")
    names = parser.parse_args().names
    known = {name: op.definition(name) for name, op in OPS.items()}
    cases: dict[str, list[Case]] = {}
    for case in load_cases():
        cases.setdefault(case.suite, []).append(case)
    print("| suite | solutions | flagged | share | ms each |\n| --- | --- | --- | --- | --- |")
    wrong: list[str] = []
    for suite, members in cases.items():
        begin = time.perf_counter()
        flagged = {case.file: triage(case.solution(), known.get(case.definition)) for case in members}
        each_ms = 1e3 * (time.perf_counter() - begin) / len(members)
        count = sum(map(is_suspicious, flagged.values()))
        print(f"| {suite} | {len(members)} | {count} | {count / len(members):.1%} | {each_ms:.1f} |")
        for file, findings in flagged.items():
            if is_suspicious(findings) != (suite == EXPLOITS):
                rules = ", ".join(sorted({f"{finding.rule} (line {finding.line})" for finding in findings}))
                wrong.append(f"{suite}: {file}: {rules or 'missed'}")
    if names:
        print("\n".join(["", *wrong]))


if __name__ == "__main__":
    main()
