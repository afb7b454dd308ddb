"""Rules that a package has to follow to be released."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import Version

from .repository import Package, git


def release_problems(root: Path, package: Package, packages: Sequence[Package], tag: str | None) -> list[str]:
    """What prevents a release; with a tag also whether tag, version, changelog and commit agree."""
    problems = [*_version_problems(root, package), *_range_problems(package, packages)]
    return [*problems, *(_changelog_problems(package) if tag is None else _tag_problems(root, package, tag))]


def _fragments(package: Package) -> list[str]:
    return sorted(path.name for path in package.folder.glob("changes/*.md"))


def _has_section(package: Package) -> bool:
    text = (package.folder / "CHANGELOG.md").read_text()
    return re.search(rf"^## {re.escape(package.version)}( |$)", text, re.MULTILINE) is not None


def _version_problems(root: Path, package: Package) -> Iterator[str]:
    tags = (git(root, "tag", "--list", f"{package.name}-v*") or "").split()
    released = [Version(tag.rpartition("-v")[2]) for tag in tags if tag != package.tag]
    version, last = Version(package.version), max(released, default=None)
    if last is None:
        return
    if version <= last:
        yield f"version {version} is not newer than {last}, which is released: raise `version` in pyproject.toml"
    compatible = version.release[:1] == last.release[:1] and (version.major > 0 or version.minor == last.minor)
    if compatible and any(".breaking." in name for name in _fragments(package)):
        part = "major" if version.major else "minor"
        yield f"a fragment is `breaking`, but {version} follows {last}: raise the {part} version"


def _range_problems(package: Package, packages: Sequence[Package]) -> Iterator[str]:
    versions = {other.name: other.version for other in packages}
    for other in packages:
        for requirement in other.requirements:
            name = canonicalize_name(requirement.name)
            found = versions.get(name)
            if found and package.name in (other.name, name) and not requirement.specifier.contains(found):
                yield f"{other.name} requires {requirement}, but the repository has {found}: change the range"


def _changelog_problems(package: Package) -> Iterator[str]:
    fragments = _fragments(package)
    if not fragments and not _has_section(package):
        yield f"no fragment in changes/ and no section in CHANGELOG.md for {package.version}: add a fragment"
    if fragments and _has_section(package):
        yield f"CHANGELOG.md has a section for {package.version}, but there are fragments: {', '.join(fragments)}"


def _tag_problems(root: Path, package: Package, tag: str) -> Iterator[str]:
    if tag != package.tag:
        yield f"the tag is {tag}, but the version in pyproject.toml makes it {package.tag}"
    if _fragments(package) or not _has_section(package):
        yield f"CHANGELOG.md is not complete for {package.version}: `python tools/dev.py changelog {package.name}`"
    if git(root, "status", "--porcelain"):
        yield "files differ from the commit: commit them or clone again"
    if git(root, "rev-parse", "HEAD") != git(root, "rev-parse", f"refs/tags/{tag}^{{commit}}"):
        yield f"the commit is not the one that {tag} names"
    if git(root, "merge-base", "--is-ancestor", "HEAD", "origin/main") is None:
        yield "the commit is not on origin/main: merge it first, then tag the merged commit"
