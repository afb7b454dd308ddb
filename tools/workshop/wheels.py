"""Build each wheel, install it alone into an empty environment, and run its tests there."""

import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from workshop.checkout import Checkout, Package, requirement_name
from workshop.environment import Environment, make_venv, pins, pip_install, prepare_hatch
from workshop.machine import find_host
from workshop.process import Console, record, run_logged
from workshop.summary import Outcome, pytest_outcome

# What tests may not see: sources above all.
_NOT_TESTS = ("src", "benchmarks", "changes", "pyproject.toml", "__pycache__")


def build_wheels(checkout: Checkout, console: Console, packages: Iterable[Package]) -> None:
    """Build wheels into `dist/`, in place of any older ones of the same packages."""
    hatch = prepare_hatch(checkout, console, find_host(checkout))
    for package in packages:
        for old in checkout.dist.glob(f"{package.name.replace('-', '_')}-*.whl"):
            old.unlink()
        # The build back end itself: hatch would install another copy of it first.
        command = [hatch.python, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(checkout.dist)]
        log = checkout.logs / f"build-{package.name}.log"
        with console.step(f"building {package.wheel_name}"):
            run_logged("hatchling", command, log=log, cwd=package.folder, env=hatch.variables(os.environ))


def with_siblings(package: Package, packages: Sequence[Package]) -> tuple[Package, ...]:
    """A package and those of ours that it declares, directly or through another.

    Their wheels are named to pip one by one: no index can answer for a sibling, and one that is not declared is absent.
    """
    known = {sibling.name: sibling for sibling in packages}
    found: dict[str, Package] = {}
    waiting = [package]
    while waiting:
        current = waiting.pop()
        found[current.name] = current
        names = [requirement_name(requirement) for requirement in current.requirements]
        waiting += [known[name] for name in names if name in known and name not in found]
    return tuple(found.values())


def check_wheels(
    checkout: Checkout, console: Console, packages: Iterable[Package], variables: Mapping[str, str]
) -> list[Outcome]:
    """Build every wheel, and test those of `packages`, each in an empty environment."""
    build_wheels(checkout, console, checkout.packages)
    return [_check_wheel(checkout, console, package, variables) for package in packages]


def _check_wheel(checkout: Checkout, console: Console, package: Package, variables: Mapping[str, str]) -> Outcome:
    environment = Environment(checkout.work / "wheels" / package.name)
    with console.step(f"installing {package.wheel_name} into an empty environment"):
        _install(checkout, package, environment)
    with console.step(f"testing the installed {package.name}"):
        outcome = _test(checkout, package, environment, variables)
    shutil.rmtree(environment.folder, ignore_errors=True)
    return outcome


def _install(checkout: Checkout, package: Package, environment: Environment) -> None:
    host = find_host(checkout)
    make_venv(checkout, environment.folder, host)
    wheels = [str(checkout.dist / own.wheel_name) for own in with_siblings(package, checkout.packages)]
    constraint = " ".join(pins(checkout, host)) or None
    # Tests import a small part of torch: compiling all of it first takes longer than they do.
    wanted = ["--no-compile", *wheels, *package.test_requirements]
    pip_install(checkout, environment, wanted, log=f"install-{package.name}.log", constraint=constraint)


def _test(checkout: Checkout, package: Package, environment: Environment, variables: Mapping[str, str]) -> Outcome:
    """Run the tests from a copy outside the checkout, so that nothing but the wheel can be imported."""
    log = checkout.logs / f"wheel-{package.name}.log"
    with tempfile.TemporaryDirectory(prefix=f"{package.name}-") as name:
        copy = Path(name) / package.name
        shutil.copytree(package.folder, copy, ignore=shutil.ignore_patterns(*_NOT_TESTS))
        settings = ["-c", str(checkout.root / "pyproject.toml"), "--rootdir", str(copy), "-p", "no:cacheprovider"]
        command = [environment.python, "-m", "pytest", "--color=no", "-m", "not slow", *settings, str(copy / "tests")]
        code = record(command, log=log, cwd=copy, env=environment.variables(variables))
    return pytest_outcome(f"wheel {package.name}", code, log)
