"""What stands between a package and its release: a rule answers with an objection, which says what to do, or None."""

from collections.abc import Callable, Iterator

from workshop.candidate import Candidate
from workshop.changelog import fragments, has_breaking, has_section
from workshop.history import find_commit, fork_point, git
from workshop.requirements import release

Rule = Callable[[Candidate], str | None]


def is_not_newer(candidate: Candidate) -> str | None:
    """A version has to be newer than the last one that has a tag."""
    last, version = candidate.last, candidate.package.version
    if last is None or release(version) > release(last):
        return None
    return f"{last} is released already, and {version} is not newer: raise `version` in its pyproject.toml"


def breaks_in_silence(candidate: Candidate) -> str | None:
    """Before 1.0 a breaking change raises the minor version, and from then on the major one."""
    last, version = candidate.last, candidate.package.version
    if last is None or not has_breaking(candidate.package):
        return None
    part, length = ("minor", 2) if version.startswith("0.") else ("major", 1)
    if version.split(".")[:length] != last.split(".")[:length]:
        return None
    return f"a fragment is `breaking`, and {version} comes after {last}: raise the {part} version"


def says_nothing(candidate: Candidate) -> str | None:
    """A release has a section in the changelog, or fragments that will be one."""
    if fragments(candidate.package) or has_section(candidate.package):
        return None
    return f"neither CHANGELOG.md nor changes/ says what is new in {candidate.package.version}: add a fragment"


def says_it_twice(candidate: Candidate) -> str | None:
    """Fragments beside a section that is folded already would be left out."""
    waiting = fragments(candidate.package)
    if not (waiting and has_section(candidate.package)):
        return None
    names = ", ".join(path.name for path in waiting)
    return f"CHANGELOG.md has a section for {candidate.package.version} already, and there are fragments: {names}"


def is_not_folded(candidate: Candidate) -> str | None:
    """What a tag names holds its own changelog."""
    package = candidate.package
    if has_section(package) and not fragments(package):
        return None
    return f"CHANGELOG.md does not hold all of {package.version}: run `python tools/dev.py release {package.name}`"


def is_not_tagged_here(candidate: Candidate) -> str | None:
    """What is built has to be what the tag names, and nothing else."""
    root, tag = candidate.checkout.root, candidate.package.tag
    if git(root, "status", "--porcelain"):
        return "files differ from the commit: commit them, or clone anew"
    tagged, here = find_commit(root, f"refs/tags/{tag}"), find_commit(root, "HEAD")
    return None if tagged == here else f"the tag {tag} names {tagged or 'nothing'}, and this is {here}"


def is_off_the_trunk(candidate: Candidate) -> str | None:
    """A release comes from the main branch, where the gate has let it in."""
    root = candidate.checkout.root
    trunk = find_commit(root, "refs/remotes/origin/main")
    if trunk is None or fork_point(root, trunk) == find_commit(root, "HEAD"):
        return None
    return "this commit is not on origin/main: merge first, then tag what was merged"


BEFORE_TAG: tuple[Rule, ...] = (is_not_newer, breaks_in_silence, says_nothing, says_it_twice)
AT_TAG: tuple[Rule, ...] = (is_not_folded, is_not_tagged_here, is_off_the_trunk)


def objections(candidate: Candidate, rules: tuple[Rule, ...]) -> list[str]:
    """All that these rules, and the ranges that packages of ours declare, say against a release."""
    broken = [objection for rule in rules if (objection := rule(candidate))]
    return [*broken, *_refused_ranges(candidate)]


def _refused_ranges(candidate: Candidate) -> Iterator[str]:
    for link in (*candidate.needs, *candidate.dependants):
        if not link.admits:
            yield f"{link.package.name} requires {link.requirement}, and {link.other.version} is here: change the range"
