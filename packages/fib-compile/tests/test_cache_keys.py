"""Trials against the key of compiled libraries: whatever a compiler reads or runs makes another library."""

import os

import pytest
import torch
from compile_samples import ADD_ONE, FAST_CPP, make_solution
from fib_compile import BuildError, TVMFFIBuilder

X = torch.zeros(1, 4)


@pytest.fixture
def value():
    """The value that a fresh builder's library of a source adds; the source may use the macro ``KV``."""

    def build(head="", increment="KV", **fields):
        text = head + FAST_CPP.replace("INCREMENT", increment)
        solution = make_solution({"kernel.cpp": text}, language="cpp", dps=True, **fields)
        return float(TVMFFIBuilder().build(ADD_ONE, solution).call_value_returning(X)[0, 0])

    return build


def script(path, text):
    """An executable shell script, published by a rename as a package manager does."""
    temporary = path.with_name(f".{path.name}")
    temporary.write_text(f"#!/bin/sh\n{text}\n")
    temporary.chmod(0o755)
    temporary.replace(path)
    return path


def header(folder, number, name="kv.h"):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#define KV {number}\n")
    return path


INCLUDE = '#include "kv.h"\n'


def test_flags_inside_cxx(value, monkeypatch):
    for number in (1, 2, 3, 1):
        monkeypatch.setenv("CXX", f"c++ -DKV={number}")
        assert value() == number


@pytest.mark.parametrize("cache_only", [False, True])
def test_a_library_made_with_other_flags_is_not_used_without_a_compiler(value, monkeypatch, cache_only):
    monkeypatch.setenv("CXX", "c++ -DKV=1")
    value()
    monkeypatch.setenv("CXX", "c++ -DKV=2" if cache_only else "no-such-compiler -DKV=2")
    if cache_only:
        monkeypatch.setenv("FIB_CACHE_ONLY", "1")
    with pytest.raises(BuildError, match="holds no library that fits"):
        value()


@pytest.mark.parametrize("keeps_mtime", [False, True])
def test_a_changed_header_outside_the_sources(value, tmp_path, monkeypatch, keeps_mtime):
    monkeypatch.setenv("CPLUS_INCLUDE_PATH", str(tmp_path))
    path = header(tmp_path, 1)
    assert value(INCLUDE) == 1
    before = path.stat()
    header(tmp_path, 2)
    if keeps_mtime:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert value(INCLUDE) == 2


@pytest.mark.parametrize("condition", ["always", "only when it compiles"])
def test_a_changed_wrapper(value, tmp_path, monkeypatch, condition):
    monkeypatch.setenv("CXX", str(tmp_path / "wrapper"))
    for number in (1, 2):
        text = f'exec c++ -DKV={number} "$@"'
        if condition != "always":
            text = f'case "$*" in *" -c "*) {text};; esac\nexec c++ "$@"'
        script(tmp_path / "wrapper", text)
        assert value() == number


def test_a_variable_that_is_passed_on_request(value, tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", str(script(tmp_path / "wrapper", 'exec c++ -DKV="${MINE:-7}" "$@"')))
    monkeypatch.setenv("FIB_COMPILER_VARIABLES", "MINE OTHER")
    for number in (1, 2):
        monkeypatch.setenv("MINE", str(number))
        assert value() == number
