"""Builders of languages that are embedded in Python: what they take, and what they say is missing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
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
)
from fib_schema import Definition, Solution, SupportedLanguages

EMBEDDED = (TritonBuilder, TileLangBuilder, HelionBuilder, CuTileBuilder, CuteDSLBuilder)
MODULES = [("helion", HelionBuilder), ("cuda/tile", CuTileBuilder), ("cutlass/cute", CuteDSLBuilder)]
KERNELS = Path(__file__).parents[1] / "benchmarks" / "kernels"

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


@pytest.fixture
def only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Hide installed packages: afterwards only a package that is made here can be found."""

    def make(path: str) -> None:
        (tmp_path / path).mkdir(parents=True)
        (tmp_path / path / "__init__.py").write_text("raise RuntimeError('was imported')\n")

    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    for name in ("cuda", "cutlass", "helion"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return make


@pytest.mark.parametrize("kind", EMBEDDED)
def test_a_builder_takes_its_language_only(kind: type[PythonBuilder], make_solution: Callable[..., Solution]) -> None:
    taken = [one for one in SupportedLanguages if kind().can_build(make_solution("x = 1", language=one))]

    assert taken == [kind.language] == [kind.name]


def test_every_language_that_is_embedded_has_a_builder() -> None:
    assert {kind.language for kind in EMBEDDED} == {one for one in SupportedLanguages if one.is_embedded}


@pytest.mark.parametrize(("path", "kind"), MODULES)
def test_a_package_is_found_without_importing_it(
    path: str, kind: type[PythonBuilder], only: Callable[[str], None]
) -> None:
    assert not kind.is_available()
    only(path)
    assert kind.is_available()


@pytest.mark.usefixtures("only")
@pytest.mark.parametrize(
    ("language", "problem"),
    [
        ("helion", "helion is not installed; install 'fib-compile[helion]'"),
        ("cutile", "cuda.tile is not installed; install 'fib-compile[cutile]'"),
        ("cute_dsl", "cutlass.cute is not installed; install 'fib-compile[cute-dsl]'"),
    ],
)
def test_a_missing_package_is_named_with_the_remedy(
    language: str, problem: str, definition: Definition, make_solution: Callable[..., Solution]
) -> None:
    with pytest.raises(BuildError) as caught:
        BuilderRegistry([PythonBuilder()]).build(definition, make_solution("def run(x): ...", language=language))

    expected = f"no builder for language '{language}' (available: python; {language} is unavailable: {problem})"
    assert str(caught.value) == f"solution 'solution': {expected}"


def test_a_language_with_an_interpreter_switches_the_others_off(make_solution: Callable[..., Solution]) -> None:
    """Helion refuses to run where Triton's interpreter is switched on too."""
    variables = {one: interpreter_environment(make_solution("x = 1", language=one)) for one in SupportedLanguages}

    assert variables.pop("triton") == {"TRITON_INTERPRET": "1", "HELION_INTERPRET": "0"}
    assert variables.pop("helion") == {"TRITON_INTERPRET": "0", "HELION_INTERPRET": "1"}
    assert set(map(bool, variables.values())) == {False}


@pytest.mark.skipif(find_spec("helion") is None, reason="needs helion: pip install 'fib-compile[helion]'")
@pytest.mark.slow  # a process of its own imports torch and helion, which takes 5 s
def test_a_helion_kernel_runs_in_the_interpreter(
    make_solution: Callable[..., Solution], run_in_child: Callable[..., str]
) -> None:
    solution = make_solution(HELION, language="helion", dps=True)

    assert run_in_child(solution, **interpreter_environment(solution)) == "helion"
