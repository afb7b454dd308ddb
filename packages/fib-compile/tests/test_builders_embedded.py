"""Builders of languages that are embedded in Python: what they take, and what they say is missing."""

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from compile_samples import ADD_ONE, make_solution, run_in_child
from fib_compile import (
    BuilderRegistry,
    BuildError,
    CuteDSLBuilder,
    CuTileBuilder,
    HelionBuilder,
    PythonBuilder,
    TileLangBuilder,
    TritonBuilder,
    interpreter_environment,
    jit_environment,
)
from fib_schema import SupportedLanguages

EMBEDDED = (TritonBuilder, TileLangBuilder, HelionBuilder, CuTileBuilder, CuteDSLBuilder)
MODULES = [
    ("helion", HelionBuilder),
    ("tilelang", TileLangBuilder),
    ("cuda/tile", CuTileBuilder),
    ("cutlass/cute", CuteDSLBuilder),
]

HELION = """
import helion
import helion.language as hl


@helion.kernel(config=helion.Config(block_sizes=[8, 4]))
def add_one(x, y):
    for rows, columns in hl.tile(x.shape):
        y[rows, columns] = x[rows, columns] + 1
    return y


def run(x, y):
    add_one(x, y)
"""


TRITON = """
import torch
import triton
import triton.language as tl


@triton.jit
def add_one(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)


def run(x, y):
    add_one[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), BLOCK=64)
"""

TILELANG = """
import tilelang
import tilelang.language as T
from tilelang.language.kernel import Kernel


@tilelang.jit(target="c")
def compiled(rows, columns):
    @T.prim_func
    def add_one(x: T.Tensor((rows, columns), "float32"), y: T.Tensor((rows, columns), "float32")):
        with Kernel(1) as _:
            for i, j in T.grid(rows, columns):
                y[i, j] = x[i, j] + T.float32(1)

    return add_one


def run(x, y):
    compiled(*x.shape)(x, y)
"""
TILELANG_ON_A_DEVICE = (
    TILELANG.replace('target="c"', 'target="cuda"')
    .replace("with Kernel(1)", "with T.Kernel(1, threads=128)")
    .replace("T.grid", "T.Parallel")
)


def needs(language):
    reason = f"needs {language}: pip install 'fib-compile[{language}]'"
    return pytest.mark.skipif(find_spec(language) is None, reason=reason)


@pytest.fixture
def only(tmp_path, monkeypatch):
    """Hide installed packages: afterwards only a package that is made here can be found."""

    def make(path):
        (tmp_path / path).mkdir(parents=True)
        (tmp_path / path / "__init__.py").write_text("raise RuntimeError('was imported')\n")

    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    for name in ("cuda", "cutlass", "helion", "tilelang"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return make


@pytest.mark.parametrize("kind", EMBEDDED)
def test_a_builder_takes_its_language_only(kind):
    taken = [one for one in SupportedLanguages if kind().can_build(make_solution("x = 1", language=one))]
    assert taken == [kind.language] == [kind.name]


def test_every_language_that_is_embedded_has_a_builder():
    assert {kind.language for kind in EMBEDDED} == {one for one in SupportedLanguages if one.is_embedded}


@pytest.mark.parametrize(("path", "kind"), MODULES)
def test_a_package_is_found_without_importing_it(path, kind, only):
    assert not kind.is_available()
    only(path)
    assert kind.is_available()


@pytest.mark.usefixtures("only")
@pytest.mark.parametrize(
    ("language", "problem"),
    [
        ("helion", "helion is not installed; install 'fib-compile[helion]'"),
        ("tilelang", "tilelang is not installed; install 'fib-compile[tilelang]'"),
        ("cutile", "cuda.tile is not installed; install 'fib-compile[cutile]'"),
        ("cute_dsl", "cutlass.cute is not installed; install 'fib-compile[cute-dsl]'"),
    ],
)
def test_a_missing_package_is_named_with_the_remedy(language, problem):
    with pytest.raises(BuildError) as caught:
        BuilderRegistry([PythonBuilder()]).build(ADD_ONE, make_solution("def run(x): ...", language=language))
    expected = f"no builder for language '{language}' (available: python; {language} is unavailable: {problem})"
    assert str(caught.value) == f"solution 'solution': {expected}"


def test_a_language_with_an_interpreter_switches_the_others_off():
    """Helion refuses to run where Triton's interpreter is switched on too."""
    variables = {one: interpreter_environment(make_solution("x = 1", language=one)) for one in SupportedLanguages}
    assert variables.pop("triton") == {"TRITON_INTERPRET": "1", "HELION_INTERPRET": "0"}
    assert variables.pop("helion") == {"TRITON_INTERPRET": "0", "HELION_INTERPRET": "1"}
    assert set(map(bool, variables.values())) == {False}


@pytest.mark.slow  # a process of its own imports torch and the language, which takes 5 s
@pytest.mark.parametrize(
    ("language", "kernel"),
    [
        pytest.param("helion", HELION, marks=needs("helion")),
        pytest.param("tilelang", TILELANG, marks=needs("tilelang")),
        pytest.param("triton", TRITON, marks=needs("triton")),
    ],
)
def test_a_kernel_runs_without_a_gpu(language, kernel):
    solution = make_solution(kernel, language=language, dps=True)
    environment = {**jit_environment(solution), **interpreter_environment(solution)}
    assert run_in_child(solution, **environment) == language


@pytest.mark.gpu
@pytest.mark.usefixtures("needs_gpu")
@pytest.mark.parametrize(
    ("language", "kernel", "variable"),
    [
        pytest.param("tilelang", TILELANG_ON_A_DEVICE, "TILELANG_CACHE_DIR", marks=needs("tilelang")),
        pytest.param("triton", TRITON, "TRITON_CACHE_DIR", marks=needs("triton")),
    ],
)
def test_a_kernel_compiles_and_runs_on_a_device(language, kernel, variable):
    solution = make_solution(kernel, language=language, dps=True)
    own_cache = jit_environment(solution)
    assert run_in_child(solution, device="cuda:0", **own_cache) == language
    assert any(Path(own_cache[variable]).iterdir())


def test_each_solution_has_folders_of_its_own(cache_path):
    first, second = (jit_environment(make_solution(f"# {n}")) for n in (1, 2))
    assert set(first) == set(second) >= {"TRITON_CACHE_DIR", "TILELANG_CACHE_DIR", "FLASHINFER_WORKSPACE_BASE"}
    assert first["TRITON_CACHE_AUTOTUNING"] == "1"
    folders = [{value for name, value in each.items() if name != "TRITON_CACHE_AUTOTUNING"} for each in (first, second)]
    assert not folders[0] & folders[1]
    assert all(Path(folder).is_relative_to(cache_path) for folder in folders[0])
    assert jit_environment(make_solution("# 1")) == first
