"""The repository: its packages as their manifests describe them, and its git history."""

import subprocess
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

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
    def tag(self) -> str:
        """The git tag that releases this version."""
        return f"{self.name}-v{self.version}"

    @property
    def wheel(self) -> str:
        """The file name of its wheel; all our wheels are pure Python."""
        return f"{self.name.replace('-', '_')}-{self.version}-py3-none-any.whl"

    @property
    def sources(self) -> Path:
        """The folder of its import package."""
        return next(path.parent for path in self.folder.glob("src/*/__init__.py"))

    @property
    def test_requirements(self) -> tuple[str, ...]:
        """Requirements of its tests."""
        return tuple(self.manifest.get("dependency-groups", {}).get("test", ()))

    @property
    def requirements(self) -> tuple[Requirement, ...]:
        """All that it declares, for itself, its extras and its tests."""
        project = self.manifest["project"]
        extras = (text for texts in project.get("optional-dependencies", {}).values() for text in texts)
        return tuple(map(Requirement, (*project.get("dependencies", ()), *extras, *self.test_requirements)))

    def requires(self, other: "Package") -> bool:
        """Whether it declares another package of ours."""
        return any(canonicalize_name(requirement.name) == other.name for requirement in self.requirements)


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


def dependency_group(name: str) -> list[str]:
    """The requirements of one group in the root manifest."""
    group = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"][name]
    return [str(requirement) for requirement in group]


def git(root: Path, *arguments: str) -> str | None:
    """The output of a git command without the final newline, or None if it fails."""
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    return done.stdout.rstrip("\n") if done.returncode == 0 else None
