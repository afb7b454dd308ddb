"""The repository: its packages as their manifests describe them, and its git history."""

import subprocess
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Package:
    """One distribution below `packages/`."""

    folder: Path

    @cached_property
    def manifest(self) -> Mapping[str, Any]:
        """The parsed `pyproject.toml`."""
        return tomllib.loads((self.folder / "pyproject.toml").read_text())

    @property
    def name(self) -> str:
        """The distribution name, such as `fib-schema`."""
        return str(self.manifest["project"]["name"])

    @property
    def version(self) -> str:
        """The static version."""
        return str(self.manifest["project"]["version"])

    @property
    def wheel(self) -> str:
        """The file name of its wheel; all our wheels are pure Python."""
        return f"{self.name.replace('-', '_')}-{self.version}-py3-none-any.whl"

    @property
    def sources(self) -> Path:
        """The folder of its import package."""
        return next(self.folder.glob("src/*/__init__.py")).parent

    @property
    def test_requirements(self) -> tuple[str, ...]:
        """Requirements of its tests."""
        return tuple(self.manifest.get("dependency-groups", {}).get("test", ()))

    @property
    def requirements(self) -> tuple[tuple[str, Requirement], ...]:
        """All that it declares, for itself, its extras and its tests, each with its normalized name."""
        project = self.manifest["project"]
        extras = (text for texts in project.get("optional-dependencies", {}).values() for text in texts)
        declared = map(Requirement, (*project.get("dependencies", ()), *extras, *self.test_requirements))
        return tuple((canonicalize_name(requirement.name), requirement) for requirement in declared)

    def is_lowest_for(self, other: "Package") -> bool:
        """Whether this version is the lowest that another package declares, if it declares any."""
        clauses = [clause for name, found in other.requirements if name == self.name for clause in found.specifier]
        return all(Version(clause.version) == Version(self.version) for clause in clauses if clause.operator == ">=")


def find_packages(root: Path, names: Iterable[str] = ()) -> tuple[Package, ...]:
    """The packages of these names, or all; `schema` is short for `fib-schema`.

    Raises:
        ValueError: A name is unknown.
    """
    known = {path.parent.name: Package(path.parent) for path in sorted(root.glob("packages/*/pyproject.toml"))}
    wanted = [name if name in known else f"fib-{name}" for name in names]
    if unknown := set(wanted) - set(known):
        raise ValueError(f"unknown packages {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return tuple(known[name] for name in wanted or known)


def git(root: Path, *arguments: str) -> str | None:
    """The output of a git command without the final newline, or None if it fails."""
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    return done.stdout.rstrip("\n") if done.returncode == 0 else None


def changed_files(root: Path, base: str) -> list[str] | None:
    """The files that differ from the point where this branch left `base`, or None if there is no such point."""
    start = git(root, "merge-base", base, "HEAD") if base.strip("0") else None
    differing = start and git(root, "diff", "--name-only", "--no-renames", start)  # a moved file counts twice
    return None if differing is None else differing.splitlines()


def affected_packages(packages: Sequence[Package], changed: Iterable[str] | None) -> list[str]:
    """The packages that a change touches and all that depend on them; all if it touches more than documentation."""
    touched: set[str] = set()
    for parts in (PurePosixPath(path).parts for path in changed or ()):
        if parts[0] == "packages" and len(parts) > 2:
            touched.add(parts[1])
        elif parts[0] not in ("docs", "tests-integration") and not (len(parts) == 1 and parts[0].endswith(".md")):
            changed = None
    if changed is None:
        touched = {package.name for package in packages}
    while dependents := {p.name for p in packages if touched & {name for name, _ in p.requirements}} - touched:
        touched |= dependents
    return [package.name for package in packages if package.name in touched]
