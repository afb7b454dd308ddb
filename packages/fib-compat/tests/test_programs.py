"""Programs that were written for flashinfer-bench run unchanged; `data.py` writes the data set of the others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"
Run = Callable[..., str]


def test_a_program_writes_a_data_set(run_program: Run, tmp_path: Path) -> None:
    assert run_program("data", tmp_path) == "2 workloads"


@pytest.mark.parametrize(
    ("program", "output"),
    [
        ("compile", "refused: BuildError"),
        ("tracing", "[1, 3, 5, 8, 13]"),
    ],
)
def test_a_program_runs(program: str, output: str, data_set: Path, run_program: Run) -> None:
    assert run_program(program, data_set) == output


@pytest.mark.slow
def test_calls_are_routed_by_the_results_of_a_benchmark(data_set: Path, run_program: Run) -> None:
    assert run_program("bench", data_set) == "plain 2 of 2"
    assert run_program("apply", data_set) == "3 calls of the fallback"


@pytest.mark.parametrize("program", sorted(PROGRAMS.glob("*.py")), ids=lambda path: path.stem)
def test_a_program_uses_only_the_old_names(program: Path) -> None:
    assert "fib_" not in program.read_text("utf-8")
