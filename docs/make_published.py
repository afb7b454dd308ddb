"""The page and the pictures of a published run, made from the archive that `published_run.py` writes.

    python docs/make_published.py data-set.tar.xz

The page goes to `published/`, from where the site takes it; the pictures are those of the README, as `make_pictures.py`
takes them. `--no-pictures` makes the page only.
"""

from __future__ import annotations

import argparse
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from fib_bench.cli.main import main as fib_bench
from fib_bench.report import summarise
from fib_schema import TraceSet

FOLDER = Path(__file__).parent / "published"
MAX_BYTES = 5_000_000
"""Of the page, which is part of the repository."""
SHOWN = ("rmsnorm", "gemm", "gqa_paged", "mla_paged")
"""Op_types of which the picture of the leaderboard shows a definition."""


def main(words: Sequence[str]) -> int:
    """Make the page and the pictures."""
    parser = argparse.ArgumentParser(prog="make_published.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("archive", metavar="ARCHIVE", type=Path, help="the file data-set.tar.xz of a published run")
    parser.add_argument("--output", metavar="FOLDER", type=Path, default=FOLDER, help="where to (default: published/)")
    parser.add_argument("--no-pictures", action="store_true", help="leave the pictures of the README as they are")
    options = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(options.archive) as archive:
            archive.extractall(folder, filter="data")
        (data_set,) = Path(folder).iterdir()
        page = options.output / f"{data_set.name.removeprefix('fib-')}.html"
        options.output.mkdir(exist_ok=True)
        note = (data_set / "NOTE.txt").read_text("utf-8").strip()
        fib_bench(["report", "html", str(data_set), "--note", note, "--output", str(page)])
        if (size := page.stat().st_size) >= MAX_BYTES:
            print(f"{page} has {size} bytes; the limit is {MAX_BYTES}: run fewer definitions", file=sys.stderr)
            return 1
        if options.no_pictures:
            return 0
        from make_pictures import take_pictures

        return take_pictures(data_set, page, list(shown_definitions(data_set)))


def shown_definitions(data_set: Path) -> Iterator[str]:
    """Of each op_type in `SHOWN` the definition with the most passing solutions."""
    trace_set, passed = TraceSet.from_path(data_set), dict[str, int]()
    for row in summarise(trace_set).leaderboard:
        passed[row.definition] = passed.get(row.definition, 0) + (not row.problem)
    for op_type in SHOWN:
        names = [name for name in passed if trace_set.definitions[name].op_type == op_type]
        if names:
            yield max(names, key=lambda name: passed[name])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
