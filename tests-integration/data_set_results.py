"""Results of reading good and bad data sets, to compare two versions of the packages.

    OLD/bin/python tests-integration/data_set_results.py --sets DIR ... > old.jsonl
    NEW/bin/python tests-integration/data_set_results.py --sets DIR ... > new.jsonl
    python tests-integration/data_set_results.py --compare old.jsonl new.jsonl

Each set, and each kind of damage of `support/bad_sets` to a small healthy set, gives one line: what `validate` reports,
what a `TraceSet` finds, and a hash of all records. ``--compare`` lists the sets that differ, and how.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "support"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="*", type=Path, default=[], metavar="DIR", help="data sets to read as well")
    parser.add_argument("--compare", nargs=2, type=Path, metavar="FILE", help="compare two outputs instead")
    arguments = parser.parse_args()
    if arguments.compare:
        return compare(*(dict(map(json.loads, path.read_text().splitlines())) for path in arguments.compare))
    warnings.simplefilter("ignore")
    for path in arguments.sets:
        show(str(path), path)
    from bad_sets.healthy import write_healthy
    from bad_sets.kinds_files import FILES
    from bad_sets.kinds_lines import LINES
    from bad_sets.kinds_sets import BLOBS, SETS
    from bad_sets.kinds_values import VALUES

    folder = tempfile.mkdtemp(prefix="data-sets-")
    try:
        for number, kind in enumerate((*VALUES, *LINES, *FILES, *BLOBS, *SETS)):
            if kind.is_unprivileged or "1,000" in kind.name or "deep" in kind.name:
                continue
            place = Path(folder, str(number))
            write_healthy(place / "set")
            write_healthy(place / "other")
            try:
                kind.damage(place / "set")
            except (OSError, RecursionError):
                continue
            root = place / kind.path
            show(kind.name, root)
    finally:
        subprocess.run(["rm", "-rf", folder], check=True)  # folders may nest deeper than Python's stack
    return 0


def show(name, root):
    try:
        found = results(root)
    except Exception as error:  # noqa: BLE001 a difference like any other
        found = {"error": f"{type(error).__name__}: {error}".replace(str(root.parent), "FOLDER")[:300]}
    print(json.dumps([name, found], sort_keys=True), flush=True)


def results(root):
    """The results of the packages for a set; paths are relative."""
    from fib_schema import TraceSet, validate

    report = validate(root)
    opened = TraceSet.from_path(root)
    plain = json.dumps(without_defaults(opened.to_dict()), sort_keys=True, default=str)
    traces = {name: opened.get_best_trace(name) for name in opened.definitions}
    best = {name: trace and f"{trace.solution} on {trace.workload.uuid}" for name, trace in traces.items()}
    return {
        "counts": dict(report.counts),
        "validate": kinds_of(root, (*report.problems, *report.warnings)),
        "opened": kinds_of(root, opened.all_problems()),
        "records": {
            kind: sum(map(len, getattr(opened, kind).values())) for kind in ("workloads", "traces", "solutions")
        },
        "best": best,
        "hash": hashlib.sha256(plain.encode("utf-8", "surrogatepass")).hexdigest(),
    }


def without_defaults(plain):
    """Plain objects without what may be left out: null, empty lists and objects."""
    if isinstance(plain, dict):
        kept = {key: without_defaults(value) for key, value in plain.items()}
        return {key: value for key, value in kept.items() if value not in (None, [], {}, "")}
    return [without_defaults(item) for item in plain] if isinstance(plain, list | tuple) else plain


def kinds_of(root, problems):
    """The problems by severity, code and place."""
    found = Counter(
        f"{p.severity} {p.code} {p.source}".replace(f"{root}/", "").replace(str(root), "") for p in problems
    )
    return dict(found)


def compare(old, new):
    """Print the sets whose results differ; returns 1 if any does."""
    differing = [name for name in old if old[name] != new.get(name)]
    for name in differing:
        print(name)
        for key in sorted({*old[name], *new.get(name, {})}):
            before, after = old[name].get(key), new.get(name, {}).get(key)
            if before != after:
                print(f"    {key}: {json.dumps(before)[:200]}\n    {' ' * len(key)}->{json.dumps(after)[:200]}")
    print(f"{len(old)} sets, {len(differing)} differ")
    return int(bool(differing))


if __name__ == "__main__":
    sys.exit(main())
