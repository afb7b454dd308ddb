"""The tutorials and how-tos work: what a page says to save is saved, what it says to run is run.

A code block with a caption is a file; a ``console`` block is what a reader types, with what they see below. A page
whose first lines say ``continues: PAGE`` begins in the folder that the reader of that page has made. What needs an
engine or a cluster is in ``text`` blocks, which are not run.
"""

from __future__ import annotations

import doctest
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest
import yaml

DOCS = Path(__file__).resolve().parent.parent
PAGES = sorted(
    str(path.relative_to(DOCS)) for folder in ("tutorials", "how-to") for path in (DOCS / folder).glob("*.md")
)
FENCE = re.compile(r"^```(?P<kind>[^`\n]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
OPTION = re.compile(r":([\w-]+): *(.*)\n")
FRONT = re.compile(r"\A---\n(.*?)^---\n", re.MULTILINE | re.DOTALL)
LOOSELY = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
SECONDS = 200


@attrs.frozen
class Block:
    """A fenced block of a page."""

    language: str
    options: dict[str, str]
    text: str


@attrs.frozen
class Command:
    """What a reader types, and what they are told to see; nothing if they are told nothing."""

    typed: str
    seen: str


def front_matter(page: str) -> dict[str, str]:
    found = FRONT.match((DOCS / page).read_text())
    return yaml.safe_load(found[1]) if found else {}


def blocks_of(page: str) -> Iterator[Block]:
    for match in FENCE.finditer((DOCS / page).read_text()):
        body, options = match["body"], {}
        while (option := OPTION.match(body)) is not None:
            options[option[1]] = option[2]
            body = body[option.end() :]
        yield Block(match["kind"].removeprefix("{code-block} "), options, body.lstrip("\n"))


def commands_of(text: str) -> Iterator[Command]:
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        lines = part.splitlines(keepends=True)
        end = next(index for index, line in enumerate(lines) if not line.endswith("\\\n")) + 1
        yield Command("".join(lines[:end]), "".join(lines[end:]))


def environment_in(folder: Path) -> dict[str, str]:
    """That of a reader who has activated the environment, with caches of their own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FIB_", "COV_", "PYTEST_"))}
    path = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", os.defpath)])
    own = {"PATH": path, "FIB_CACHE_PATH": str(folder.parent / "cache"), "COLUMNS": "120"}
    return kept | own | {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # Ray's name for: nodes at 127.0.0.1 only


def run(command: Command, folder: Path) -> None:
    words = ["bash", "-euo", "pipefail", "-c", command.typed]
    done = subprocess.run(
        words, cwd=folder, env=environment_in(folder), capture_output=True, text=True, timeout=SECONDS, check=False
    )
    said = f"$ {command.typed}{done.stdout}\n{done.stderr}"
    assert done.returncode == 0, said
    if command.seen:
        assert doctest.OutputChecker().check_output(command.seen, done.stdout, LOOSELY), said


def follow(page: str, folder: Path) -> None:
    """Do what a page says."""
    for block in blocks_of(page):
        if "caption" in block.options:
            path = folder / block.options["caption"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)
        elif block.language == "console":
            for command in commands_of(block.text):
                run(command, folder)
        else:
            assert block.language not in ("python", "bash", "sh"), f"neither a file nor run:\n{block.text}"


@pytest.fixture(scope="session")
def read(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a reader who has come to the end of a page."""
    folders: dict[str, Path] = {}

    def read(page: str) -> Path:
        if page not in folders:
            folder = tmp_path_factory.mktemp(Path(page).stem) / "here"
            front = front_matter(page)
            if "continues" in front:
                before = read(front["continues"])
                shutil.copytree(before, folder)
                shutil.copytree(before.parent / "cache", folder.parent / "cache", dirs_exist_ok=True)
            else:
                folder.mkdir()
            follow(page, folder)
            folders[page] = folder
        return folders[page]

    return read


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_a_reader_who_does_what_the_page_says_sees_what_it_says(page: str, read: Callable[[str], Path]) -> None:
    needed = front_matter(page).get("needs")
    if needed and importlib.util.find_spec(needed) is None:
        pytest.skip(f"needs {needed}")
    read(page)


@pytest.mark.slow
def test_the_commands_of_the_readme_run_as_they_stand(tmp_path: Path) -> None:
    """In its order; of the verbs only the demo, and without setting up. What pip is to install must be there."""
    for line in readme_commands():
        if line == "python tools/dev.py demo":
            run(Command("fib-bench demo", ""), tmp_path)
        elif line.startswith("fib-"):
            run(Command(line, ""), tmp_path)
        elif line.startswith("python -m pip install "):
            assert all((DOCS.parent / path / "pyproject.toml").exists() for path in line.split()[4:])
        else:
            assert line in ("python tools/dev.py test", "source .venv/bin/activate")
    assert (tmp_path / "fib-demo.html").exists()


def readme_commands() -> list[str]:
    blocks = [block for block in blocks_of("../README.md") if block.language == "sh"]
    return [line.partition("  #")[0].rstrip() for block in blocks for line in block.text.splitlines()]


def test_the_architecture_names_modules_that_exist() -> None:
    text = (DOCS.parent / "ARCHITECTURE.md").read_text()
    named = set(re.findall(r"`(fib_\w+(?:\.\w+)+)`", text))
    assert named
    lost = [name for name in sorted(named) if importlib.util.find_spec(name) is None]
    assert lost == []


def test_every_page_is_in_the_table_of_contents() -> None:
    listed = set(re.findall(r"^((?:tutorials|how-to)/[\w-]+)$", (DOCS / "index.md").read_text(), re.MULTILINE))
    assert listed == {page.removesuffix(".md") for page in PAGES}
