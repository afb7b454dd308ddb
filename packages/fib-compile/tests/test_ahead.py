"""Many solutions are built at once, in order, and nothing is raised."""

from __future__ import annotations

from collections.abc import Callable

from fib_compile import BuilderRegistry, PythonBuilder, TVMFFIBuilder
from fib_compile.ahead import BuildState
from fib_schema import Definition, Solution

MakeSolution = Callable[..., Solution]


def test_outcomes_come_in_the_order_of_the_pairs(
    definition: Definition, fast_cpp: MakeSolution, make_solution: MakeSolution
) -> None:
    registry = BuilderRegistry([PythonBuilder(), TVMFFIBuilder()])
    solutions = [
        make_solution("syntax error", language="cpp", name="broken"),
        fast_cpp(1, name="cpp"),
        make_solution("raise SystemExit", name="python"),
        make_solution("", language="triton", name="nobody's"),
    ]
    seen: list[str] = []
    pairs = [(definition, solution) for solution in solutions]
    outcomes = registry.build_many(pairs, jobs=2, on_done=lambda outcome: seen.append(outcome.solution.name))

    assert [outcome.solution for outcome in outcomes] == solutions
    assert [outcome.state for outcome in outcomes] == [
        BuildState.FAILED,
        BuildState.BUILT,
        BuildState.CACHED,
        BuildState.FAILED,
    ]
    assert sorted(seen) == sorted(solution.name for solution in solutions)
    assert "no builder for language 'triton'" in str(outcomes[3].error)
    assert [outcome.state for outcome in registry.build_many(pairs[1:2])] == [BuildState.CACHED]


def test_nothing_to_build_is_fine() -> None:
    assert BuilderRegistry([PythonBuilder()]).build_many([]) == []
