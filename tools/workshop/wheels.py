"""Build each wheel, install it alone into an empty environment, and run its tests there."""

import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from workshop.checkout import Checkout, Package, requirement_name
from workshop.environment import Environment, make_venv, pins, pip_install, prepare_hatch
from workshop.errors import Usage
from workshop.machine import find_host
from workshop.process import Console, record, run_logged
from workshop.summary import Outcome, passed_node_ids, pytest_outcome

# What tests may not see: sources above all.
_NOT_TESTS = ("src", "benchmarks", "changes", "pyproject.toml", "__pycache__")


@dataclass(frozen=True)
class Trial:
    """What to install into an empty environment, and whose tests to run there.

    Args:
        name: What the outcome, the environment and the logs are called.
        package: Whose tests run.
        wanted: What pip is told to install beside what the tests need.
        constraints: The pins that hold, as URIs.
    """

    name: str
    package: Package
    wanted: tuple[str, ...]
    constraints: tuple[str, ...]

    @property
    def slug(self) -> str:
        """The name as a file name."""
        return self.name.replace(" ", "-")

    def environment(self, checkout: Checkout) -> Environment:
        """Where it is installed."""
        return Environment(checkout.work / "trials" / self.slug)


def build_wheels(checkout: Checkout, console: Console, packages: Iterable[Package]) -> None:
    """Build wheels into `dist/`, in place of any older ones of the same packages."""
    for package in packages:
        for old in checkout.dist.glob(f"{package.name.replace('-', '_')}-*.whl"):
            old.unlink()
        with console.step(f"building {package.wheel_name}"):
            build(checkout, console, package.folder, "wheel", checkout.dist, log=f"build-{package.name}.log")


def build(checkout: Checkout, console: Console, source: Path, target: str, folder: Path, *, log: str) -> None:
    """Build the `wheel` or the `sdist` of the sources in one folder into another."""
    hatch = prepare_hatch(checkout, console, find_host(checkout))
    # The build back end itself: hatch would install another copy of it first.
    command = [hatch.python, "-m", "hatchling", "build", "--target", target, "--directory", str(folder)]
    run_logged("hatchling", command, log=checkout.logs / log, cwd=source, env=hatch.variables(os.environ))


def with_siblings(package: Package, packages: Sequence[Package]) -> tuple[Package, ...]:
    """A package and those of ours that it or its tests declare, directly or through another.

    Their wheels are named to pip one by one: no index can answer for a sibling, and one that is not declared is absent.
    """
    known = {sibling.name: sibling for sibling in packages}
    found = {package.name: package}
    waiting = [*package.requirements, *package.test_requirements]
    while waiting:
        name = requirement_name(waiting.pop())
        if name in known and name not in found:
            found[name] = known[name]
            waiting += known[name].requirements
    return tuple(found.values())


def check_wheels(
    checkout: Checkout, console: Console, packages: Iterable[Package], variables: Mapping[str, str]
) -> list[Outcome]:
    """Build every wheel, and test those of `packages`, each in an empty environment."""
    return [try_out(checkout, console, trial, variables) for trial in built_trials(checkout, console, packages)]


def built_trials(checkout: Checkout, console: Console, packages: Iterable[Package]) -> list[Trial]:
    """Build every wheel; returns what to test of `packages`."""
    build_wheels(checkout, console, checkout.packages)
    constraints = tuple(pins(checkout, find_host(checkout)))
    trials = []
    for package in packages:
        wheels = [str(checkout.dist / own.wheel_name) for own in with_siblings(package, checkout.packages)]
        trials.append(Trial(f"wheel {package.name}", package, tuple(wheels), constraints))
    return trials


def check_built_wheel(
    checkout: Checkout, console: Console, package: Package, folder: Path, variables: Mapping[str, str]
) -> Outcome:
    """Test the wheel that lies in `folder`. Its siblings come from pip's index, as they will for its users.

    Raises:
        Usage: The wheel is not there.
    """
    wheel = folder / package.wheel_name
    if not wheel.is_file():
        raise Usage(f"no {package.wheel_name} in {folder} (to build it: python tools/dev.py release {package.name})")
    constraints = tuple(pins(checkout, find_host(checkout)))
    return try_out(checkout, console, Trial(f"wheel {package.name}", package, (str(wheel),), constraints), variables)


def try_out(checkout: Checkout, console: Console, trial: Trial, variables: Mapping[str, str]) -> Outcome:
    """Install into an empty environment, test there, and remove it."""
    environment = trial.environment(checkout)
    with console.step(f"installing {trial.package.name} {trial.package.version} into an empty environment"):
        _install(checkout, trial, environment)
    with console.step(f"testing the installed {trial.package.name}"):
        outcome = _test(checkout, trial, environment, variables)
    shutil.rmtree(environment.folder, ignore_errors=True)
    return outcome


def _install(checkout: Checkout, trial: Trial, environment: Environment) -> None:
    make_venv(checkout, environment.folder, find_host(checkout))
    constraint = " ".join(trial.constraints) or None
    # Tests import a small part of torch: compiling all of it first takes longer than they do.
    wanted = ["--no-compile", *trial.wanted, *trial.package.test_requirements]
    pip_install(checkout, environment, wanted, log=f"install-{trial.slug}.log", constraint=constraint)


def _test(checkout: Checkout, trial: Trial, environment: Environment, variables: Mapping[str, str]) -> Outcome:
    """Run the tests from a copy outside the checkout, so that nothing but the wheel can be imported."""
    package = trial.package
    log = checkout.logs / f"{trial.slug}.log"
    with tempfile.TemporaryDirectory(prefix=f"{package.name}-") as name:
        copy = Path(name) / package.name
        shutil.copytree(package.folder, copy, ignore=shutil.ignore_patterns(*_NOT_TESTS))
        settings = ["-c", str(checkout.root / "pyproject.toml"), "--rootdir", str(copy), "-p", "no:cacheprovider"]
        what = ["--color=no", "-rap", "-m", "not slow", str(copy / "tests")]
        command = [environment.python, "-m", "pytest", *settings, *what]
        code = record(command, log=log, cwd=copy, env=environment.variables(variables))
    folder = package.folder.relative_to(checkout.root).as_posix()
    passed = tuple(f"{folder}/{name}" for name in passed_node_ids(log.read_text(errors="replace")))
    return replace(pytest_outcome(trial.name, code, log), passed_tests=passed)
