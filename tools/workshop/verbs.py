"""The verbs of `python tools/dev.py`."""

import shutil
import sys
from pathlib import Path

from workshop.bundle import DEFAULT_PYTHON, bundle
from workshop.changelog import fold_command
from workshop.check import check, pytest_command, types_command
from workshop.checkout import find_checkout
from workshop.documents import docs, pictures
from workshop.errors import Missing, StepFailed, Usage
from workshop.machine import ENVIRONMENT_FOLDERS
from workshop.process import INTERRUPTED, Console
from workshop.shipping import affected, artifacts, gate, lowest, release
from workshop.summary import conclude
from workshop.wheels import check_built_wheel, check_wheels
from workshop.workbench import Verb, Workbench, verb_parser

MADE_BY_TOOLS = (
    ".dev",
    *ENVIRONMENT_FOLDERS.values(),
    "dist",
    ".hypothesis",
    ".import_linter_cache",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
)


def demo(workbench: Workbench, arguments: list[str]) -> int:
    """Set everything up and run `fib-bench demo` with these arguments."""
    variables = workbench.variables()
    environment = workbench.environment()
    return workbench.foreground([[environment.program("fib-bench"), "demo", *arguments]], environment, variables)


def test(workbench: Workbench, arguments: list[str]) -> int:
    """Set everything up and run pytest with these arguments."""
    variables = workbench.variables()
    environment = workbench.environment()
    return workbench.foreground([pytest_command(environment, arguments)], environment, variables)


def setup(workbench: Workbench, arguments: list[str]) -> int:
    """Set everything up and do nothing else."""
    verb_parser("setup", setup).parse_args(arguments)
    workbench.console.say(f"ready: {workbench.environment().folder}")
    return 0


def lint(workbench: Workbench, arguments: list[str]) -> int:
    """Check style and format; `--fix` repairs what can be."""
    parser = verb_parser("lint", lint)
    parser.add_argument("--fix", action="store_true", help="change the files")
    fix = parser.parse_args(arguments).fix
    environment = workbench.environment()
    ruff = environment.program("ruff")
    checking, formatting = (["--fix"], []) if fix else ([], ["--check"])
    commands = [[ruff, "check", *checking, "."], [ruff, "format", *formatting, "."]]
    return workbench.foreground(commands, environment, workbench.checkout.variables())


def types(workbench: Workbench, arguments: list[str]) -> int:
    """Run mypy, strict, on every src/ and on the tools."""
    environment = workbench.environment()
    command = [*types_command(workbench.checkout, environment), *arguments]
    return workbench.foreground([command], environment, workbench.checkout.variables())


def imports(workbench: Workbench, arguments: list[str]) -> int:
    """Check which package may import which."""
    environment = workbench.environment()
    command = [environment.program("lint-imports"), "--no-cache", *arguments]
    return workbench.foreground([command], environment, workbench.checkout.variables())


def check_all(workbench: Workbench, arguments: list[str]) -> int:
    """Format, lint, types, import contracts, documentation, all tests, wheels: what has to hold before a merge."""
    verb_parser("check", check_all).parse_args(arguments)
    variables = workbench.variables()
    return check(workbench.checkout, workbench.console, workbench.environment(), variables)


_FROM = "build nothing: test the wheels that lie there, with the packages they declare from pip's index"


def wheels(workbench: Workbench, arguments: list[str]) -> int:
    """Build each wheel, install it into an empty environment and run its tests there."""
    parser = verb_parser("wheels", wheels)
    parser.add_argument("names", nargs="*", metavar="NAME", help="packages to test, all by default")
    parser.add_argument("--from", metavar="DIR", type=Path, dest="folder", help=_FROM)
    options = parser.parse_args(arguments)
    packages = workbench.checkout.named(options.names)
    context = (workbench.checkout, workbench.console)
    if options.folder is None:
        outcomes = check_wheels(*context, packages, workbench.variables())
    else:
        folder, variables = options.folder.resolve(), workbench.variables()
        outcomes = [check_built_wheel(*context, package, folder, variables) for package in packages]
    return conclude(workbench.console, outcomes)


def bench(workbench: Workbench, arguments: list[str]) -> int:
    """Run the scripts packages/NAME/benchmarks/bench_*.py; `fib-` may be left out of the name."""
    parser = verb_parser("bench", bench)
    parser.add_argument("name", metavar="NAME", help="a package")
    (package,) = workbench.checkout.named([parser.parse_args(arguments).name])
    scripts = sorted(package.folder.glob("benchmarks/bench_*.py"))
    if not scripts:
        raise Usage(f"{package.name} has no benchmarks (looked for benchmarks/bench_*.py in {package.folder})")
    variables = workbench.variables()
    environment = workbench.environment()
    return workbench.foreground([[environment.python, str(script)] for script in scripts], environment, variables)


def bundle_wheels(workbench: Workbench, arguments: list[str]) -> int:
    """Put our wheels, and what a bare GPU machine lacks, into a folder."""
    parser = verb_parser("bundle", bundle_wheels)
    parser.add_argument("folder", metavar="DIR", type=Path, help="made if absent")
    parser.add_argument("--python", default=DEFAULT_PYTHON, help="the Python there (default: %(default)s)")
    options = parser.parse_args(arguments)
    bundle(workbench.checkout, workbench.console, options.folder.resolve(), options.python)
    return 0


def changelog(workbench: Workbench, arguments: list[str]) -> int:
    """Fold a package's changelog fragments into its CHANGELOG.md; `--draft` only prints."""
    parser = verb_parser("changelog", changelog)
    parser.add_argument("name", metavar="NAME", help="a package")
    parser.add_argument("--draft", action="store_true", help="print, and change nothing")
    options = parser.parse_args(arguments)
    (package,) = workbench.checkout.named([options.name])
    environment = workbench.environment()
    command = fold_command(workbench.checkout, environment, package, draft=options.draft)
    return workbench.foreground([command], environment, workbench.checkout.variables())


def clean(workbench: Workbench, arguments: list[str]) -> int:
    """Remove everything that these verbs have made."""
    verb_parser("clean", clean).parse_args(arguments)
    for name in MADE_BY_TOOLS:
        folder = workbench.checkout.root / name
        if folder.exists():
            workbench.console.say(f"removing {folder}")
            shutil.rmtree(folder)
    return 0


VERBS: dict[str, Verb] = {
    "demo": demo,
    "test": test,
    "lint": lint,
    "types": types,
    "imports": imports,
    "check": check_all,
    "wheels": wheels,
    "bench": bench,
    "docs": docs,
    "pictures": pictures,
    "bundle": bundle_wheels,
    "changelog": changelog,
    "affected": affected,
    "lowest": lowest,
    "release": release,
    "artifacts": artifacts,
    "gate": gate,
    "setup": setup,
    "clean": clean,
}


def help_text() -> str:
    """One line for each verb."""
    lines = [f"  {verb:<10} {(function.__doc__ or '').splitlines()[0]}" for verb, function in VERBS.items()]
    return "\n".join(["usage: python tools/dev.py VERB [arguments]", "", *lines])


def run(arguments: list[str]) -> int:
    """Run one verb and return the exit code; what is missing is explained on standard error."""
    verb, rest = (arguments[0], arguments[1:]) if arguments else ("help", [])
    if verb in ("help", "-h", "--help"):
        print(help_text())
        return 0
    try:
        if verb not in VERBS:
            raise Usage(f"no verb {verb!r} (there are: {', '.join(VERBS)})")
        return VERBS[verb](Workbench(find_checkout(Path(__file__).parent), Console()), rest)
    except (Missing, StepFailed, Usage) as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
