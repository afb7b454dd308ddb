import re
import tomllib

import pytest
from devtools.repository import ROOT
from devtools.size import BUDGET, check

LIMITS = """
[source]
fib-low = 2
fib-other = 9
fib-top = 9
[parts."half of low"]
folders = ["packages/fib-low/src/fib_low/half"]
lines = 1
[repository]
"files of source" = 9
"words of Markdown" = {words}
"""


@pytest.fixture
def sized(repository):
    repository.write("tools/size_budget.toml", LIMITS.format(words=99))
    for path in repository.root.glob("packages/fib-low/src/**/*.py"):
        path.unlink()
    repository.write("packages/fib-low/src/fib_low/half/one.py", "x = 1\n")
    repository.write("packages/fib-low/src/fib_low/two.py", "y = 2\n")
    return repository


def test_sizes_within_the_budget_are_no_problem(sized):
    table, problems = check(sized.root)
    assert problems == []
    assert [line.split() for line in table.splitlines() if line.startswith("half of low")] == [
        ["half", "of", "low:", "lines", "1", "1"]
    ]


def test_each_size_over_its_limit_is_named_with_the_remedy(sized):
    sized.write("packages/fib-low/src/fib_low/half/one.py", "x = 1\n\n")
    _, problems = check(sized.root)
    assert problems == [
        "fib-low: lines: 3 is over the limit of 2",
        "half of low: lines: 2 is over the limit of 1",
        "remove something, or raise the limit in tools/size_budget.toml and say why in the commit",
    ]


def test_sources_of_solutions_and_ignored_files_do_not_count(sized):
    sized.write(".gitignore", "/ignored/\n*.tmp.py\n")
    sized.write("packages/fib-low/src/fib_bench/demo/gemm/tiles.py", "x\n" * 50)
    sized.write("packages/fib-low/src/fib_low/a.tmp.py", "x\n" * 50)
    assert check(sized.root)[1] == []


def test_words_of_all_markdown_files_count(sized):
    sized.write("tools/size_budget.toml", LIMITS.format(words=3))
    sized.write("notes.md", "one two three four")
    assert "words of Markdown: " in check(sized.root)[1][0]


def test_a_package_without_a_limit_is_a_problem(sized):
    sized.write_package("fib-new", version="0.1.0")
    assert check(sized.root)[1] == ["tools/size_budget.toml has no limit for fib-new"]


def test_the_architecture_page_shows_the_limits():
    rows = re.findall(r"^\| `(fib-\w+)` \| ([\d,]+) \|", (ROOT / "ARCHITECTURE.md").read_text(), re.MULTILINE)
    shown = {name: int(limit.replace(",", "")) for name, limit in rows}
    assert shown == tomllib.loads((ROOT / BUDGET).read_text())["source"]
