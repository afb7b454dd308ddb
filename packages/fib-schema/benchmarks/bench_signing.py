"""Times signing and verifying of 200 definitions, 2,000 solutions and 200,000 traces, or of another data set.

    python packages/fib-schema/benchmarks/bench_signing.py [--keep DIR]

Medians; the files are in the page cache.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from fib_schema.signing import PrivateKey, SignedFiles, sign, verify

sys.path.insert(0, str(Path(__file__).parent))

from data_set import write_data_set


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, help="measure a copy of this data set")
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fib-bench-signing-") as folder:
        root = Path(folder) / "set"
        if arguments.keep:
            shutil.copytree(arguments.keep, root, copy_function=shutil.copy)
        else:
            write_data_set(root)
        measure(root, PrivateKey.generate(Path(folder) / "key"), arguments.runs)


def measure(root: Path, key: PrivateKey, runs: int) -> None:
    """Print the median time of each step."""
    manifest = sign(root, key).manifest
    size = sum(file.size for file in manifest.files)
    print(f"{len(manifest.files)} files, {size / 1e6:.1f} MB, manifest {len(manifest.to_bytes()) / 1e6:.2f} MB")
    steps: dict[str, Callable[[], object]] = {
        "sign, with the comparison": lambda: sign(root, key),
        "verify all files": lambda: verify(root, [key.public]),
        "verify the manifest alone": lambda: SignedFiles.open(root, [key.public]),
    }
    for name, step in steps.items():
        print(f"{name:28} {statistics.median(_seconds(step) for _ in range(runs)):8.3f} s")


def _seconds(step: Callable[[], object]) -> float:
    begin = time.perf_counter()
    step()
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
