"""Test a package against the oldest versions that it declares: a lower bound that nobody tries is a guess."""

import platform
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from workshop.checkout import Checkout, Package, requirement_name
from workshop.environment import pins, pip_install
from workshop.errors import StepFailed, Usage
from workshop.machine import Host, find_host
from workshop.process import Console
from workshop.requirements import Requirement, parse_requirement, release
from workshop.summary import Outcome
from workshop.wheels import Trial, build_wheels, try_out

# What pip says of a version that does not exist: the name, and all that it found.
_NOT_OFFERED = re.compile(r"requirement (?P<name>[\w.-]+)[^()\n]*\(from versions: (?P<versions>[^)]+)\)")
_PLAIN = re.compile(r"\d+(\.\d+)*")


@dataclass(frozen=True)
class Bounds:
    """The oldest versions that a package may meet.

    Args:
        package: The package in question.
        extras: Those of its extras that are installed with it.
        siblings: Ours that come from the checkout, because it holds the very version that is declared.
        requirements: What the package and these siblings declare beside each other.
    """

    package: Package
    extras: frozenset[str]
    siblings: tuple[Package, ...]
    requirements: frozenset[Requirement]

    @property
    def versions(self) -> Mapping[str, Mapping[str, str]]:
        """For each name the oldest version that satisfies everybody, by the marker under which it applies."""
        versions: dict[str, dict[str, str]] = {}
        for requirement in sorted(self.requirements, key=str):
            markers = versions.setdefault(requirement.name, {})
            bounds = [bound for bound in (requirement.lowest, markers.get(requirement.marker)) if bound]
            if bounds:
                markers[requirement.marker] = max(bounds, key=release)
        return versions

    def pinned(self, held: Iterable[str] = ()) -> tuple[str, ...]:
        """The versions as lines of a constraints file, but for the names that are held elsewhere."""
        return tuple(
            f"{name}=={version}" + (f" ; {marker}" if marker else "")
            for name, markers in self.versions.items()
            for marker, version in markers.items()
            if name not in held
        )


def find_bounds(checkout: Checkout, package: Package, extras: frozenset[str]) -> Bounds:
    """Walk what a package declares, and what those of its siblings declare that come from the checkout.

    A sibling that is declared in an older version than the checkout's is left to pip's index, which has that version.

    Raises:
        Usage: An extra is unknown, or a sibling is declared in a version that the checkout has not reached.
    """
    known = {sibling.name: sibling for sibling in checkout.packages}
    of_tests = [text for text in package.test_requirements if requirement_name(text) in known]
    waiting = [*_declared(package, extras), *map(parse_requirement, of_tests)]
    siblings: dict[str, Package] = {}
    seen: set[Requirement] = set()
    while waiting:
        requirement = waiting.pop()
        sibling = known.get(requirement.name)
        if requirement not in seen and sibling is not None and _is_current(requirement, sibling):
            siblings[sibling.name] = sibling
            waiting += _declared(sibling, requirement.extras)
        seen.add(requirement)
    others = frozenset(requirement for requirement in seen if requirement.name not in siblings)
    return Bounds(package, extras, tuple(siblings.values()), others)


def _declared(package: Package, extras: Iterable[str]) -> list[Requirement]:
    known = {requirement_name(extra): texts for extra, texts in package.extras.items()}
    texts = [*package.requirements]
    for extra in sorted(extras):
        if extra not in known:
            raise Usage(f"{package.name} has no extra {extra!r} (there are: {', '.join(known) or 'none'})")
        texts += known[extra]
    return [parse_requirement(text) for text in texts]


def _is_current(requirement: Requirement, sibling: Package) -> bool:
    lowest = release(requirement.lowest or sibling.version)
    if lowest > release(sibling.version):
        raise Usage(f"{requirement} is declared, and the checkout has {sibling.name} {sibling.version}")
    return lowest == release(sibling.version)


def check_lowest(
    checkout: Checkout, console: Console, bounds: Bounds, variables: Mapping[str, str], *, hold: bool = True
) -> Outcome:
    """Install the oldest versions into an empty environment, say which they are, and run the tests there.

    Args:
        checkout: Where the packages lie.
        console: Where it is said.
        bounds: What to install.
        variables: The environment variables of the tests.
        hold: Leave the names of `tools/constraints.txt` at the versions there: the oldest torch is gigabytes on some
            machines, and does not exist for others.

    Raises:
        Usage: A version that is declared as the oldest does not exist.
    """
    host = find_host(checkout)
    held = _held(checkout, host) if hold else {}
    console.say(describe(bounds, held))
    file = checkout.work / "lowest" / f"{bounds.package.name}.txt"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{line}\n" for line in bounds.pinned(held)))
    build_wheels(checkout, console, (bounds.package, *bounds.siblings))
    constraints = (*(pins(checkout, host) if hold else ()), file.as_uri())
    trial = Trial(f"lowest {bounds.package.name}", bounds.package, _wheels(checkout, bounds), constraints)
    try:
        return try_out(checkout, console, trial, variables)
    except StepFailed as failure:
        raise _find_absent(checkout, trial, bounds, file) or failure from None


def _find_absent(checkout: Checkout, trial: Trial, bounds: Bounds, file: Path) -> Usage | None:
    """Ask pip for the versions alone: of constraints it says that they conflict, never that one does not exist."""
    asked = ["--dry-run", "--no-deps", "--requirement", str(file)]
    try:
        pip_install(checkout, trial.environment(checkout), asked, log=f"versions-{trial.slug}.log")
    except StepFailed as failure:
        return explain_absent(failure.log.read_text(errors="replace"), bounds)
    return None


def _held(checkout: Checkout, host: Host) -> dict[str, str]:
    """The names that are not taken to their oldest version, with what is installed of them and why."""
    if host.torch:
        return {"torch": f"{host.torch}, this machine's own"}
    lines = (line.partition("#")[0].strip() for line in checkout.constraints.read_text().splitlines())
    pinned = [parse_requirement(line) for line in lines if line]
    place = checkout.constraints.relative_to(checkout.root)
    return {pin.name: f"{pin.lowest}, which {place} holds" for pin in pinned}


def _wheels(checkout: Checkout, bounds: Bounds) -> tuple[str, ...]:
    extras = f"[{','.join(sorted(bounds.extras))}]" if bounds.extras else ""
    own, *siblings = (str(checkout.dist / package.wheel_name) for package in (bounds.package, *bounds.siblings))
    return (own + extras, *siblings)


def describe(bounds: Bounds, held: Mapping[str, str]) -> str:
    """What is going to be tested, one line for each name; exceptions say so."""
    lines = [f"{bounds.package.name} {bounds.package.version} on Python {platform.python_version()} with the oldest of"]
    for sibling in bounds.siblings:
        lines.append(f"  {sibling.name} {sibling.version}, from this checkout")
    for name, markers in bounds.versions.items():
        lowest = " or ".join(markers.values()) or "any version"
        exception = f" is declared, NOT TESTED: this runs with {held[name]}" if name in held else ""
        lines.append(f"  {name} {lowest}{exception}")
    return "\n".join(lines)


def explain_absent(output: str, bounds: Bounds) -> Usage | None:
    """What pip's output says about a lower bound that is no version, or None where it failed for another reason."""
    found = _NOT_OFFERED.search(output)
    name = requirement_name(found["name"]) if found else ""
    if found is None or name not in bounds.versions:
        return None
    lowest = max(bounds.versions[name].values(), key=release)
    offered = [version.strip() for version in found["versions"].split(",")]
    newer = [version for version in offered if _PLAIN.fullmatch(version) and release(version) > release(lowest)]
    return Usage(
        f"{name} {lowest} is declared as the oldest version that serves, and there is no such version.\n"
        f"  next: {', '.join(newer[:3]) or 'none that is newer'}\n"
        "  do:   declare the oldest version that exists and passes the tests."
    )
