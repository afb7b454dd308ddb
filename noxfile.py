"""Nox sessions: the commands of `python tools/dev.py`. Their docstrings are what `python tools/dev.py help` lists."""

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import nox
from nox.command import CommandFailed

ROOT = Path(__file__).parent
sys.path.insert(0, str(ROOT / "tools"))

from devtools.environment import WORK, Environment, development, uses_uv  # noqa: E402
from devtools.repository import Package, affected_packages, changed_files, find_packages  # noqa: E402
from devtools.rules import commit_problems, release_problems  # noqa: E402
from devtools.size import check as check_sizes  # noqa: E402

nox.needs_version = ">=2026.10"
nox.options.default_venv_backend = "none"  # sessions share the development environment
nox.options.allow_parallel = True

DIST = ROOT / "dist"
SIBLINGS = WORK / "siblings.txt"  # constraints: other packages of ours come from `dist/`, not from an index
REPORTS = Path(os.environ.get("FIB_REPORTS", WORK / "reports"))
PARALLEL = ("-n", "auto", "--maxprocesses", "8", "--dist", "worksteal")


def packages_named(session: nox.Session, names: Sequence[str]) -> tuple[Package, ...]:
    """The packages of these names; an unknown one ends the session."""
    try:
        return find_packages(ROOT, names)
    except ValueError as error:
        session.error(str(error))


def pytest(session: nox.Session, environment: Environment, report: str, *arguments: str, **options: Any) -> None:
    """Run pytest with a JUnit report."""
    command = ["python", "-m", "pytest", f"--junitxml={REPORTS / report}.xml", *arguments]
    environment.run(session, *command, **options)


@nox.session
def setup(session: nox.Session) -> None:
    """Create or update the development environment, as every other command does first."""
    session.log(f"ready: {development(session).folder}")


@nox.session
def demo(session: nox.Session) -> None:
    """Run `fib-bench demo`."""
    development(session).run(session, "fib-bench", "demo", *session.posargs)


@nox.session
def test(session: nox.Session) -> None:
    """Run all tests but the slow ones in parallel. Arguments go to pytest: `test packages/fib-schema -k codec`."""
    pytest(session, development(session), "test", *PARALLEL, "-m", "not slow", *session.posargs)


@nox.session(tags=["check"])
def slow(session: nox.Session) -> None:
    """Run the tests that are marked slow. Arguments go to pytest."""
    arguments = [*PARALLEL, "-m", "slow", *session.posargs]
    pytest(session, development(session), "slow", *arguments, success_codes=[0, 5])  # 5: there are none


@nox.session(tags=["check"])
def lint(session: nox.Session) -> None:
    """Check style and format with ruff, and spelling with codespell; `--fix` corrects style and format."""
    environment, fix = development(session), "--fix" in session.posargs
    environment.run(session, "ruff", "check", *(["--fix"] if fix else []), ".")
    environment.run(session, "ruff", "format", *([] if fix else ["--check"]), ".")
    environment.run(session, "codespell")


@nox.session(tags=["check"])
def types(session: nox.Session) -> None:
    """Check types with mypy."""
    sources = [str(package.sources.parent) for package in find_packages(ROOT)]
    development(session).run(session, "mypy", *sources, "tools/dev.py", "tools/evidence.py", "noxfile.py")


@nox.session(tags=["check"])
def imports(session: nox.Session) -> None:
    """Check with import-linter which modules may import which."""
    development(session).run(session, "lint-imports", "--no-cache")


@nox.session(tags=["check"])
def docs(session: nox.Session) -> None:
    """Build the documentation; warnings are errors. `--links` also checks links to other sites."""
    for builder in ["html", "linkcheck"] if "--links" in session.posargs else ["html"]:
        options = ["-n", "-W", "--keep-going", "-q", "-b", builder, "-d", str(WORK / "docs" / "doctrees")]
        development(session).run(session, "sphinx-build", *options, "docs", str(WORK / "docs" / builder))


@nox.session(tags=["check"])
def size(session: nox.Session) -> None:
    """Print the sizes of the packages; fails where `tools/size_budget.toml` has a lower limit."""
    table, problems = check_sizes(ROOT)
    print(table, flush=True)
    if problems:
        session.error("\n".join(problems))


@nox.session(tags=["check"])
def commits(session: nox.Session) -> None:
    """Check the subjects of commits: imperative, at most 72 characters."""
    if problems := commit_problems(ROOT):
        session.error("\n".join(problems))


def build(session: nox.Session, packages: Sequence[Package], *options: str) -> None:
    """Build packages into `dist/NAME/` and check the files."""
    environment = development(session)
    for package in packages:
        folder = DIST / package.name
        shutil.rmtree(folder, ignore_errors=True)
        command = ["python", "-m", "build", "--no-isolation", *options, "--outdir", str(folder), str(package.folder)]
        environment.run(session, *command, silent=True)
        # W002, W004: sources of kernels are data, which may be equal and need not be importable.
        # W102: data of a wheel may lie beside the sources.
        compare = ["--ignore", "W002,W004,W102", "--package", str(package.sources)]
        environment.run(session, "check-wheel-contents", *compare, str(folder / package.wheel))
    files = [str(path) for package in packages for path in (DIST / package.name).iterdir()]
    environment.run(session, "twine", "check", "--strict", *files)


def constrain(packages: Iterable[Package]) -> list[str]:
    """The options with which these packages are installed from `dist/`."""
    lines = [f"{package.name} @ {(DIST / package.name / package.wheel).as_uri()}\n" for package in packages]
    SIBLINGS.write_text("".join(lines))
    return ["--constraint", str(SIBLINGS)]


def test_installed(session: nox.Session, environment: Environment, package: Package, report: str, tests: str) -> None:
    """Run tests of a package from a copy outside of the repository: only what is installed can be imported."""
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name) / package.name
        shutil.copytree(package.folder, copy, ignore=shutil.ignore_patterns("src", "pyproject.toml", "__pycache__"))
        shutil.copy2(ROOT / "conftest.py", name)
        settings = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", name, "-p", "no:cacheprovider"]
        with session.chdir(copy):
            pytest(session, environment, report, *settings, "-m", "not slow", tests)


def try_wheel(session: nox.Session, package: Package, wheel: Path, *pins: str) -> None:
    """Install a wheel into an isolated test environment, import all modules, run the README's examples."""
    environment = Environment(WORK / "environments" / package.name)
    environment.create(session)
    environment.install(session, *pins, str(wheel.resolve()))
    environment.run(session, "python", "tools/tests/import_all.py", package.name, package.sources.name)
    environment.install(session, *pins, *package.test_requirements)  # only now: they may hide a missing dependency
    test_installed(session, environment, package, f"wheels-{package.name}", "tests/test_readme.py")
    shutil.rmtree(environment.folder)


@nox.session(tags=["check"])
def wheels(session: nox.Session) -> None:
    """Build, check and try each wheel alone: `wheels [NAME ...]`; `wheels NAME --from DIR` tries one from there."""
    names, _, folder = " ".join(session.posargs).partition("--from ")
    failed, pins = [], []
    if not folder:
        build(session, find_packages(ROOT), "--wheel")
        pins = constrain(find_packages(ROOT))
    for package in packages_named(session, names.split()):
        try:
            try_wheel(session, package, Path(folder or DIST / package.name) / package.wheel, *pins)
        except CommandFailed:
            failed.append(package.name)
    if failed:
        session.error(f"failed: {', '.join(failed)}")


@nox.session
def lowest(session: nox.Session) -> None:
    """Run the tests of packages with the lowest versions that they declare, except of torch: `lowest NAME`."""
    if not uses_uv():
        session.error("the lowest versions are resolved by uv, which could not be installed or has failed here")
    build(session, find_packages(ROOT), "--wheel")
    for package in packages_named(session, session.posargs):
        # A sibling that is declared in an older version than the one here comes from the index.
        pins = constrain(sibling for sibling in find_packages(ROOT) if sibling.is_lowest_for(package))
        environment = Environment(WORK / "environments" / f"lowest-{package.name}")
        environment.create(session)
        manifest = str(package.folder / "pyproject.toml")
        tested = {extra for name, own in package.requirements if name == package.name for extra in own.extras}
        extras = [f"--extra={extra}" for extra in sorted(tested)]
        environment.install(session, *pins, "--resolution", "lowest-direct", "--requirement", manifest, *extras)
        environment.install(session, *pins, str(DIST / package.name / package.wheel), *package.test_requirements)
        test_installed(session, environment, package, f"lowest-{package.name}", "tests")


@nox.session
def bench(session: nox.Session) -> None:
    """Run packages/NAME/benchmarks/bench_*.py: `bench NAME`."""
    for package in packages_named(session, session.posargs):
        for script in sorted(package.folder.glob("benchmarks/bench_*.py")):
            development(session).run(session, "python", str(script))


@nox.session
def pictures(session: nox.Session) -> None:
    """Make the pictures of the README from the data set of `demo`: `pictures [DIR]`."""
    development(session).run(session, "python", "docs/make_pictures.py", *session.posargs)


@nox.session
def bundle(session: nox.Session) -> None:
    """Collect wheels for a GPU machine without a network: `bundle DIR [PYTHON [serve]]`, PYTHON such as 3.12.

    All that our packages and their tests need; with `serve` only what fib-serve needs.
    """
    folder, version = Path(session.posargs[0]).resolve(), (*session.posargs[1:2], "3.12")[0]
    listed = "-".join(("tools/bundle", *session.posargs[2:]))
    build(session, find_packages(ROOT), "--wheel")
    folder.mkdir(parents=True, exist_ok=True)
    for package in find_packages(ROOT):
        shutil.copy2(DIST / package.name / package.wheel, folder)
    # A wheel names the oldest glibc that it supports; pip does not derive older tags for another machine.
    glibc = ("_2_28", "_2_27", "_2_24", "_2_17", "2014", "1")
    platforms = [part for tag in glibc for part in ("--platform", f"manylinux{tag}_x86_64")]
    target = ["--no-deps", "--only-binary=:all:", "--implementation", "cp", "--python-version", version, *platforms]
    command = [sys.executable, "-m", "pip", "download", "--quiet", *target, "--dest", str(folder)]
    session.run(*command, "--requirement", f"{listed}.txt")
    session.log(f"install there: python{version} -m pip install --no-index --no-deps {folder.name}/*.whl")


@nox.session
def release(session: nox.Session) -> None:
    """Check that a package can be released, and build it: `release NAME`, or `release TAG` for a tagged commit."""
    (wanted,) = session.posargs
    (package,) = packages_named(session, [wanted.rpartition("-v")[0] or wanted])
    if problems := "\n".join(release_problems(ROOT, package, wanted if "-v" in wanted else None)):
        session.error(problems)
    build(session, [package])
    write_outputs(session, {"package": package.name})


@nox.session
def affected(session: nox.Session) -> None:
    """List the packages that a change affects: `affected [BASE]`, BASE a commit or branch."""
    names = affected_packages(find_packages(ROOT), changed_files(ROOT, (*session.posargs, "origin/main")[0]))
    tests = [*(f"packages/{name}" for name in names), "docs", "tests-integration", "tools"]
    write_outputs(session, {"packages": json.dumps(names), "tests": json.dumps(tests)})


def write_outputs(session: nox.Session, values: dict[str, str]) -> None:
    """Print values, and hand them to later jobs of a workflow."""
    lines = [f"{name}={value}" for name, value in values.items()]
    session.log("\n".join(lines))
    if "GITHUB_OUTPUT" in os.environ:
        with Path(os.environ["GITHUB_OUTPUT"]).open("a") as file:
            file.writelines(f"{line}\n" for line in lines)
