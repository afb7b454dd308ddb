"""Tests of the tutorials and how-to pages: files are saved, commands run, and their output is compared.

A code block with a caption is a file. A ``console`` block holds commands, each with its expected output. A page with
``continues: PAGE`` in its front matter starts in the folder of that page. Commands that need an engine or a cluster
are in ``text`` blocks, which are not run.

Importing torch takes two seconds, so `program_server` imports it once for all commands. Benchmarks take their
shortest settings (`QUICK`): the tests check that the pages work, and not how precise their latencies are.
"""

import doctest
import importlib.util
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import attrs
import pytest
import yaml
from fib_bench.demo import write_demo
from filelock import FileLock

DOCS = Path(__file__).resolve().parent.parent
PAGES = sorted(
    str(path.relative_to(DOCS)) for folder in ("tutorials", "how-to") for path in (DOCS / folder).glob("*.md")
)
FENCE = re.compile(r"^```(?P<kind>[^`\n]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
OPTION = re.compile(r":([\w-]+): *(.*)\n")
FRONT = re.compile(r"\A---\n(.*?)^---\n", re.MULTILINE | re.DOTALL)
LOOSELY = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
SECONDS = 600
PORT = "8765"
"""The port of services in pages: it may be in use, also by another run of these tests."""
QUICK = "--warmup-runs 2 --iterations 5 --measure-seconds 0.05"
PROGRAM = re.compile(r"(?P<set>(?:[A-Z_]+=\S+ )*)(?P<program>(?:python \S+\.py|fib-[a-z]+)[^|&<>;$]*)")
"""A command that needs no shell."""


@attrs.frozen
class Block:
    """A fenced block of a page."""

    language: str
    options: dict[str, str]
    text: str


@attrs.frozen
class Command:
    """A command and its expected output; an empty string accepts any output."""

    typed: str
    seen: str


def front_matter(page):
    found = FRONT.match((DOCS / page).read_text())
    return yaml.safe_load(found[1]) if found else {}


def blocks_of(page):
    for match in FENCE.finditer((DOCS / page).read_text()):
        body, options = match["body"], {}
        while (option := OPTION.match(body)) is not None:
            options[option[1]] = option[2]
            body = body[option.end() :]
        yield Block(match["kind"].removeprefix("{code-block} "), options, body.lstrip("\n"))


def commands_of(text):
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        lines = part.splitlines(keepends=True)
        end = next(index for index, line in enumerate(lines) if not line.endswith("\\\n")) + 1
        yield Command("".join(lines[:end]), "".join(lines[end:]))


def environment_in(folder):
    """The environment of a reader with an activated virtual environment and caches of their own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FIB_", "COV_", "PYTEST_"))}
    path = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", os.defpath)])
    own = {"PATH": path, "FIB_CACHE_PATH": str(folder.parent / "cache"), "COLUMNS": "120"}
    own["RAY_health_check_timeout_ms"] = "60000"  # a node that gets no processor for a while is not dead
    return kept | own | {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # Ray's name for: nodes at 127.0.0.1 only


class Shell:
    """Runs commands: Python programs in forks of a process that has imported torch, others in bash."""

    def __init__(self, server):
        self._server = server

    def run(self, command, folder):
        typed = command.typed.replace("\\\n", "").strip().replace("fib-bench run ", f"fib-bench run {QUICK} ")
        environment = environment_in(folder)
        match = PROGRAM.fullmatch(typed)
        with open(folder.parent / "stdout", "w+") as stdout, open(folder.parent / "stderr", "w+") as stderr:
            if match:
                environment |= dict(item.split("=", 1) for item in match["set"].split())
                code = self._fork(shlex.split(match["program"]), folder, environment, stdout.name, stderr.name)
            else:
                words = ["bash", "-euo", "pipefail", "-c", typed]
                options = {"cwd": folder, "env": environment, "stdout": stdout, "stderr": stderr, "timeout": SECONDS}
                code = subprocess.run(words, check=False, **options).returncode
            stdout.seek(0)
            stderr.seek(0)
            seen, errors = stdout.read(), stderr.read()
        said = f"$ {typed}\n{seen}\n{errors}"
        assert code == 0, said
        if command.seen:
            assert doctest.OutputChecker().check_output(command.seen, seen, LOOSELY), said

    def _fork(self, words, folder, environment, stdout, stderr):
        request = {"words": words, "folder": str(folder), "environment": environment, "seconds": SECONDS}
        assert self._server.stdin
        assert self._server.stdout
        print(json.dumps(request | {"stdout": stdout, "stderr": stderr}), file=self._server.stdin, flush=True)
        return int(self._server.stdout.readline())


@pytest.fixture(scope="session")
def shell():
    words = [sys.executable, str(Path(__file__).with_name("program_server.py"))]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FIB_")}
    environment["FIB_APPLY_NATIVE"] = "0"  # compiling takes longer than the programs
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as server:
        yield Shell(server)
        assert server.stdin
        server.stdin.close()


def follow(page, folder, shell):
    """Save the files of a page and run its commands, with a port that is free instead of the page's."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
    for block in blocks_of(page):
        block = attrs.evolve(block, text=block.text.replace(PORT, port))
        if "caption" in block.options:
            path = folder / block.options["caption"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)
        elif block.language == "console":
            for command in commands_of(block.text):
                shell.run(command, folder)
        else:
            assert block.language not in ("python", "bash", "sh"), f"neither a file nor run:\n{block.text}"


@pytest.fixture(scope="session")
def read(tmp_path_factory, shell):
    """Follow a page to its end, once for all processes of the test run; returns the reader's folder."""
    base = tmp_path_factory.getbasetemp()
    root = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def read(page):
        place = root / Path(page).stem
        folder, end = place / "here", place / "end"
        with FileLock(f"{place}.lock"):
            if not end.exists():
                shutil.rmtree(place, ignore_errors=True)  # left by a failure
                place.mkdir()
                front = front_matter(page)
                if "continues" in front:
                    before = read(front["continues"])
                    shutil.copytree(before, folder)
                    shutil.copytree(before.parent / "cache", place / "cache")
                else:
                    folder.mkdir()
                follow(page, folder, shell)
                end.touch()
        return folder

    return read


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_give_the_shown_output(page, read):
    needed = front_matter(page).get("needs")
    if needed and importlib.util.find_spec(needed) is None:
        pytest.skip(f"needs {needed}")
    read(page)


JOURNEYS = {
    "Write kernels": ("bring-your-own-kernel",),
    "Maintain a data set": ("collect-workloads", "maintain-a-data-set"),
    "Let a model write kernels": ("write-an-agent-loop",),
    "Build an engine": ("put-the-winner-into-an-engine",),
}
"""The tutorials behind the doors of the README for four kinds of users."""


def test_the_doors_of_the_readme_are_tutorials_that_are_always_followed():
    text = (DOCS.parent / "README.md").read_text()
    for door, names in JOURNEYS.items():
        line = re.search(rf"^- {door}: (.*\n(?:  .*\n)*)", text, re.MULTILINE)
        assert line, door
        assert re.findall(r"\(docs/tutorials/([\w-]+)\.md\)", line[1]) == list(names)
        for page in (f"tutorials/{name}.md" for name in names):
            assert page in PAGES
            assert "needs" not in front_matter(page), f"{page} would be skipped where something is not installed"
            assert any(block.language == "console" for block in blocks_of(page))


@pytest.mark.slow
def test_the_commands_of_the_readme_run(tmp_path, shell):
    """In their order, with one workload of each definition. What pip is to install must exist.

    fib-bench tests its command `demo` itself; here its data set is written and benchmarked with `QUICK`.
    """
    folder = tmp_path / "here"
    folder.mkdir()
    for line in readme_commands():
        if line == "python tools/dev.py demo":
            write_demo(folder / "fib-demo")
            shell.run(Command("fib-bench run --max-workloads 1 fib-demo", ""), folder)
        elif line.startswith("fib-"):
            shell.run(Command(line.replace("fib-bench run ", "fib-bench run --max-workloads 1 "), ""), folder)
        elif line.startswith("python -m pip install "):
            assert all((DOCS.parent / path / "pyproject.toml").exists() for path in line.split()[4:])
        else:
            assert line == "python tools/dev.py test"
    assert (folder / "fib-demo.html").exists()


@pytest.mark.slow
def test_the_quick_start_of_the_readme_shows_what_it_prints(tmp_path, shell):
    folder = tmp_path / "here"
    folder.mkdir()
    write_demo(folder / "fib-demo")
    kernel, commands = (
        next(block.text for block in blocks_of("../README.md") if block.language == language)
        for language in ("python", "console")
    )
    (folder / "cached.py").write_text(kernel)
    for command in commands_of(commands):
        if not command.typed.startswith("source "):
            shell.run(command, folder)


def test_the_readme_is_short():
    """500 words beside code and tables."""
    text = FENCE.sub("", (DOCS.parent / "README.md").read_text())
    words = " ".join(line for line in text.splitlines() if not line.startswith("|")).split()
    assert len(words) <= 500


def readme_commands():
    blocks = [block for block in blocks_of("../README.md") if block.language == "sh"]
    return [line.partition("  #")[0].rstrip() for block in blocks for line in block.text.splitlines()]


def test_pages_about_the_code_and_docstrings_of_packages_name_modules_that_exist():
    sources = DOCS.parent / "packages"
    pages = [page.read_text() for page in (DOCS.parent / "ARCHITECTURE.md", *(DOCS / "explanation").glob("*.md"))]
    named = {name for page in pages for name in re.findall(r"`(fib_\w+(?:\.\w+)+)`", page)}
    for module, leaves in (found for page in pages for found in re.findall(r"`(fib_[\w.]+)\.\{([\w,]+)\}", page)):
        named |= {f"{module}.{leaf}" for leaf in leaves.split(",")}
    for package in sources.glob("*/src/fib_*/__init__.py"):
        relative = re.findall(r"`([a-z]\w+\.[a-z][a-z_.]+)`", package.read_text().split('"""')[1])
        named |= {f"{package.parent.name}.{name}" for name in relative}
    assert len(named) > 30
    assert [name for name in sorted(named) if importlib.util.find_spec(name) is None] == []
    files = {name for page in pages for name in re.findall(r"`(\w+/[\w/]+\.(?:py|h|cpp|cu))`", page)}
    assert [name for name in sorted(files) if not any(sources.glob(f"*/src/*/{name}"))] == []


def test_the_measurements_of_a_package_are_those_of_its_page():
    """Both state one run: `python tools/dev.py bench NAME` is the command, ``measured/fib-NAME.md`` the page."""
    table = (DOCS / "explanation" / "measurements.md").read_text()
    rows = re.findall(r"^\| (.*?) \| (.*?) \| CPU \| `python tools/dev\.py bench (\w+)` \|$", table, re.MULTILINE)
    assert len({package for *_, package in rows}) == 3
    number, links = re.compile(r"\d[\d,.]*"), re.compile(r"\(\[.*\)|H200")
    for title, cell, package in rows:
        page = (DOCS / "measured" / f"fib-{package}.md").read_text().replace(",", "")
        known = set(number.findall(page))
        stated = [found.rstrip(".,").replace(",", "") for found in number.findall(links.sub("", cell))]
        assert [found for found in stated if found not in known] == [], title


def test_every_page_is_in_the_table_of_contents():
    listed = set(re.findall(r"^((?:tutorials|how-to)/[\w-]+)$", (DOCS / "index.md").read_text(), re.MULTILINE))
    assert listed == {page.removesuffix(".md") for page in PAGES}
