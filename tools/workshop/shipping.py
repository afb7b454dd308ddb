"""The verbs that integration and releases run; what a workflow does beside them, it does with its own services."""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path

from workshop.affected import find_affected
from workshop.archives import build_release
from workshop.candidate import Candidate, candidate_of_tag, describe
from workshop.changelog import fold_command, fragments
from workshop.checkout import Package
from workshop.gate import objections as gate_objections
from workshop.gate import parse_needs
from workshop.lowest import check_lowest, find_bounds
from workshop.release_rules import AT_TAG, BEFORE_TAG, objections
from workshop.requirements import parse_requirement
from workshop.summary import conclude
from workshop.workbench import Workbench, verb_parser


def affected(workbench: Workbench, arguments: list[str]) -> int:
    """Say which packages a change affects: those it touches, and all that depend on them."""
    parser = verb_parser("affected", affected)
    parser.add_argument("--base", metavar="REF", help="what to compare with (default: the main branch)")
    parser.add_argument("--json", action="store_true", help="print the names, and the folders of tests to run, as JSON")
    _add_output(parser)
    options = parser.parse_args(arguments)
    found = find_affected(workbench.checkout, options.base)
    if options.json:
        workbench.console.say(json.dumps(found.lists()))
    else:
        lines = [f"{name}: {reason}" for name, reason in found.reasons.items()]
        workbench.console.say("\n".join(lines or ["no package is affected"]))
    _write_outputs(options.output, {name: json.dumps(value) for name, value in found.lists().items()})
    return 0


def lowest(workbench: Workbench, arguments: list[str]) -> int:
    """Test a package against the oldest versions that it declares, in an environment of its own."""
    parser = verb_parser("lowest", lowest)
    parser.add_argument("name", metavar="NAME[EXTRA]", help="a package, with extras if they are to be tried as well")
    parser.add_argument("--all", action="store_true", help="take what tools/constraints.txt holds to its oldest, too")
    options = parser.parse_args(arguments)
    wanted = parse_requirement(options.name)
    (package,) = workbench.checkout.named([wanted.name])
    bounds = find_bounds(workbench.checkout, package, wanted.extras)
    variables = workbench.variables()
    outcome = check_lowest(workbench.checkout, workbench.console, bounds, variables, hold=not options.all)
    return conclude(workbench.console, [outcome])


def release(workbench: Workbench, arguments: list[str]) -> int:
    """Check that a package can be released, fold its changelog and build it; `--dry-run` folds nothing."""
    parser = verb_parser("release", release)
    parser.add_argument("name", metavar="NAME", help="a package")
    parser.add_argument("--dry-run", action="store_true", help="change nothing but dist/")
    options = parser.parse_args(arguments)
    checkout, console = workbench.checkout, workbench.console
    (package,) = checkout.named([options.name])
    candidate = Candidate(checkout, package)
    console.say(describe(candidate))
    objected = objections(candidate, BEFORE_TAG)
    only_show = options.dry_run or bool(objected)
    if fragments(package):
        objected += _fold(workbench, package, draft=only_show)
    objected += build_release(checkout, console, package)
    folded = f"commit and merge this, then: git tag {package.tag} && git push origin {package.tag}"
    shown = "nothing is in the way; without --dry-run the fragments are folded into CHANGELOG.md"
    return _conclude(workbench, objected, shown if only_show else folded)


def _fold(workbench: Workbench, package: Package, *, draft: bool) -> list[str]:
    environment = workbench.environment()
    command = fold_command(workbench.checkout, environment, package, draft=draft)
    code = workbench.foreground([command], environment, workbench.checkout.variables())
    return [f"towncrier ended with exit code {code}"] if code else []


def artifacts(workbench: Workbench, arguments: list[str]) -> int:
    """Build what a tag releases into dist/TAG/, after checking that tag, version and changelog agree."""
    parser = verb_parser("artifacts", artifacts)
    parser.add_argument("tag", metavar="TAG", help="such as fib-apply-v0.1.0")
    _add_output(parser)
    options = parser.parse_args(arguments)
    candidate = candidate_of_tag(workbench.checkout, options.tag)
    package = candidate.package
    objected = objections(candidate, AT_TAG) or build_release(workbench.checkout, workbench.console, package)
    if not objected:
        _write_outputs(options.output, {"package": package.name})
    return _conclude(workbench, objected, f"{package.tag}: tag, version and changelog agree")


def gate(workbench: Workbench, arguments: list[str]) -> int:
    """Fail unless every job of a workflow did its work."""
    parser = verb_parser("gate", gate)
    parser.add_argument("needs", metavar="JSON", help="the `needs` of the job that runs this")
    needs = parse_needs(parser.parse_args(arguments).needs)
    return _conclude(workbench, gate_objections(needs), f"passed: {', '.join(needs)}")


def _conclude(workbench: Workbench, objected: list[str], praise: str) -> int:
    workbench.console.say("\n" + "\n".join([f"in the way: {objection}" for objection in objected] or [praise]))
    return 1 if objected else 0


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", metavar="FILE", type=Path, help="append the results there, as NAME=VALUE")


def _write_outputs(file: Path | None, outputs: Mapping[str, str]) -> None:
    """Hand results to the later jobs of a workflow, in the form that its runner reads."""
    if file is not None:
        with file.open("a") as stream:
            stream.writelines(f"{name}={value}\n" for name, value in outputs.items())
