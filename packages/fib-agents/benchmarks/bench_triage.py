"""Static triage against the self-test of fib-bench and a blind trial: the shares of solutions that are flagged.

The solutions of the blind trials, in the folder `blind`, were written without reading the rules, those of the second
trial after the first one had changed the rules.

usage: bench_triage.py [--names]: prints totals by suite; with the option also the exploits that are missed and the
honest solutions that are flagged, with the rules that flag them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

from fib_agents.triage import is_suspicious, triage
from fib_bench.authoring.definitions import definition_from_reference
from fib_bench.authoring.inference import infer_kernel
from fib_bench.selftest.cases import EXPLOITS, load_cases
from fib_bench.selftest.definitions import OPS
from fib_schema import Definition, Solution

BLIND = Path(__file__).with_name("blind")
Member = tuple[str, Solution, Definition | None]


def self_test() -> Iterator[tuple[str, Member]]:
    """The suite of each solution of the self-test, its file, record and definition."""
    known = {name: op.definition(name) for name, op in OPS.items()}
    for case in load_cases():
        yield case.suite, (case.file, case.solution(), known.get(case.definition))


def blind_trial() -> Iterator[tuple[str, Member]]:
    """Likewise, of the blind trial; the part of a file's name before the first ``_`` names the definition."""
    known = {path.stem: definition_from_reference(path.stem, path) for path in BLIND.glob("definitions/*.py")}
    for suite in (EXPLOITS, "honest", "honest_second"):
        for path in sorted((BLIND / suite).iterdir()):
            definition = known[path.stem.partition("_")[0]]
            kernel = infer_kernel(path, definition)
            yield (
                f"blind {suite}",
                (path.name, Solution(path.stem, definition.name, "blind", kernel.spec, kernel.sources), definition),
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--names", action="store_true", help="print missed exploits and flagged honest solutions")
    names = parser.parse_args().names
    suites: dict[str, list[Member]] = {}
    for suite, member in (*self_test(), *blind_trial()):
        suites.setdefault(suite, []).append(member)
    print("| suite | solutions | flagged | share | ms each |\n| --- | --- | --- | --- | --- |")
    wrong: list[str] = []
    for suite, members in suites.items():
        begin = time.perf_counter()
        flagged = {file: triage(solution, definition) for file, solution, definition in members}
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
