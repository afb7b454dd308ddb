"""A package's changelog and the fragments that wait to be folded into it."""

import re
from pathlib import Path

from workshop.checkout import Checkout, Package
from workshop.environment import Environment


def fragments(package: Package) -> tuple[Path, ...]:
    """The fragments that no release holds yet."""
    return tuple(sorted((package.folder / "changes").glob("*.md")))


def has_breaking(package: Package) -> bool:
    """Whether one of them says that something breaks."""
    return any(".breaking." in path.name for path in fragments(package))


def has_section(package: Package) -> bool:
    """Whether the changelog has a section for the package's version."""
    text = (package.folder / "CHANGELOG.md").read_text()
    return re.search(rf"^## {re.escape(package.version)}( |$)", text, re.MULTILINE) is not None


def fold_command(checkout: Checkout, environment: Environment, package: Package, *, draft: bool) -> list[str]:
    """Fold the fragments into the changelog, or print what that would add to it."""
    settings = ["--config", str(checkout.root / "tools/towncrier.toml"), "--dir", str(package.folder)]
    words = ["--name", package.name, "--version", package.version, "--draft" if draft else "--yes"]
    return [environment.program("towncrier"), "build", *settings, *words]
