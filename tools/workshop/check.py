"""Everything that has to hold before a change is merged."""

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeAlias

from workshop.checkout import Checkout
from workshop.documents import docs_command
from workshop.environment import Environment
from workshop.errors import Missing, StepFailed
from workshop.process import Console, record
from workshop.summary import Outcome, conclude, pytest_outcome, pytest_total
from workshop.wheels import Trial, built_trials, try_out

Step: TypeAlias = Callable[[], Outcome]
TESTS_OF_THE_WHOLE = ("docs", "tests-integration", "tools")
_MOST_AT_A_TIME = 2  # tests start processes and compilers of their own


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
    """Run all steps, whatever fails, and end with a line like pytest's own.

    Each test runs once: from the wheel where that is enough, else from the sources.

    Returns:
        0 where everything passed, else 1.
    """
    begin = time.monotonic()
    steps = _Steps(checkout, console, environment, variables)
    outcomes = side_by_side([*steps.tests(), *steps.wheels(), *steps.static()], os.cpu_count() or 1)
    outcomes.append(steps.rest(outcomes))
    code = conclude(console, outcomes)
    console.say(pytest_total(outcomes, time.monotonic() - begin))
    return code


def side_by_side(steps: Sequence[Step], most: int) -> list[Outcome]:
    """What the steps come to, in their order, of which at most so many go on at a time.

    On Ctrl-C, which their commands get as well, no other step is begun.
    """
    with ThreadPoolExecutor(min(most, _MOST_AT_A_TIME)) as pool:
        futures = [pool.submit(step) for step in steps]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


class _Steps:
    """The steps of a check, each of which has a log."""

    def __init__(
        self, checkout: Checkout, console: Console, environment: Environment, variables: Mapping[str, str]
    ) -> None:
        self._checkout = checkout
        self._console = console
        self._lines = console.shared()
        self._environment = environment
        self._variables = variables

    def wheels(self) -> list[Step]:
        """Wheels that are tested alone. One that does not build must not hide what the other steps say."""
        try:
            trials = built_trials(self._checkout, self._console, self._checkout.packages)
        except (Missing, StepFailed) as error:
            return [partial(self._broken, "wheels", error)]
        return [partial(self._try_out, trial) for trial in trials]

    def tests(self) -> list[Step]:
        """Tests that need many packages, and those of a package which take long."""
        together = [partial(self._tests, f"tests in {folder}", [folder]) for folder in TESTS_OF_THE_WHOLE]
        return [partial(self._tests, "tests that take long", ["packages", "-m", "slow"]), *together]

    def static(self) -> list[Step]:
        """What only reads the sources."""
        commands = static_steps(self._checkout, self._environment)
        return [partial(self._static, name, command) for name, command in commands.items()]

    def rest(self, outcomes: Iterable[Outcome]) -> Outcome:
        """The tests that have not passed from a wheel: those that were skipped there, say."""
        passed = self._checkout.logs / "passed-from-wheels.txt"
        passed.write_text("".join(f"{name}\n" for outcome in outcomes for name in outcome.passed_tests))
        return self._tests("other tests", ["packages", "-m", "not slow", "--passed-before", str(passed)])

    def _try_out(self, trial: Trial) -> Outcome:
        try:
            return try_out(self._checkout, self._lines, trial, self._variables)
        except (Missing, StepFailed) as error:
            return self._broken(trial.name, error)

    def _broken(self, name: str, error: Exception) -> Outcome:
        self._lines.say(str(error))
        return Outcome(name, False, str(error).splitlines()[0])

    def _static(self, name: str, command: Sequence[str]) -> Outcome:
        return Outcome(name, self._record(name, command) == 0, "", self._log(name))

    def _tests(self, name: str, arguments: Sequence[str]) -> Outcome:
        command = pytest_command(self._environment, ["--color=no", "--durations=10", *arguments])
        return pytest_outcome(name, self._record(name, command), self._log(name))

    def _record(self, name: str, command: Sequence[str]) -> int:
        variables = self._environment.variables(self._variables)
        with self._lines.step(name):
            return record(command, log=self._log(name), cwd=self._checkout.root, env=variables)

    def _log(self, name: str) -> Path:
        return self._checkout.logs / f"check-{name.replace(' ', '-')}.log"
