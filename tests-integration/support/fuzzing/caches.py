"""Fuzzing of the build cache: damage between two builds. A build must never return a wrong library or foreign code.

A cache with three solutions is prepared once. Each case copies it, damages files and folders, and has a fresh
process build and call the solutions. Compilers are replaced by a script that copies libraries compiled before.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import marshal
import os
import random
import shutil
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bad_sets.healthy import definition, solution
from fib_schema import Definition, FibError, Solution
from fib_schema.codec import parse_json

from .mutations import apply_object, change_bytes, draw_bytes_change, object_names, read
from .targets import Finding

FACTORS = {"one": 1, "three": 3, "python": 1}
"""The solutions, and what each multiplies ``x * s`` by."""
_COMPILER = """#!/bin/sh
# Compiles by copying: objects are copies of sources, libraries come from a folder.
case " $* " in
  *" --version "*) exec c++ "$@" ;;
esac
out= in= headers= previous=
for word in "$@"; do
  case "$previous" in -o) out=$word ;; -MF) headers=$word ;; esac
  case "$word" in *.cpp|*.o) [ "$previous" = -o ] || in=$word ;; esac
  previous=$word
done
case " $* " in
  *" -c "*)
    cp "$in" "$out"
    [ -z "$headers" ] || echo "$out: $in" > "$headers" ;;
  *" -shared "*)
    library=one.so
    grep -q 'factor 3' "$in" && library=three.so
    cp "{folder}/$library" "$out" ;;
  *) exec c++ "$@" ;;
esac
"""


def records() -> tuple[Definition, dict[str, Solution]]:
    """The definition and the solutions, as an engine has read them."""
    found = {}
    for name, factor in FACTORS.items():
        language = "python" if name == "python" else "cpp"
        plain = solution(name, "keeper", language)
        if name == "python":
            plain["sources"] = [
                {"path": "main.py", "content": "from .part import scale\ndef run(x, s):\n    return scale(x, s)\n"},
                {"path": "part.py", "content": "def scale(x, s):\n    return x * s\n"},
            ]
        else:
            source = plain["sources"][0]
            source["content"] = source["content"].replace("* s;", f"* s * {factor};  // factor {factor}")
        found[name] = parse_json(json.dumps(plain), Solution)
    return parse_json(json.dumps(definition("keeper")), Definition), found


def prepare(folder: Path) -> None:
    """Build the solutions with the real compiler into ``folder/cache``, and write the compiler that copies."""
    os.environ["FIB_CACHE_PATH"] = str(folder / "cache")
    definition_record, solutions = records()
    if (pid := os.fork()) == 0:
        code = 1
        with contextlib.suppress(Exception):
            check(definition_record, solutions, must_build=True)
            code = 0
        os._exit(code)
    if os.waitpid(pid, 0)[1] != 0:
        raise RuntimeError("the solutions do not build")
    for library in sorted((folder / "cache").rglob("*.so")):
        name = "three" if _is_three(library) else "one"
        shutil.copy(library, folder / f"{name}.so")
    shutil.rmtree(folder / "cache")
    compiler = folder / "c++"
    compiler.write_text(_COMPILER.replace("{folder}", str(folder)))
    compiler.chmod(0o755)
    os.environ["CXX"] = str(compiler)
    if (pid := os.fork()) == 0:
        check(definition_record, solutions, must_build=True)
        os._exit(0)
    if os.waitpid(pid, 0)[1] != 0:
        raise RuntimeError("the solutions do not build with the compiler that copies")


def _is_three(library: Path) -> bool:
    import torch
    import tvm_ffi

    if (pid := os.fork()) == 0:
        y = torch.zeros(2)
        tvm_ffi.load_module(str(library))["run"](torch.ones(2), 1.0, y)
        os._exit(int(y[0].item()))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3


def check(definition_record: Definition, solutions: dict[str, Solution], *, must_build: bool) -> None:
    """Build and call all solutions.

    Raises:
        Finding: One returns what it must not, or does not build although it must.
    """
    import torch
    from fib_compile import BuilderRegistry

    x, registry = torch.ones(16), BuilderRegistry.get_instance()
    for name, item in solutions.items():
        try:
            result = registry.build(definition_record, item).call_value_returning(x, 2.0)
        except FibError as error:
            if must_build:
                raise Finding(f"{name} does not build from a damaged cache: {type(error).__name__}") from error
            continue
        if not torch.equal(result, torch.full((16,), 2.0 * FACTORS[name])):
            raise Finding(f"a wrong library or foreign code for {name}")


def draw(rng: random.Random) -> dict[str, Any]:
    """A random damage of the cache."""
    how = rng.choice(("bytes", "bytes", "object", "swap", "forge", "plant", "chmod", "remove"))
    change = draw_bytes_change(rng) if how == "bytes" else {}
    return change | {
        "do": how,
        "pick": rng.random(),
        "other": rng.random(),
        "object": rng.choice(object_names()),
        "mode": rng.choice((0, 0o444, 0o777)),
        "is_folder": rng.random() < 0.3,
    }


def apply(cache: Path, mutation: dict[str, Any]) -> None:
    """Damage the cache, or do nothing if the damage does not fit."""
    with contextlib.suppress(OSError, ValueError, IndexError, SyntaxError, struct.error):
        places = sorted(path for path in cache.rglob("*") if path.is_dir() == mutation["is_folder"])
        path = places[int(mutation["pick"] * len(places))]
        _APPLY[mutation["do"]](path, places[int(mutation["other"] * len(places))], mutation)


def _swap(path: Path, other: Path, _: dict[str, Any]) -> None:
    """Exchange two files or folders: what is valid elsewhere lies here."""
    kept = path.with_name(path.name + ".kept")
    path.rename(kept)
    other.rename(path)
    kept.rename(other)


def _forge(path: Path, _other: Path, _mutation: dict[str, Any]) -> None:
    """Replace code of Python solutions and its compiled form."""
    for file in (path if path.is_dir() else path.parents[1]).rglob("*.py*"):
        if file.suffix == ".py":
            file.write_text(read(file).decode().replace("x * s", "x * s * 99"))
        else:
            code = compile(
                "def scale(x, s):\n    return x * 99\ndef run(x, s):\n    return x * 99\n", str(file), "exec"
            )
            file.write_bytes(importlib.util.MAGIC_NUMBER + struct.pack("<I", 1) + bytes(8) + marshal.dumps(code))


def _plant(path: Path, _other: Path, _mutation: dict[str, Any]) -> None:
    """Put files beside those of the cache that Python would import."""
    folder = path if path.is_dir() else path.parent
    text = "def scale(x, s):\n    return x * 99\ndef run(x, s):\n    return x * 99\n"
    for name in ("__init__.py", "part/__init__.py", "main/__init__.py", "torch.py", "conftest.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        if not (folder / name).exists():
            (folder / name).write_text(text)


_APPLY: dict[str, Callable[[Path, Path, dict[str, Any]], None]] = {
    "bytes": lambda path, _, mutation: change_bytes(path, mutation),
    "object": lambda path, _, mutation: apply_object(path, mutation["object"]),
    "swap": _swap,
    "forge": _forge,
    "plant": _plant,
    "chmod": lambda path, _, mutation: path.chmod(mutation["mode"]),
    "remove": lambda path, *_: shutil.rmtree(path) if path.is_dir() else path.unlink(),
}


@contextmanager
def _copied(prepared: Path, folder: Path) -> Iterator[Path]:
    cache = folder / "cache"
    shutil.copytree(prepared / "cache", cache, symlinks=True)
    os.environ["FIB_CACHE_PATH"] = str(cache)
    yield cache


def run(prepared: Path, folder: Path, case: list[dict[str, Any]]) -> None:
    """Run one case below an empty folder.

    Raises:
        Finding: A solution returns what it must not, or damaged bytes prevent a build.
    """
    definition_record, solutions = records()
    with _copied(prepared, folder) as cache:
        for mutation in case:
            apply(cache, mutation)
        is_bytes = all(mutation["do"] in ("bytes", "remove", "swap") and not mutation["is_folder"] for mutation in case)
        check(definition_record, solutions, must_build=is_bytes)
