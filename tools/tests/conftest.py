import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_COMMIT = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false", "commit", "--quiet")


class Repository:
    """A git repository in which packages can be written and committed."""

    def __init__(self, root):
        self.root = root
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *arguments):
        settings = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
        done = subprocess.run(
            ["git", *arguments], cwd=self.root, env=os.environ | settings, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    def write(self, path, text="changed\n"):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def write_package(self, name, *dependencies, version="0.1.0"):
        lines = ["[project]", f'name = "{name}"', f'version = "{version}"', f"dependencies = {list(dependencies)}"]
        self.write(f"packages/{name}/pyproject.toml", "\n".join(lines))

    def commit(self, subject="Change something"):
        self.git("add", "--all")
        self.git(*_COMMIT, "--allow-empty", f"--message={subject}")


@pytest.fixture
def repository(tmp_path):
    """`fib-top` requires `fib-low`; `fib-other` requires nothing."""
    repository = Repository(tmp_path)
    repository.write_package("fib-low", "attrs>=23")
    repository.write_package("fib-top", "Fib_Low[blobs]>=0.1,<0.2 ; python_version > '3'")
    repository.write_package("fib-other")
    repository.commit()
    return repository
