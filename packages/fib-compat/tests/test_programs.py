"""Programs that were written for flashinfer-bench run as they stand; `data.py` makes what the others read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"
Run = Callable[..., str]


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("compile", "refused: BuildError"),
        ("tracing", "[1, 3, 5, 8, 13]"),
        ("first_release", "[7, 9]"),
    ],
)
def test_a_program_runs(program: str, says: str, data_set: Path, run: Run) -> None:
    assert run(PROGRAMS / f"{program}.py", data_set) == says


def test_what_a_benchmark_measured_is_what_calls_are_routed_by(data_set: Path, run: Run) -> None:
    assert run(PROGRAMS / "bench.py", data_set) == "plain 2 of 2"
    assert run(PROGRAMS / "apply.py", data_set) == "3 calls of the fallback"


@pytest.mark.parametrize("program", sorted(PROGRAMS.glob("*.py")), ids=lambda path: path.stem)
def test_a_program_knows_nothing_but_the_old_names(program: Path) -> None:
    assert "fib_" not in program.read_text("utf-8")
