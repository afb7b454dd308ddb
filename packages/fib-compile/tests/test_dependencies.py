"""Dependencies resolve to headers and libraries, or raise with the missing package."""

from pathlib import Path

import pytest
import torch
from compile_samples import ADD_ONE, make_solution
from fib_compile import BuilderRegistry, BuildError, PythonBuilder, TorchBuilder, TVMFFIBuilder

CUTLASS = """
#include <cutlass/version.h>
extern "C" int __tvm_ffi_run() { return CUTLASS_MAJOR; }
"""


@pytest.fixture
def cutlass(tmp_path, monkeypatch):
    """A folder that looks like CUTLASS's."""
    header = tmp_path / "cutlass" / "include" / "cutlass" / "version.h"
    header.parent.mkdir(parents=True)
    header.write_text("#define CUTLASS_MAJOR 4\n#define CUTLASS_MINOR 2\n#define CUTLASS_PATCH 1\n")
    monkeypatch.setenv("CUTLASS_PATH", str(tmp_path / "cutlass"))
    return header


def build(*names):
    solution = make_solution(CUTLASS, language="cpp", dependencies=names)
    return str(TVMFFIBuilder().build(ADD_ONE, solution).metadata.misc["library"])


def test_an_unknown_dependency_lists_the_known_ones():
    with pytest.raises(BuildError, match=r"'boost' is unknown \(known: cublas, cudnn, cutlass, torch, triton\)"):
        build("boost")


def test_headers_are_found(cutlass):
    assert Path(build("CUTLASS >= 4")).is_file()


def test_the_language_cutlass_implies_its_headers(cutlass):
    solution = make_solution({"kernel.cpp": CUTLASS}, language="cutlass")
    first = BuilderRegistry([PythonBuilder(), TVMFFIBuilder()]).build(ADD_ONE, solution).metadata.misc["library"]
    assert Path(first).is_file()
    cutlass.write_text(cutlass.read_text().replace("4", "5"))
    assert TVMFFIBuilder().build(ADD_ONE, solution).metadata.misc["library"] != first


def test_the_language_cutlass_without_headers_says_where_they_are_searched(cutlass, monkeypatch):
    monkeypatch.setenv("CUTLASS_PATH", "/nowhere")
    monkeypatch.setattr("fib_compile.toolchain.find_spec", lambda name: None)
    solution = make_solution({"kernel.cpp": CUTLASS}, language="cutlass")
    with pytest.raises(BuildError, match="set CUTLASS_PATH to a checkout, or install 'nvidia-cutlass'"):
        TVMFFIBuilder().build(ADD_ONE, solution)
    with pytest.raises(BuildError, match="set CUTLASS_PATH to a checkout, or install 'nvidia-cutlass'"):
        TorchBuilder().build(ADD_ONE, make_solution({"k.cpp": ""}, language="cutlass", binding="torch"))


def test_a_missing_cuda_library_names_its_package(monkeypatch):
    monkeypatch.setenv("CUDA_HOME", "/nowhere")
    monkeypatch.setattr("fib_compile.toolchain.find_spec", lambda name: None)
    with pytest.raises(BuildError, match=r"needs cublas_v2.h and libcublas.so.*install 'nvidia-cublas'"):
        build("cublas")


def test_a_missing_dependency_of_a_python_solution_is_named():
    text = "def run(x):\n    return x + 1\n"
    solution = make_solution(text, dependencies=("torch>=2.0", "attrs", "pytest"))
    assert torch.equal(PythonBuilder().build(ADD_ONE, solution)(torch.zeros(1, 4)), torch.ones(1, 4))
    with pytest.raises(BuildError, match="'no-such-thing' is not installed; install it: pip install no-such-thing"):
        PythonBuilder().build(ADD_ONE, make_solution(text, dependencies=("no-such-thing==1",)))
