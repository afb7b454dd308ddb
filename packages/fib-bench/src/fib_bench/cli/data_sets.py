"""Commands about whole data sets: ``fib-bench validate``, ``migrate``, ``fetch`` and ``import``."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from fib_schema import BuildSpec, MigrationReport, TraceSet, migrate, validate
from fib_schema.command import add_data_set, data_set_of
from fib_schema.display import counted
from fib_schema.problems import problem_lines
from rich.console import Console

from .. import hub
from ..authoring.solutions import add_version, base_name, default_author
from .kernels import axes_of
from .options import add_command, add_json, set_command, set_help
from .output import output_console, print_done, print_json, say

if TYPE_CHECKING:
    from ..problem_import import ForeignProblem, Imported

_CASES = ("tests", "benchmarks")
_TRITON = re.compile(r"^\s*(import|from)\s+triton\b", re.MULTILINE)


def declare_validate(check: argparse.ArgumentParser) -> None:
    """Declare ``fib-bench validate``."""
    set_command(check, _validate)
    add_data_set(check, is_first=True)
    add_json(check)


def declare_migrate(older: argparse.ArgumentParser) -> None:
    """Declare ``fib-bench migrate``."""
    set_command(older, _migrate)
    older.add_argument("source", metavar="SRC", help="the data set to read; it is not changed")
    older.add_argument("target", metavar="DST", help="a folder that is new or empty")
    add_json(older)


def declare_import(problems: argparse.ArgumentParser) -> None:
    """Declare ``fib-bench import``."""
    set_help(problems, "Add problems of other benchmarks. Their files are executed: import what you trust.")
    formats = problems.add_subparsers(required=True, metavar="FORMAT")
    one = add_command(formats, "kernelbench", "a file with Model, get_inputs and get_init_inputs", _kernelbench)
    one.add_argument("problem", metavar="FILE", type=Path, help="the problem; it is executed")
    text = "keep the parameters that the seed makes: solutions may rearrange and know them"
    one.add_argument("--fixed-parameters", action="store_true", help=text)
    text = "which arguments of Model of robust-kbench's config_forward.json beside the file (default: 0)"
    one.add_argument("--configuration", metavar="N", type=int, default=0, help=text)
    _add_import(one)
    one = add_command(formats, "gpumode", "a folder with task.yml and reference.py", _gpumode)
    one.add_argument("problem", metavar="DIR", type=Path, help="the problem; its reference.py is executed")
    text = "the lists of the task that become workloads (default: both)"
    one.add_argument("--cases", nargs="+", choices=_CASES, default=list(_CASES), help=text)
    _add_import(one)
    one = add_command(formats, "solexecbench", "a folder with definition.json and workload.jsonl", _solexecbench)
    one.add_argument("problem", metavar="DIR", type=Path, help="the problem")
    _add_target(one)


def _validate(arguments: argparse.Namespace, errors: Console) -> int:
    """List all problems of a data set, each with its file, line and path.

    Problems are invalid records, unknown names, duplicate names and keys, workloads that contradict their definition,
    and missing blobs. Exits with 1 if there are errors; warnings do not count.

    Examples:
      fib-bench validate DIR
      fib-bench validate DIR --json | jq '.problems[].file'
    """
    del errors
    report = validate(data_set_of(arguments))
    if arguments.json:
        print_json(report.to_plain())
    else:
        say(output_console(), report.to_text())
    return 0 if report.is_ok else 1


def _migrate(arguments: argparse.Namespace, errors: Console) -> int:
    """Convert a data set of a legacy schema to the current one.

    Unreadable records are listed and left out. Exits with 1 if there are any, or if the result has errors.

    Examples:
      fib-bench migrate OLD NEW && fib-bench validate NEW
    """
    del errors
    report = migrate(arguments.source, arguments.target)
    if arguments.json:
        print_json(report.to_plain())
    else:
        _print_migration(output_console(), report)
    return 0 if report.is_ok else 1


def _print_migration(console: Console, report: MigrationReport) -> None:
    counts = ", ".join(counted(count, kind.removesuffix("s")) for kind, count in report.counts.items())
    say(console, f"{report.source} -> {report.target}: {counts}")
    for line in problem_lines(report.rejected):
        say(console, f"rejected: {line.removeprefix('error: ')}", "red")
    say(console, report.validation.to_text())


def declare_fetch(parser: argparse.ArgumentParser) -> None:
    """Declare ``fib-bench fetch``."""
    set_command(parser, _fetch)
    parser.add_argument("name", metavar="NAME", help=f"{', '.join(hub.DATA_SETS)}, or a repository OWNER/NAME")
    parser.add_argument("dir", metavar="DIR", nargs="?", type=Path, help="the data set (default: NAME without OWNER)")
    parser.add_argument("--op-types", nargs="+", metavar="NAME", default=[], help="only these op_types")
    parser.add_argument("--definitions", nargs="+", metavar="NAME", default=[], help="only these definitions")
    parser.add_argument("--no-blobs", dest="blobs", action="store_false", help="no stored tensors")
    parser.add_argument("--revision", metavar="REV", help="a branch, tag or commit (default: the newest)")
    parser.add_argument("--endpoint", metavar="URL", help="the address of the hub (default: that of huggingface_hub)")


def _fetch(arguments: argparse.Namespace, errors: Console) -> int:
    """Download a data set from a hub, or what is missing of one.

    The same command continues an interrupted download. A file that was changed here is never replaced; the exit code
    is 2 then. Needs the extra 'hub': pip install 'fib-bench[hub]'.

    Examples:
      fib-bench fetch flashinfer-trace
      fib-bench fetch flashinfer-trace data --op-types rmsnorm gemm
      fib-bench fetch flashinfer-trace --no-blobs       small; fib-bench run --synthesize-missing makes inputs
      fib-bench fetch OWNER/NAME data --revision v2 --endpoint http://127.0.0.1:8080
    """
    del errors
    folder: Path = arguments.dir or Path(arguments.name.rpartition("/")[2] or arguments.name)
    fetched = hub.fetch(
        arguments.name,
        folder,
        revision=arguments.revision,
        endpoint=arguments.endpoint,
        op_types=arguments.op_types,
        definitions=arguments.definitions,
        blobs=arguments.blobs,
    )
    following = f"fib-bench validate {shlex.quote(str(folder))}"
    text = f"{fetched.repository} at {fetched.revision[:12]}: {counted(fetched.files, 'file')} in {folder}"
    print_done(text, {}, following)
    return 0


def _add_target(parser: argparse.ArgumentParser) -> None:
    text = "the data set; made if it is missing (default: this folder)"
    parser.add_argument("--dataset", metavar="DIR", type=Path, default=Path(), help=text)
    parser.add_argument("--name", help="name of the definition (default: that of the problem)")
    parser.add_argument("--op-type", metavar="TYPE", help="kind of operation (default: that of the problem or format)")


def _add_import(parser: argparse.ArgumentParser) -> None:
    _add_target(parser)
    text = "a solution of the problem in its format, such as a file with ModelNew or custom_kernel"
    parser.add_argument("--solution", metavar="FILE", type=Path, action="append", default=[], help=text)
    parser.add_argument("--author", help="who wrote the solutions (default: your user name)")
    text = "devices of the solutions (default: cpu cuda)"
    parser.add_argument("--hardware", nargs="+", metavar="NAME", default=["cpu", "cuda"], help=text)


def _kernelbench(arguments: argparse.Namespace, errors: Console) -> int:
    """Add a problem of KernelBench: a Python file with a module Model, get_inputs and get_init_inputs.

    It becomes a definition with one workload. Parameters of the model become inputs, so that no solution can know them.
    In robust-kbench each input configuration of config_forward.json is a workload.

    A solution is a file with a module ModelNew that has the parameters of Model, unless --fixed-parameters keeps them.

    Examples:
      fib-bench import kernelbench level1/19_ReLU.py --dataset DIR
      fib-bench import kernelbench level1/19_ReLU.py --dataset DIR --solution model_new.py --author me
    """
    from ..problem_import import read_kernelbench

    found = read_kernelbench(
        arguments.problem,
        name=arguments.name,
        op_type=arguments.op_type or "kernelbench",
        fixed_parameters=arguments.fixed_parameters,
        configuration=arguments.configuration,
    )
    return _import(arguments, errors, found)


def _gpumode(arguments: argparse.Namespace, errors: Console) -> int:
    """Add a problem of GPU MODE: a folder with task.yml, and reference.py with generate_input and ref_kernel.

    It becomes a definition with a workload for each test and benchmark. Its tolerances go to the settings of the data
    set.

    A solution is a file with a function custom_kernel.

    Examples:
      fib-bench import gpumode problems/vectoradd_py --dataset DIR
      fib-bench import gpumode problems/vectoradd_py --dataset DIR --solution submission.py --cases tests
    """
    from ..problem_import import read_gpumode

    name, op_type = arguments.name, arguments.op_type or "gpumode"
    return _import(
        arguments, errors, read_gpumode(arguments.problem, name=name, op_type=op_type, cases=arguments.cases)
    )


def _solexecbench(arguments: argparse.Namespace, errors: Console) -> int:
    """Add a problem of SOL-ExecBench: a folder with definition.json and workload.jsonl.

    Its custom inputs are made in each run. The tolerances of its workloads go to the settings of the data set.

    Examples:
      fib-bench import solexecbench examples/triton/rmsnorm --dataset DIR
    """
    from ..problem_import import add_solexecbench

    root, name, op_type = arguments.dataset, arguments.name, arguments.op_type or "sol"
    root.mkdir(parents=True, exist_ok=True)
    _print_imported(arguments, errors, add_solexecbench(root, arguments.problem, name=name, op_type=op_type), [])
    return 0


def _import(arguments: argparse.Namespace, errors: Console, found: ForeignProblem) -> int:
    from ..problem_import import add_problem

    sources = {file: found.solution(file) for file in arguments.solution}  # errors come before anything is written
    root: Path = arguments.dataset
    root.mkdir(parents=True, exist_ok=True)
    imported = add_problem(root, found.problem)
    definition, names = imported.definition.name, []
    for file, files in sources.items():
        language = "triton" if any(_TRITON.search(source.content) for source in files) else "python"
        style, hardware = found.is_destination_passing, tuple(arguments.hardware)
        spec = BuildSpec(language, hardware, "main.py::run", destination_passing_style=style)
        author = arguments.author or default_author()
        names.append(
            add_version(root, definition, f"{definition}_{base_name(file)}", author, spec, files).solution.name
        )
    _print_imported(arguments, errors, imported, names)
    return 0


def _print_imported(arguments: argparse.Namespace, errors: Console, imported: Imported, solutions: list[str]) -> None:
    for note in imported.notes:
        say(errors, f"note: {note}", "yellow")
    definition, root = imported.definition, arguments.dataset
    following = f"fib-bench run {shlex.quote(str(root))} --definitions {definition.name}"
    following += "" if TraceSet.from_path(root).solution_names(definition.name) else " --reference-as-solution"
    fields = {
        "inputs": ", ".join(definition.inputs),
        "outputs": ", ".join(definition.outputs),
        "axes": axes_of(definition),
        "workloads": str(len(imported.workloads)),
        "solutions": ", ".join(solutions) or "none; --solution FILE adds one",
    }
    print_done(f"imported {definition.name}", fields, following)
