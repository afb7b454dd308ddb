"""Times the store against a pydantic model of the same shape and against the floor.

    python packages/fib-schema/benchmarks/bench_schema.py [--keep DIR]

Each figure is measured in a process of its own, the sides alternating, and the median of several
runs is shown. The peer column needs pydantic in the environment; without it, it is left out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from data_set import write_data_set

HERE = Path(__file__).parent
DEFINITION = "op_000_n128"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, help="write the data set here, or use the one that is here")
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fib-bench-schema-") as folder:
        root = arguments.keep or Path(folder)
        if not (root / "traces").exists():
            print(f"writing 200 definitions, 2,000 solutions and 200,000 traces to {root} ...", flush=True)
            write_data_set(root)
        show(measure(root, arguments.runs))


def measure(root: Path, runs: int) -> dict[str, list[dict[str, float]]]:
    """All figures of all parts: runs of every part in turn, so that drift hits all alike."""
    results: dict[str, list[dict[str, float]]] = {}
    for run in range(runs):
        for part in PARTS:
            done = subprocess.run(
                [sys.executable, str(HERE / "parts.py"), part, str(root)], capture_output=True, text=True, check=False
            )
            if done.returncode:
                if run == 0:
                    print(f"({part} left out: {done.stderr.strip().splitlines()[-1]})")
                continue
            results.setdefault(part, []).append(json.loads(done.stdout))
    return results


PARTS = ("bare", "import", "import_store", "open", "floor", "parse", "peer_parse", "rank", "append")


def show(results: dict[str, list[dict[str, float]]]) -> None:
    def median(part: str, key: str) -> float:
        values = [run[key] for run in results.get(part, [])]
        return statistics.median(values) if values else float("nan")

    rows: list[tuple[str, float, str, float, str]] = [
        ("import fib_schema, over a bare interpreter (ms)",
         (median("import", "seconds") - median("bare", "seconds")) * 1e3, "60", float("nan"), ""),
        ("from fib_schema import TraceSet, over a bare interpreter (ms)",
         (median("import_store", "seconds") - median("bare", "seconds")) * 1e3, "", float("nan"), ""),
        ("open the set, best trace of one definition (s)", median("open", "seconds"), "0.15", float("nan"), ""),
        ("parse all, every field (s)", median("parse", "seconds"), "3", median("peer_parse", "seconds"), "pydantic"),
        ("  the same, memory (MiB)", median("parse", "mib"), "600", median("peer_parse", "mib"), "pydantic"),
        ("  its floor: read and decode untyped (s)", median("floor", "seconds"), "", float("nan"), ""),
        ("rank_authors, whole loaded set (s)", median("rank", "seconds"), "0.25", float("nan"), ""),
        ("append one trace, beyond its fdatasync (us)", median("append", "beyond_micros"), "50", float("nan"), ""),
        ("  the fdatasync itself (us)", median("append", "sync_micros"), "", float("nan"), ""),
    ]  # fmt: skip
    print(f"{'figure':58} {'ours':>9} {'at most':>8} {'peer':>9}")
    for name, ours, limit, peer, which in rows:
        other = "" if peer != peer else f"{peer:9.3g} ({which}, {peer / ours:.1f}x ours)"
        print(f"{name:58} {ours:9.3g} {limit:>8} {other}")


if __name__ == "__main__":
    main()
