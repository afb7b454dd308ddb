"""Trials against the key of compiled libraries: whatever a compiler reads or runs makes another library."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from fib_compile import BuildError, TVMFFIBuilder
from fib_schema import CompileOptions, Definition, Solution

from .conftest import FAST_CPP

MakeSolution = Callable[..., Solution]
Value = Callable[..., float]
X = torch.zeros(1, 4)


@pytest.fixture
def value(definition: Definition, make_solution: MakeSolution) -> Value:
    """The value that a fresh builder's library of a source adds; the source may use the macro ``KV``."""

    def build(head: str = "", increment: str = "KV", **fields: object) -> float:
        text = head + FAST_CPP.replace("INCREMENT", increment)
        solution = make_solution({"kernel.cpp": text}, language="cpp", dps=True, **fields)
        return float(TVMFFIBuilder().build(definition, solution).call_value_returning(X)[0, 0])

    return build


def script(path: Path, text: str) -> Path:
    """An executable shell script, published by a rename as a package manager does."""
    temporary = path.with_name(f".{path.name}")
    temporary.write_text(f"#!/bin/sh\n{text}\n")
    temporary.chmod(0o755)
    temporary.replace(path)
    return path


def header(folder: Path, number: int, name: str = "kv.h") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#define KV {number}\n")
    return path


def archive(folder: Path, number: int, name: str = "libkv.a") -> Path:
    """A static library whose function ``kv`` returns a number."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "kv.c").write_text(f"int kv(void) {{ return {number}; }}\n")
    subprocess.run(["cc", "-fPIC", "-c", "kv.c", "-o", "kv.o"], cwd=folder, check=True)
    (folder / name).unlink(missing_ok=True)
    subprocess.run(["ar", "rcs", name, "kv.o"], cwd=folder, check=True)
    return folder / name


INCLUDE = '#include "kv.h"\n'
LINKED = CompileOptions(ldflags=("-lkv",))


def test_flags_inside_cxx(value: Value, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (1, 2, 3, 1):
        monkeypatch.setenv("CXX", f"c++ -DKV={number}")
        assert value() == number


@pytest.mark.parametrize("cache_only", [False, True])
def test_a_library_made_with_other_flags_is_not_used_without_a_compiler(
    value: Value, monkeypatch: pytest.MonkeyPatch, cache_only: bool
) -> None:
    monkeypatch.setenv("CXX", "c++ -DKV=1")
    value()
    monkeypatch.setenv("CXX", "c++ -DKV=2" if cache_only else "no-such-compiler -DKV=2")
    if cache_only:
        monkeypatch.setenv("FIB_CACHE_ONLY", "1")
    with pytest.raises(BuildError, match="holds no library that fits"):
        value()


@pytest.mark.parametrize("variable", ["CPLUS_INCLUDE_PATH", "CPATH"])
def test_search_paths_for_headers(value: Value, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    for number in (1, 2):
        monkeypatch.setenv(variable, str(header(tmp_path / str(number), number).parent))
        assert value(INCLUDE) == number


@pytest.mark.parametrize("keeps_mtime", [False, True])
def test_a_changed_header_outside_the_sources(
    value: Value, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keeps_mtime: bool
) -> None:
    monkeypatch.setenv("CPLUS_INCLUDE_PATH", str(tmp_path))
    path = header(tmp_path, 1)
    assert value(INCLUDE) == 1
    before = path.stat()
    header(tmp_path, 2)
    if keeps_mtime:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert value(INCLUDE) == 2


@pytest.mark.parametrize("condition", ["always", "only when it compiles"])
def test_a_changed_wrapper(value: Value, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, condition: str) -> None:
    monkeypatch.setenv("CXX", str(tmp_path / "wrapper"))
    for number in (1, 2):
        text = f'exec c++ -DKV={number} "$@"'
        if condition != "always":
            text = f'case "$*" in *" -c "*) {text};; esac\nexec c++ "$@"'
        script(tmp_path / "wrapper", text)
        assert value() == number


def test_a_variable_that_a_wrapper_reads_does_not_reach_it(
    value: Value, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", str(script(tmp_path / "wrapper", 'exec c++ -DKV="${SECRET:-7}" "$@"')))
    for number in (1, 2):
        monkeypatch.setenv("SECRET", str(number))
        assert value() == 7


def test_a_variable_that_is_passed_on_request(value: Value, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", str(script(tmp_path / "wrapper", 'exec c++ -DKV="${MINE:-7}" "$@"')))
    monkeypatch.setenv("FIB_COMPILER_VARIABLES", "MINE OTHER")
    for number in (1, 2):
        monkeypatch.setenv("MINE", str(number))
        assert value() == number


def test_a_changed_static_library(value: Value, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIBRARY_PATH", str(tmp_path))
    for number in (1, 2):
        archive(tmp_path, number)
        assert value('extern "C" int kv(void);\n', "kv()", compile_options=LINKED) == number


def test_the_machine_is_part_of_the_key(
    definition: Definition, fast_cpp: MakeSolution, monkeypatch: pytest.MonkeyPatch
) -> None:
    def place() -> Path:
        return Path(TVMFFIBuilder().build(definition, fast_cpp()).metadata.misc["library"])

    here = place()
    target = "fib_compile._plan.machine"
    monkeypatch.setattr(target, lambda: "EM_AARCH64", raising=False)
    assert place().parent.parent != here.parent.parent


def test_a_killed_compiler_is_not_final(value: Value, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler's driver reports a killed program with its own exit code 1."""
    real = subprocess.run(["c++", "-print-prog-name=cc1plus"], capture_output=True, text=True, check=True).stdout
    broken = tmp_path / "broken"
    broken.touch()
    script(
        tmp_path / "cc1plus", f'case "$*" in *kernel*) [ -e {broken} ] && kill -9 $$;; esac\nexec {real.strip()} "$@"'
    )
    monkeypatch.setenv("CXX", f"c++ -DKV=1 -B{tmp_path}")
    with pytest.raises(BuildError, match="does not compile"):
        value()
    broken.unlink()
    assert value() == 1
