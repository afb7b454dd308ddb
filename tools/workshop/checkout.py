"""The checkout: where things are, and what the packages' manifests say."""

import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from workshop.errors import Missing, Usage

DATASET_VARIABLE = "FIB_TEST_DATASET"


@dataclass(frozen=True)
class Package:
    """One distribution under `packages/`, as its manifest describes it."""

    folder: Path

    @cached_property
    def manifest(self) -> Mapping[str, Any]:
        """The parsed `pyproject.toml`."""
        return read_toml(self.folder / "pyproject.toml")

    @property
    def name(self) -> str:
        """The distribution name, such as `fib-schema`."""
        return str(self.manifest["project"]["name"])

    @property
    def version(self) -> str:
        """The static version."""
        return str(self.manifest["project"]["version"])

    @property
    def wheel_name(self) -> str:
        """The file name of its wheel; all our wheels are pure Python."""
        return f"{self.name.replace('-', '_')}-{self.version}-py3-none-any.whl"

    @property
    def sdist_name(self) -> str:
        """The file name of its source distribution."""
        return f"{self.name.replace('-', '_')}-{self.version}.tar.gz"

    @property
    def tag(self) -> str:
        """The tag that releases its version."""
        return f"{self.name}-v{self.version}"

    @property
    def requirements(self) -> tuple[str, ...]:
        """What it declares to need at run time, extras left out."""
        return tuple(self.manifest["project"].get("dependencies", ()))

    @property
    def extras(self) -> Mapping[str, tuple[str, ...]]:
        """What each of its extras needs."""
        return {name: tuple(texts) for name, texts in self.manifest["project"].get("optional-dependencies", {}).items()}

    @property
    def test_requirements(self) -> tuple[str, ...]:
        """What its tests need beside its dependencies."""
        return tuple(self.manifest.get("dependency-groups", {}).get("test", ()))

    @property
    def all_requirements(self) -> tuple[str, ...]:
        """What it declares for itself, for its extras and for its tests."""
        extras = (text for texts in self.extras.values() for text in texts)
        return (*self.requirements, *extras, *self.test_requirements)


@dataclass(frozen=True)
class Checkout:
    """A working copy of the repository.

    Args:
        root: The folder with the root `pyproject.toml`.
    """

    root: Path

    @property
    def work(self) -> Path:
        """The ignored folder that holds everything these tools make, but for the environments and wheels."""
        return self.root / ".dev"

    @property
    def logs(self) -> Path:
        """Output of the steps, one file each."""
        return self.work / "logs"

    @property
    def dist(self) -> Path:
        """Built wheels."""
        return self.root / "dist"

    @property
    def constraints(self) -> Path:
        """The file that pins what development installs."""
        return self.root / "tools" / "constraints.txt"

    @cached_property
    def manifest(self) -> Mapping[str, Any]:
        """The parsed root `pyproject.toml`."""
        return read_toml(self.root / "pyproject.toml")

    @cached_property
    def packages(self) -> tuple[Package, ...]:
        """All packages, by name."""
        return tuple(Package(path.parent) for path in sorted(self.root.glob("packages/*/pyproject.toml")))

    def named(self, names: Iterable[str]) -> tuple[Package, ...]:
        """The packages of these names, all of them where none is given; `schema` is short for `fib-schema`.

        Raises:
            Usage: A name is unknown.
        """
        known = {package.name: package for package in self.packages}
        full = [name if name in known else f"fib-{name}" for name in names]
        for name in full:
            if name not in known:
                raise Usage(f"no package {name.removeprefix('fib-')!r} (there are: {', '.join(known)})")
        return tuple(known[name] for name in full) or self.packages

    def variables(self) -> dict[str, str]:
        """This process's environment, with the public data set named where it lies beside the checkout."""
        variables = dict(os.environ)
        beside = self.root.parent / "shared" / "flashinfer-trace"
        if DATASET_VARIABLE not in variables and beside.is_dir():
            variables[DATASET_VARIABLE] = str(beside)
        return variables


def find_checkout(script: Path) -> Checkout:
    """The checkout that a script under `tools/` belongs to.

    Raises:
        Missing: The script was copied out of the repository.
    """
    root = script.resolve().parent.parent
    if not ((root / "pyproject.toml").is_file() and (root / "packages").is_dir()):
        raise Missing(
            f"the rest of the repository is missing: no pyproject.toml and packages/ in {root}.",
            "this script sets up and tests the packages that lie beside it.",
            "clone the repository and run tools/dev.py from there; do not copy the script out of it.",
        )
    return Checkout(root)


def read_toml(path: Path) -> Mapping[str, Any]:
    """Parse a TOML file."""
    with path.open("rb") as file:
        return tomllib.load(file)


def requirement_name(requirement: str) -> str:
    """The normalised distribution name of a requirement: `Foo_bar[x]>=1 ; marker` gives `foo-bar`."""
    name = re.match(r"[A-Za-z0-9._-]+", requirement.strip())
    if name is None:
        raise ValueError(f"not a requirement: {requirement!r}")
    return re.sub(r"[-_.]+", "-", name.group()).lower()
