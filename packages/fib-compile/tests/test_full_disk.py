"""A full or read-only cache is a clear error; a read-only cache serves the libraries that it holds."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fib_schema import Definition, Solution, format_json

MakeSolution = Callable[..., Solution]

CHILD = """
import subprocess
import sys
from fib_compile import BuilderRegistry, BuildError
from fib_schema import Definition, Solution, parse_json

definition, *steps = sys.stdin.read().split("\\0")  # a solution is built, any other step is a command
for step in steps:
    if not step.startswith("{"):
        subprocess.run(step, shell=True, check=True)
        BuilderRegistry.get_instance().cleanup()
        continue
    try:
        BuilderRegistry.get_instance().build(parse_json(definition, Definition), parse_json(step, Solution))
        print("built")
    except BuildError as error:
        print(str(error).replace("\\n", " "))
"""


def can_mount() -> bool:
    if not shutil.which("unshare"):
        return False
    command = ["unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


pytestmark = pytest.mark.skipif(not can_mount(), reason="needs mount namespaces")


def build(mount: str, definition: Definition, *steps: Solution | str) -> list[str]:
    """Build solutions, and run commands between them, with another file system mounted; returns a line a build."""
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", f'{mount} && exec "$@"', "sh", sys.executable, "-c", CHILD],
        input="\0".join([format_json(definition), *(s if isinstance(s, str) else format_json(s) for s in steps)]),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("size_kib", [4, 28])
def test_a_full_disk_names_the_variable_and_leaves_nothing_that_is_loaded(
    definition: Definition, fast_cpp: MakeSolution, cache_path: Path, size_kib: int
) -> None:
    cache_path.mkdir()
    mount = f"mount -t tmpfs -o size={size_kib}k none {cache_path}"

    [text] = build(mount, definition, fast_cpp())
    assert "set FIB_CACHE_PATH to a writable folder with free space" in text


@pytest.mark.parametrize("language", ["cpp", "python"])
def test_a_read_only_cache_serves_what_it_holds(
    definition: Definition, fast_cpp: MakeSolution, make_solution: MakeSolution, cache_path: Path, language: str
) -> None:
    cache_path.mkdir()
    text = "def run(x):\n    return x\n"
    known, new = (fast_cpp(1), fast_cpp(2)) if language == "cpp" else (make_solution(text), make_solution(text + "#"))
    mount, read_only = f"mount --bind {cache_path} {cache_path}", f"mount -o remount,ro,bind {cache_path}"

    first, cached, text = build(mount, definition, known, read_only, known, new)
    assert (first, cached) == ("built", "built")
    assert "Read-only file system; set FIB_CACHE_PATH" in text
