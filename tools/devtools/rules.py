"""Rules for the subjects of commits, and rules that a package has to follow to be released."""

import re
from collections.abc import Iterator
from pathlib import Path

from packaging.version import Version

from .repository import Package, git

LAST_COMMIT_BEFORE_RULE = "8821bdb232a4ae250a4a9d24e28871ba0018af19"
MAX_SUBJECT_LENGTH = 72
# Words that only look like another form than the imperative.
_IMPERATIVES = {"bring", "embed", "exceed", "feed", "focus", "need", "proceed", "seed", "shed", "speed", "string"}


def subject_problem(subject: str) -> str | None:
    """Problem of the subject of a commit, or None."""
    first = subject.partition(" ")[0]
    if len(subject) > MAX_SUBJECT_LENGTH:
        return f"{len(subject)} characters; the limit is {MAX_SUBJECT_LENGTH}"
    if not re.fullmatch(r"[A-Z][a-z-]+", first):
        return f"begins with {first!r}; begin with a capitalized verb in the imperative"
    if first.lower() not in _IMPERATIVES and re.search(r"(ed|ing|[^s]s)$", first):
        return f"begins with {first!r}; use the imperative (Add, not Added, Adds or Adding)"
    return "ends with a period" if subject.endswith(".") else None


def commit_problems(root: Path) -> list[str]:
    """The commits that break the rule; in a history that is cut off, only the last commit is checked."""
    known = git(root, "merge-base", "--is-ancestor", LAST_COMMIT_BEFORE_RULE, "HEAD") is not None
    revisions = f"{LAST_COMMIT_BEFORE_RULE}..HEAD" if known else "HEAD~1..HEAD"
    lines = (git(root, "log", "--no-merges", "--format=%h %s", revisions) or "").splitlines()
    return [f"{line}: {problem}" for line in lines if (problem := subject_problem(line.partition(" ")[2]))]


def release_problems(root: Path, package: Package, tag: str | None) -> Iterator[str]:
    """Obstacles to a release; with a tag also whether tag, version and commit agree."""
    changelog = (package.folder / "CHANGELOG.md").read_text()
    yield from _version_problems(root, package)
    if re.search(rf"^## {re.escape(package.version)} \(\d{{4}}-\d\d-\d\d\)$", changelog, re.MULTILINE) is None:
        yield f"CHANGELOG.md has no section `## {package.version} (YYYY-MM-DD)`: write what a reader has to know"
    if tag is not None:
        if tag != f"{package.name}-v{package.version}":
            yield f"the tag is {tag}, but the version in pyproject.toml is {package.version}"
        if git(root, "merge-base", "--is-ancestor", "HEAD", "origin/main") is None:
            yield "the commit is not on origin/main: merge it first, then tag the merged commit"


def _version_problems(root: Path, package: Package) -> Iterator[str]:
    prefix, version = f"{package.name}-v", Version(package.version)
    tags = (git(root, "tag", "--list", f"{prefix}*") or "").split()
    last = max((Version(tag.removeprefix(prefix)) for tag in tags if tag != f"{prefix}{version}"), default=None)
    if last is not None and version <= last:
        yield f"version {version} is not newer than {last}, which is released: raise `version` in pyproject.toml"
