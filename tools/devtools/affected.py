"""Packages that a change affects: those it touches, and all that depend on them."""

from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from .repository import Package, find_packages, git

_TESTED_ALWAYS = ("docs", "tests-integration", "tools")


def changed_files(root: Path, base: str) -> list[str] | None:
    """The files that differ from the point where this branch left `base`, or None if there is no such point."""
    start = git(root, "merge-base", base, "HEAD") if base.strip("0") else None
    if start is None:
        return None
    differing = git(root, "diff", "--name-only", "--no-renames", start) or ""  # a moved file counts twice
    untracked = git(root, "ls-files", "--others", "--exclude-standard") or ""
    return [*differing.splitlines(), *untracked.splitlines()]


def affected_packages(packages: Sequence[Package], changed: Iterable[str] | None) -> list[str]:
    """The names of the affected packages; all for a change outside of them that is not documentation."""
    touched: set[str] = set()
    for parts in [] if changed is None else [PurePosixPath(path).parts for path in changed]:
        if parts[0] == "packages" and len(parts) > 2:
            touched.add(parts[1])
        elif parts[0] not in ("docs", "tests-integration") and not (len(parts) == 1 and parts[0].endswith(".md")):
            changed = None
    if changed is None:
        return [package.name for package in packages]
    affected = [package for package in packages if package.name in touched]
    for found in affected:  # grows while it is read
        affected += [package for package in packages if package not in affected and package.requires(found)]
    return [package.name for package in packages if package in affected]


def find_affected(root: Path, base: str) -> dict[str, list[str]]:
    """The affected packages, and the folders whose tests have to run."""
    names = affected_packages(find_packages(root), changed_files(root, base))
    return {"packages": names, "tests": [*(f"packages/{name}" for name in names), *_TESTED_ALWAYS]}
