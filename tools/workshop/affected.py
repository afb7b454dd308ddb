"""Which packages a change affects: those it touches, and all that depend on them."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from workshop.checkout import Checkout, Package, requirement_name
from workshop.history import changed_files

# Outside of packages/, these change no package: prose, and tests that run whatever has changed.
_BESIDE = ("docs", "tests-integration")


@dataclass(frozen=True)
class Affected:
    """What a change affects.

    Args:
        reasons: For each affected package, in the order of the checkout, why it is affected.
        tests: The folders whose tests have to run: those of the packages, and those that belong to no package.
    """

    reasons: Mapping[str, str]
    tests: tuple[str, ...]

    @property
    def packages(self) -> tuple[str, ...]:
        """The names of the affected packages."""
        return tuple(self.reasons)

    def lists(self) -> dict[str, tuple[str, ...]]:
        """What scripts and workflows read."""
        return {"packages": self.packages, "tests": self.tests}


def find_affected(checkout: Checkout, base: str | None) -> Affected:
    """Compare with `base`; see `changed_files` for what it may be."""
    changed = changed_files(checkout.root, base)
    if changed is None:
        reasons = _everything(checkout, "there is no commit to compare with")
    else:
        reasons = explain_affected(checkout, changed)
    ordered = {package.name: reasons[package.name] for package in checkout.packages if package.name in reasons}
    return Affected(ordered, (*_package_tests(checkout, ordered), *_other_tests(checkout)))


def explain_affected(checkout: Checkout, changed: Sequence[str]) -> dict[str, str]:
    """Why each affected package is affected by these files, relative to the root; unordered."""
    reasons: dict[str, str] = {}
    owners = {package.folder.name: package.name for package in checkout.packages}
    for path in changed:
        folder, *rest = PurePosixPath(path).parts
        if folder == "packages" and rest[0] in owners:
            reasons.setdefault(owners[rest[0]], f"{path} has changed")
        elif not _is_beside(path):
            return _everything(checkout, f"{path} has changed, which all packages share")
    return reasons | _dependants(checkout.packages, reasons)


def _is_beside(path: str) -> bool:
    folder, *rest = PurePosixPath(path).parts
    return folder in _BESIDE or (not rest and path.endswith(".md"))


def _everything(checkout: Checkout, reason: str) -> dict[str, str]:
    return {package.name: reason for package in checkout.packages}


def _dependants(packages: Sequence[Package], touched: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    waiting = [*touched]
    seen = set(waiting)
    while waiting:
        current = waiting.pop(0)
        for package in packages:
            if package.name not in seen and current in sibling_names(package):
                found[package.name] = f"it depends on {current}"
                seen.add(package.name)
                waiting.append(package.name)
    return found


def sibling_names(package: Package) -> frozenset[str]:
    """All that a package declares, for itself, its extras and its tests."""
    return frozenset(requirement_name(text) for text in package.all_requirements)


def _package_tests(checkout: Checkout, names: Collection[str]) -> list[str]:
    return [str(package.folder.relative_to(checkout.root)) for package in checkout.named(names)] if names else []


def _other_tests(checkout: Checkout) -> list[str]:
    """The other folders that pytest's settings name: they say something about every change."""
    folders = checkout.manifest.get("tool", {}).get("pytest", {}).get("testpaths", ())
    return [folder for folder in folders if folder != "packages"]
