"""Docstrings begin with the thing they describe."""

import re

from devtools.repository import ROOT

CLAUSE = re.compile(r'\s*r?"""(What|How|Why|When|Where|Which|Who)\b')


def clauses(text):
    """Lines of docstrings that begin with a clause, as "What a function returns"."""
    return [line.strip() for line in text.splitlines() if CLAUSE.match(line)]


def test_docstrings_begin_with_the_thing_they_describe():
    roots = [*(ROOT / name for name in ("docs", "packages", "tests-integration", "tools")), *ROOT.glob("*.py")]
    paths = [path for root in roots for path in ([root] if root.is_file() else root.rglob("*.py"))]
    found = {f"{path.relative_to(ROOT)}: {line}" for path in paths for line in clauses(path.read_text())}
    assert sorted(found) == []
