"""A small checkout to look at, without installing anything."""

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
def repository():
    """The checkout that these tests belong to."""
    return Checkout(Path(__file__).parents[2])
