"""Rule for the subjects of commits: imperative, at most 72 characters."""

import re
from pathlib import Path

from .repository import git

LAST_BEFORE_RULE = "8821bdb232a4ae250a4a9d24e28871ba0018af19"
LIMIT = 72
# Words that only look like another form than the imperative.
_IMPERATIVES = {"bring", "embed", "exceed", "feed", "focus", "need", "proceed", "seed", "shed", "speed", "string"}


def subject_problem(subject: str) -> str | None:
    """What is wrong with a subject, or None."""
    first = subject.partition(" ")[0]
    word = first.lower()
    if len(subject) > LIMIT:
        return f"{len(subject)} characters; the limit is {LIMIT}"
    if not re.fullmatch(r"[A-Z][a-z-]+", first):
        return f"begins with {first!r}; begin with a capitalized verb in the imperative"
    if word not in _IMPERATIVES and re.search(r"(ed|ing|[^s]s)$", word):
        return f"begins with {first!r}; use the imperative (Add, not Added, Adds or Adding)"
    return "ends with a period" if subject.endswith(".") else None


def commit_problems(root: Path) -> list[str]:
    """The commits since the rule whose subjects break it; only the last commit if the history is cut off before it."""
    known = git(root, "merge-base", "--is-ancestor", LAST_BEFORE_RULE, "HEAD") is not None
    revisions = f"{LAST_BEFORE_RULE}..HEAD" if known else "HEAD~1..HEAD"
    lines = (git(root, "log", "--no-merges", "--format=%h %s", revisions) or "").splitlines()
    return [f"{line}: {problem}" for line in lines if (problem := subject_problem(line.partition(" ")[2]))]
