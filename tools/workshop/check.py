"""Everything that has to hold before a change is merged."""

import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from workshop.checkout import Checkout
from workshop.documents import docs_command
from workshop.environment import Environment
from workshop.errors import Missing, StepFailed
from workshop.process import Console, record
from workshop.summary import Outcome, explain, pytest_outcome, pytest_total, table
from workshop.wheels import check_wheels

TESTS_OF_THE_WHOLE = ("tools", "docs", "tests-integration")


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

    Each test runs once: from the wheel where that is enough, else from the sources. What needs many
    packages or much time runs beside the wheels, where there are processors for both.

    Returns:
        0 where everything passed, else 1.
    """
    begin = time.monotonic()
    steps = _Steps(checkout, console.shared(), environment, variables)
    outcomes = side_by_side([steps.wheels(), steps.from_sources()], os.cpu_count() or 1)
    outcomes.append(steps.rest(outcomes))
    for outcome in outcomes:
        if not outcome.passed:
            console.say(f"\n--- {outcome.name}: {outcome.log or ''}\n{explain(outcome)}")
    console.say("\n" + table(outcomes))
    console.say(pytest_total(outcomes, time.monotonic() - begin))
    return 0 if all(outcome.passed for outcome in outcomes) else 1


def side_by_side(lanes: Sequence[Iterable[Outcome]], most: int) -> list[Outcome]:
    """What the lanes come to, in their order, at most so many of them at a time.

    Ctrl-C, which their commands get as well, keeps them from beginning another step.
    """
    stopped = threading.Event()

    def drain(lane: Iterable[Outcome]) -> list[Outcome]:
        found = []
        for outcome in lane:
            found.append(outcome)
            if stopped.is_set():
                break
        return found

    with ThreadPoolExecutor(min(most, len(lanes))) as pool:
        futures = [pool.submit(drain, lane) for lane in lanes]
        try:
            return [outcome for future in futures for outcome in future.result()]
        except BaseException:
            stopped.set()
            raise


class _Steps:
    """The steps of a check, each of which has a log."""

    def __init__(
        self, checkout: Checkout, console: Console, environment: Environment, variables: Mapping[str, str]
    ) -> None:
        self._checkout = checkout
        self._console = console
        self._environment = environment
        self._variables = variables

    def wheels(self) -> Iterator[Outcome]:
        """The wheels' outcomes. A wheel that does not build or install must not hide what the tests said."""
        try:
            yield from check_wheels(self._checkout, self._console, self._checkout.packages, self._variables)
        except (Missing, StepFailed) as error:
            self._console.say(str(error))
            yield Outcome("wheels", False, str(error).splitlines()[0])

    def from_sources(self) -> Iterator[Outcome]:
        """What only reads the sources, and the tests that say nothing of a single wheel."""
        for name, command in static_steps(self._checkout, self._environment).items():
            log = self._log(name)
            yield Outcome(name, self._record(name, command) == 0, "", log)
        yield self._tests("tests of the whole", TESTS_OF_THE_WHOLE)
        yield self._tests("tests that take long", ["packages", "-m", "slow"])

    def rest(self, outcomes: Iterable[Outcome]) -> Outcome:
        """The tests that have not passed from a wheel: those that were skipped there, say."""
        passed = self._checkout.logs / "passed-from-wheels.txt"
        passed.write_text("".join(f"{name}\n" for outcome in outcomes for name in outcome.passed_tests))
        return self._tests("other tests", ["packages", "-m", "not slow", "--passed-before", str(passed)])

    def _tests(self, name: str, arguments: Sequence[str]) -> Outcome:
        command = pytest_command(self._environment, ["--color=no", "--durations=10", *arguments])
        return pytest_outcome(name, self._record(name, command), self._log(name))

    def _record(self, name: str, command: Sequence[str]) -> int:
        variables = self._environment.variables(self._variables)
        with self._console.step(name):
            return record(command, log=self._log(name), cwd=self._checkout.root, env=variables)

    def _log(self, name: str) -> Path:
        return self._checkout.logs / f"check-{name.replace(' ', '-')}.log"
