"""Tests of published reports: their size, their links, and the script that makes them."""

import json
import re
import sys
import tarfile
from pathlib import Path

import pytest
from fib_bench.demo import write_demo

DOCS = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(DOCS))

from make_published import MAX_BYTES, main, shown_definitions  # noqa: E402
from repository_links import rewritten  # noqa: E402


def published():
    return sorted(DOCS.glob("published/*"))


def test_published_reports_are_small_pages_that_say_where_their_inputs_come_from():
    for page in published():
        assert page.suffix == ".html", page
        assert page.stat().st_size < MAX_BYTES, page
        assert "inputs are synthesized" in page.read_text("utf-8"), page


def test_the_run_on_an_h200_covers_40_definitions():
    page = (DOCS / "published" / "h200.html").read_text("utf-8")
    found = re.search(r'<script type="application/json" id="digest">(.*?)</script>', page, re.DOTALL)
    assert found
    digest = json.loads(found[1])
    assert digest["counts"]["definitions"] >= 40
    assert digest["statuses"]["PASSED"] > 0.95 * digest["counts"]["traces"]
    assert "NVIDIA H200" in page


def test_the_third_line_of_the_readme_links_every_published_report():
    third = (DOCS.parent / "README.md").read_text("utf-8").splitlines()[2]
    assert [page.name for page in published() if f"](docs/published/{page.name})" not in third] == []


def test_a_link_to_a_report_is_relative_to_the_page_that_shows_it(tmp_path):
    reports = tmp_path / "docs" / "published"
    reports.mkdir(parents=True)
    (reports / "h200.html").touch()
    text, file = "a [run](docs/published/h200.html) and [none](docs/published/b200.html)", tmp_path / "README.md"
    kept = "[none](docs/published/b200.html)"
    assert rewritten(text, file, "index", reports) == f'a <a href="published/h200.html">run</a> and {kept}'
    assert rewritten(text, file, "how/to", reports) == f'a <a href="../published/h200.html">run</a> and {kept}'


def test_the_page_is_made_from_the_archive_of_a_run(tmp_path):
    pytest.importorskip("vl_convert", reason="needs the extra 'report'")
    data_set = tmp_path / "fib-cpu"
    write_demo(data_set)
    (data_set / "NOTE.txt").write_text("All inputs are synthesized.\n")
    with tarfile.open(tmp_path / "data-set.tar.xz", "w:xz") as archive:
        archive.add(data_set, data_set.name)
    out = tmp_path / "published"
    assert main([str(tmp_path / "data-set.tar.xz"), "--output", str(out), "--no-pictures"]) == 0
    assert "All inputs are synthesized." in (out / "cpu.html").read_text("utf-8")


def test_the_picture_shows_a_definition_of_each_common_op_type(tmp_path):
    write_demo(tmp_path / "demo")
    assert list(shown_definitions(tmp_path / "demo")) == []  # no traces yet
