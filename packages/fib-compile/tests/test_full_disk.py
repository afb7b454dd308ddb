"""A full or read-only cache is a clear error, and what is in a read-only cache can be used."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fib_schema import Definition, Solution, format_json

MakeSolution = Callable[..., Solution]

CHILD = """
import sys
from fib_compile import BuilderRegistry, BuildError
from fib_schema import Definition, Solution, parse_json

definition, solution = sys.stdin.read().split("\\0")
try:
    BuilderRegistry.get_instance().build(parse_json(definition, Definition), parse_json(solution, Solution))
    print("built")
except BuildError as error:
    print(error)
"""


def can_mount() -> bool:
    if not shutil.which("unshare"):
        return False
    command = ["unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


pytestmark = pytest.mark.skipif(not can_mount(), reason="needs mount namespaces")


def build(mount: str, definition: Definition, solution: Solution, **environment: str) -> str:
    """Build with another file system mounted."""
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", f'{mount} && exec "$@"', "sh", sys.executable, "-c", CHILD],
        input=f"{format_json(definition)}\0{format_json(solution)}",
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("size_kib", [4, 20, 28])
def test_a_full_disk_names_the_variable_and_leaves_nothing_that_is_loaded(
    definition: Definition, fast_cpp: MakeSolution, cache_path: Path, size_kib: int
) -> None:
    cache_path.mkdir()
    mount = f"mount -t tmpfs -o size={size_kib}k none {cache_path}"

    assert "set FIB_CACHE_PATH to a writable folder with free space" in build(mount, definition, fast_cpp())


def test_a_full_disk_stops_python_sources_too(
    definition: Definition, make_solution: MakeSolution, cache_path: Path
) -> None:
    cache_path.mkdir()
    solution = make_solution("def run(x):\n    return x\n" + "# comment\n" * 2000)

    text = build(f"mount -t tmpfs -o size=8k none {cache_path}", definition, solution)
    assert "set FIB_CACHE_PATH to a writable folder with free space" in text


@pytest.mark.parametrize("language", ["cpp", "python"])
def test_a_read_only_cache_serves_what_it_holds(
    definition: Definition, fast_cpp: MakeSolution, make_solution: MakeSolution, cache_path: Path, language: str
) -> None:
    cache_path.mkdir()
    text = "def run(x):\n    return x\n"
    known, new = (fast_cpp(1), fast_cpp(2)) if language == "cpp" else (make_solution(text), make_solution(text + "#"))
    read_only = f"mount --bind {cache_path} {cache_path} && mount -o remount,ro,bind {cache_path}"

    assert build("true", definition, known) == "built"
    assert build(read_only, definition, known) == "built"
    assert "Read-only file system; set FIB_CACHE_PATH" in build(read_only, definition, new)
