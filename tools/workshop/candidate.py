"""A package that may be released: its tag, its last release, and its neighbours in the checkout."""

from dataclasses import dataclass

from workshop.checkout import Checkout, Package
from workshop.errors import Usage
from workshop.history import tags
from workshop.requirements import Requirement, parse_requirement, release


@dataclass(frozen=True)
class Candidate:
    """One package of a checkout, as it would be released."""

    checkout: Checkout
    package: Package

    @property
    def last(self) -> str | None:
        """The newest version that has a tag, or None."""
        prefix = f"{self.package.name}-v"
        versions = (tag.removeprefix(prefix) for tag in tags(self.checkout.root, prefix))
        return max(versions, key=release, default=None)

    @property
    def needs(self) -> tuple["Link", ...]:
        """The ranges in which it declares others of ours."""
        return tuple(link for other in self.checkout.packages for link in links(self.package, other))

    @property
    def dependants(self) -> tuple["Link", ...]:
        """The ranges in which others of ours declare it."""
        return tuple(link for other in self.checkout.packages for link in links(other, self.package))


@dataclass(frozen=True)
class Link:
    """A range in which one package of ours declares another."""

    package: Package
    other: Package
    requirement: Requirement

    @property
    def admits(self) -> bool:
        """Whether the version in the checkout lies in the range."""
        return self.requirement.admits(self.other.version)

    def __str__(self) -> str:
        verdict = "admits" if self.admits else "REFUSES"
        return f"{self.package.name} {self.package.version}: {self.requirement} {verdict} {self.other.version}"


def links(package: Package, other: Package) -> tuple[Link, ...]:
    """What one declares about the other, for itself, its extras and its tests; each range once."""
    declared = (parse_requirement(text) for text in package.all_requirements)
    ranges = dict.fromkeys(requirement for requirement in declared if requirement.name == other.name)
    return tuple(Link(package, other, requirement) for requirement in ranges)


def candidate_of_tag(checkout: Checkout, tag: str) -> Candidate:
    """What a tag such as `fib-apply-v0.1.0` releases.

    Raises:
        Usage: It names no package, or another version than the manifest's.
    """
    name, _, version = tag.rpartition("-v")
    found = {package.name: package for package in checkout.packages}.get(name)
    if found is None:
        examples = ", ".join(package.tag for package in checkout.packages)
        raise Usage(f"the tag {tag!r} names no package (the tags of what is here: {examples})")
    if found.version != version:
        raise Usage(f"the tag says {name} {version!r}, and its manifest {found.version!r} (its tag: {found.tag})")
    return Candidate(checkout, found)


def describe(candidate: Candidate) -> str:
    """Version and tag, what it needs of ours, and what of ours depends on it."""
    package, last = candidate.package, candidate.last
    title = f"{package.name} {package.version}, tag {package.tag}, " + (
        f"after {last}" if last else "its first release"
    )
    needs = [f"  {link}{_release_note(candidate, link.other)}" for link in candidate.needs]
    dependants = [f"  {link}" for link in candidate.dependants]
    nothing = ["  no package of ours"]
    return "\n".join([title, "", "needs", *(needs or nothing), "", "is needed by", *(dependants or nothing), ""])


def _release_note(candidate: Candidate, package: Package) -> str:
    released = package.tag in tags(candidate.checkout.root, package.tag)
    return "" if released else ", which is not released yet: release it first"
