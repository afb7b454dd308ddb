"""Pictures of the README: the leaderboard in a terminal, and the page of a report.

    python tools/dev.py pictures [DIR] [--definitions NAME ...]

DIR is a data set with traces, by default `fib-demo/`, which `python tools/dev.py demo` makes; `make_published.py` takes
the pictures of a published run. The SVG export of rich draws the terminal, and an installed headless Chromium takes the
pictures. Nothing is fetched from a network.
"""

from __future__ import annotations

import argparse
import io
import re
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import attrs
from fib_bench.cli.main import main as fib_bench
from fib_bench.cli.output import print_leaderboard
from fib_bench.report import LeaderboardRow, summarise
from fib_schema import TraceSet
from playwright.sync_api import sync_playwright
from rich.console import Console

FOLDER = Path(__file__).parent / "pictures"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
COLUMNS = 128
WIDTH, HEIGHT = 1200, 820
_REMOTE_FONT = re.compile(r"@font-face \{.*?\}", re.DOTALL)


def main(words: Sequence[str]) -> int:
    """Make the pictures."""
    parser = argparse.ArgumentParser(prog="python tools/dev.py pictures", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("dir", metavar="DIR", type=Path, nargs="?", default="fib-demo", help="a data set with traces")
    parser.add_argument("--definitions", metavar="NAME", nargs="+", help="those of the leaderboard; default: all")
    options = parser.parse_args(words)
    if not any(options.dir.glob("traces/**/*.jsonl")):
        return _missing(f"traces in {options.dir}; `python tools/dev.py demo` makes some")
    return take_pictures(options.dir, definitions=options.definitions)


def take_pictures(data_set: Path, page: Path | None = None, definitions: Collection[str] | None = None) -> int:
    """Take both pictures.

    Args:
        data_set: It holds traces.
        page: Its report; it is made if there is none.
        definitions: Those of the leaderboard; None means all.

    Returns:
        An exit code; 2 if no browser is installed.
    """
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if browser is None:
        return _missing(f"a browser, one of {', '.join(BROWSERS)}")
    FOLDER.mkdir(exist_ok=True)
    with sync_playwright() as driver:
        window = driver.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        tab = window.new_page(viewport={"width": WIDTH, "height": HEIGHT}, device_scale_factor=1.5)
        _leaderboard(tab, data_set, definitions)
        _report(tab, data_set, page)
        window.close()
    return 0


def _missing(what: str) -> int:
    print(f"there is not what pictures are made of: {what}", file=sys.stderr)
    return 2


def _leaderboard(tab: Any, data_set: Path, definitions: Collection[str] | None) -> None:
    """The output of `fib-bench report summary`."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    rows = summarise(TraceSet.from_path(data_set)).leaderboard
    rows = tuple(row for row in rows if definitions is None or row.definition in definitions)
    print_leaderboard(console, map(_shortened, rows))  # does not wrap lines: terminals do
    svg = _REMOTE_FONT.sub("", console.export_svg(title=f"fib-bench report summary {data_set.name}"))
    tab.set_content(f"<body style='margin:0'>{svg}</body>")
    tab.locator("svg").first.screenshot(path=str(FOLDER / "leaderboard.png"))


def _shortened(row: LeaderboardRow) -> LeaderboardRow:
    """The row with failures that fit a line."""
    failures = (attrs.evolve(failure, text=textwrap.shorten(failure.text, COLUMNS)) for failure in row.failures)
    return attrs.evolve(row, failures=tuple(failures))


def _report(tab: Any, data_set: Path, page: Path | None) -> None:
    """The beginning of the page of `fib-bench report html`."""
    with tempfile.TemporaryDirectory() as folder:
        if page is None:
            page = Path(folder, "report.html")
            fib_bench(["report", "html", str(data_set), "--output", str(page)])
        tab.goto(page.resolve().as_uri())
        tab.screenshot(path=str(FOLDER / "report.png"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
