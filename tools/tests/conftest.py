"""A small checkout to look at, without installing anything."""

import functools
import os
import subprocess
from pathlib import Path

import pytest
from workshop.checkout import Checkout

ROOT_MANIFEST = """
[dependency-groups]
dev = ["pytest"]
[tool.hatch.envs.default]
path = ".venv"
[tool.ruff]
line-length = 100
"""


def write_package(root: Path, name: str, *dependencies: str) -> None:
    folder = root / "packages" / name
    folder.mkdir(parents=True)
    lines = ["[project]", f'name = "{name}"', 'version = "0.1.0"', f"dependencies = {list(dependencies)}"]
    (folder / "pyproject.toml").write_text("\n".join(lines))


@pytest.fixture
def checkout(tmp_path):
    """`fib-top` needs `fib-middle` needs `fib-low`; `fib-other` stands alone. The path has a space in it."""
    root = tmp_path / "a checkout"
    write_package(root, "fib-low", "attrs>=23")
    write_package(root, "fib-middle", "Fib_Low[blobs]>=0.1,<0.2 ; python_version > '3'", "torch")
    write_package(root, "fib-top", "fib-middle")
    write_package(root, "fib-other")
    (root / "pyproject.toml").write_text(ROOT_MANIFEST)
    (root / "tools").mkdir()
    (root / "tools" / "constraints.txt").write_text("torch==2.13.0\n")
    return Checkout(root)


@pytest.fixture
def add_package(checkout):
    """Give the small checkout one package more: name, dependencies."""
    return functools.partial(write_package, checkout.root)


@pytest.fixture
def repository():
    """The checkout that these tests belong to."""
    return Checkout(Path(__file__).parents[2])


def git(root: Path, *arguments: str) -> str:
    """Git as everybody has it: no settings of this machine."""
    variables = {
        "PATH": os.environ["PATH"],
        "HOME": str(root),
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_SYSTEM": os.devnull,
    }
    who = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    answer = subprocess.run(
        ["git", *who, *arguments], cwd=root, env=variables, check=True, capture_output=True, text=True
    )
    return answer.stdout.strip()


class History:
    """The repository of a small checkout, with short words for what the tests do to it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        git(root, "init", "--quiet", "--initial-branch=main")
        self.commit()

    def write(self, path: str, text: str = "changed\n") -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def commit(self, *paths: str) -> str:
        """Change these files, commit everything that differs, and return the commit."""
        for path in paths:
            self.write(path)
        git(self.root, "add", "--all")
        git(self.root, "commit", "--quiet", "--allow-empty", "--message=a change")
        return self.git("rev-parse", "HEAD")

    def git(self, *arguments: str) -> str:
        return git(self.root, *arguments)


@pytest.fixture
def history(checkout):
    """The small checkout under git, with one commit on `main`."""
    return History(checkout.root)
