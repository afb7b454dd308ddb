"""Native modules of other packages: compiled once, tried before they are published, failures recorded."""

import ctypes
import time
from concurrent.futures import ThreadPoolExecutor

import attrs
import pytest
from fib_compile import Limits
from fib_compile.native_module import ModuleNotBuilt, NativeModule, build_module

SOURCES = {"two.cpp": '#include "two.h"\nextern "C" int two() { return TWO; }\n', "two.h": "#define TWO 2\n"}
MODULE = NativeModule(name="two", sources=SOURCES, flags=("-shared", "-fPIC"))


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "modules"


def count_calls(folder, monkeypatch, action='exec c++ "$@"'):
    calls, program = folder / "calls", folder / "cxx"
    program.write_text(f'#!/bin/sh\ncase "$*" in *two.cpp*) echo call >> {calls}; {action};; *) exec c++ "$@";; esac\n')
    program.chmod(0o755)
    calls.touch()
    monkeypatch.setenv("CXX", str(program))
    return calls


def test_concurrent_builds_compile_once(folder, tmp_path, monkeypatch):
    calls = count_calls(tmp_path, monkeypatch)
    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(lambda _: build_module(MODULE, folder), range(4)))
    (library,) = found
    assert calls.read_text().splitlines() == ["call"]
    assert ctypes.CDLL(str(library)).two() == 2
    monkeypatch.setenv("CXX", "/nonexistent/c++")
    assert build_module(MODULE, folder) == library


@pytest.mark.parametrize(
    "data", [lambda data: data[:5000], lambda data: data[:-1] + b"x"], ids=["truncated", "changed"]
)
def test_a_damaged_file_is_built_again(folder, data):
    library = build_module(MODULE, folder)
    library.write_bytes(data(library.read_bytes()))
    assert ctypes.CDLL(str(build_module(MODULE, folder))).two() == 2


@pytest.mark.parametrize(
    "change",
    [
        {"name": "three"},
        {"abi": "other"},
        {"flags": ("-shared", "-fPIC", "-O2")},
        {"libraries": ("-ldl",)},
        {"sources": {**SOURCES, "two.h": "#define TWO 3\n"}},
    ],
)
def test_the_key_covers_all_that_decides(change):
    assert attrs.evolve(MODULE, **change).key != MODULE.key
    assert attrs.evolve(MODULE, paths=("-L/other",)).key == MODULE.key


def test_an_error_in_the_sources_is_recorded(folder, tmp_path, monkeypatch):
    calls = count_calls(tmp_path, monkeypatch)
    broken = attrs.evolve(MODULE, sources={"two.cpp": "#error no such thing\n"})
    for problem in ("no such thing", "known from an earlier build"):
        with pytest.raises(ModuleNotBuilt, match=problem):
            build_module(broken, folder)
    assert calls.read_text().splitlines() == ["call"]
    monkeypatch.setenv("CXX", "c++")  # another compiler may accept it
    with pytest.raises(ModuleNotBuilt, match="no such thing"):
        build_module(broken, folder)


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        (
            "import sys; sys.exit(f'{sys.argv[1][-6:]} is wrong')",
            "two: the self-test ended with code 1:\ntwo.so is wrong",
        ),
        ("import os; os.abort()", "two: the self-test ended with code -6"),
    ],
)
def test_a_module_that_fails_its_self_test_is_not_published(folder, tmp_path, monkeypatch, code, problem):
    calls = count_calls(tmp_path, monkeypatch)
    (tmp_path / "try_two.py").write_text(code)
    module = attrs.evolve(MODULE, self_test="try_two", self_test_environment={"PYTHONPATH": str(tmp_path)})
    for expected in (problem, "known from an earlier build; to try again, delete"):
        with pytest.raises(ModuleNotBuilt, match=expected):
            build_module(module, folder)
    assert calls.read_text().splitlines() == ["call"]
    (tmp_path / "try_two.py").write_text("import ctypes, sys; assert ctypes.CDLL(sys.argv[1]).two() == 2")
    assert build_module(attrs.evolve(module, abi="other"), folder).is_file()


def test_a_compiler_that_hangs_is_killed(folder, tmp_path, monkeypatch):
    count_calls(tmp_path, monkeypatch, "sleep 600")
    begin = time.monotonic()
    with pytest.raises(ModuleNotBuilt, match="killed after 1 s"):
        build_module(MODULE, folder, Limits(1.0))
    assert time.monotonic() - begin < 100
    assert not [path for path in folder.iterdir() if path.is_dir() and path.name.startswith(".")]
