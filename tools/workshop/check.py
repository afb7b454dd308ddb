"""Everything that has to hold before a change is merged."""

from collections.abc import Mapping, Sequence

from workshop.checkout import Checkout
from workshop.documents import docs_command
from workshop.environment import Environment
from workshop.errors import Missing, StepFailed
from workshop.process import Console, record
from workshop.summary import Outcome, explain, pytest_outcome, pytest_summary, table
from workshop.wheels import check_wheels


def static_steps(checkout: Checkout, environment: Environment) -> dict[str, list[str]]:
    """The steps that only read the sources, each as a command."""
    return {
        "format": [environment.program("ruff"), "format", "--check", "."],
        "lint": [environment.program("ruff"), "check", "."],
        "types": types_command(checkout, environment),
        "imports": [environment.program("lint-imports"), "--no-cache"],
        "docs": docs_command(checkout, environment),
    }


def types_command(checkout: Checkout, environment: Environment) -> list[str]:
    """Mypy on every `src/` and on the tools; the settings are in the root manifest."""
    sources = [str(folder.relative_to(checkout.root)) for folder in sorted(checkout.root.glob("packages/*/src"))]
    return [environment.program("mypy"), *sources, "tools/dev.py", "tools/workshop"]


def pytest_command(environment: Environment, arguments: Sequence[str]) -> list[str]:
    """Pytest in the development environment."""
    return [environment.python, "-m", "pytest", *arguments]


def check(checkout: Checkout, console: Console, environment: Environment, variables: Mapping[str, str]) -> int:
    """Run all steps, whatever fails, and end with pytest's own summary line.

    Returns:
        0 where everything passed, else 1.
    """
    outcomes = [
        _run(checkout, console, environment, name, command, variables)
        for name, command in static_steps(checkout, environment).items()
    ]
    outcomes.append(tests := _run(checkout, console, environment, "tests", _tests(environment), variables))
    outcomes += _wheels(checkout, console, variables)
    for outcome in outcomes:
        if not outcome.passed:
            console.say(f"\n--- {outcome.name}: {outcome.log or ''}\n{explain(outcome)}")
    console.say("\n" + table(outcomes))
    console.say(_last_line(tests))
    return 0 if all(outcome.passed for outcome in outcomes) else 1


def _tests(environment: Environment) -> list[str]:
    return pytest_command(environment, ["--color=no", "--durations=10"])


def _run(
    checkout: Checkout,
    console: Console,
    environment: Environment,
    name: str,
    command: Sequence[str],
    variables: Mapping[str, str],
) -> Outcome:
    log = checkout.logs / f"check-{name}.log"
    with console.step(name):
        code = record(command, log=log, cwd=checkout.root, env=environment.variables(variables))
    if name == "tests":
        return pytest_outcome(name, code, log)
    return Outcome(name, code == 0, "", log)


def _wheels(checkout: Checkout, console: Console, variables: Mapping[str, str]) -> list[Outcome]:
    """The wheels' outcomes. A wheel that does not build or install must not hide what the tests said."""
    try:
        return check_wheels(checkout, console, checkout.packages, variables)
    except (Missing, StepFailed) as error:
        console.say(str(error))
        return [Outcome("wheels", False, str(error).splitlines()[0])]


def _last_line(tests: Outcome) -> str:
    assert tests.log is not None
    summary = pytest_summary(tests.log.read_text(errors="replace"))
    return summary or f"no summary: pytest {tests.detail}"
