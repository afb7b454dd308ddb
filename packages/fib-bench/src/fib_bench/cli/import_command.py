"""Commands ``fib-bench import kernelbench`` and ``fib-bench import gpumode``: problems of other benchmarks."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from fib_schema import BuildSpec, TraceSet
from fib_schema.display import counted
from rich.console import Console

from ..authoring.solutions import add_version, base_name, default_author
from .help_pages import add_help
from .printing import output_console, print_json, safe_text

if TYPE_CHECKING:
    from ..problem_import import GpuModeTask, Imported, KernelBenchFile

_TRITON = re.compile(r"^\s*(import|from)\s+triton\b", re.MULTILINE)
_CASES = ("tests", "benchmarks")


def add_import(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``import``."""
    add_help(parser, "import")
    kinds = parser.add_subparsers(required=True, metavar="FORMAT")
    kernelbench = kinds.add_parser("kernelbench", help="a file with Model, get_inputs and get_init_inputs")
    add_help(kernelbench, "import kernelbench")
    kernelbench.add_argument("problem", metavar="FILE", type=Path, help="the problem; it is executed")
    gpumode = kinds.add_parser("gpumode", help="a folder with task.yml and reference.py")
    add_help(gpumode, "import gpumode")
    gpumode.add_argument("problem", metavar="DIR", type=Path, help="the problem; its reference.py is executed")
    text = "the lists of the task that become workloads (default: both)"
    gpumode.add_argument("--cases", nargs="+", choices=_CASES, default=list(_CASES), help=text)
    for each, read in ((kernelbench, _read_kernelbench), (gpumode, _read_gpumode)):
        _add_common(each)
        each.set_defaults(command=_import, read=read)


def _add_common(parser: argparse.ArgumentParser) -> None:
    text = "the data set; made if it is missing (default: this folder)"
    parser.add_argument("--dataset", metavar="DIR", type=Path, default=Path(), help=text)
    text = "a solution of the problem in its format, such as a file with ModelNew or custom_kernel"
    parser.add_argument("--solution", metavar="FILE", type=Path, action="append", default=[], help=text)
    parser.add_argument("--name", help="name of the definition (default: made of that of the file or folder)")
    parser.add_argument("--op-type", metavar="TYPE", help="kind of operation (default: the format)")
    parser.add_argument("--author", help="who wrote the solutions (default: your user name)")
    text = "draw all floating inputs as normal values, instead of recording those that are not"
    parser.add_argument("--random-inputs", action="store_true", help=text)
    text = "devices of the solutions (default: cpu cuda)"
    parser.add_argument("--hardware", nargs="+", metavar="NAME", default=["cpu", "cuda"], help=text)
    parser.add_argument("--json", action="store_true", help="print what was imported as JSON")


def _read_kernelbench(arguments: argparse.Namespace) -> KernelBenchFile:
    from ..problem_import import read_kernelbench

    op_type = arguments.op_type or "kernelbench"
    return read_kernelbench(arguments.problem, name=arguments.name, op_type=op_type)


def _read_gpumode(arguments: argparse.Namespace) -> GpuModeTask:
    from ..problem_import import read_gpumode

    op_type = arguments.op_type or "gpumode"
    return read_gpumode(arguments.problem, name=arguments.name, op_type=op_type, cases=arguments.cases)


def _import(arguments: argparse.Namespace, errors: Console) -> int:
    from ..problem_import import add_problem

    read: Callable[[argparse.Namespace], KernelBenchFile | GpuModeTask] = arguments.read
    found = read(arguments)
    sources = {file: found.solution(file) for file in arguments.solution}  # errors come before anything is written
    root: Path = arguments.dataset
    root.mkdir(parents=True, exist_ok=True)
    imported = add_problem(root, found.problem, random_inputs=arguments.random_inputs)
    names = []
    for file, files in sources.items():
        language = "triton" if any(_TRITON.search(source.content) for source in files) else "python"
        style = found.is_destination_passing
        spec = BuildSpec(language, tuple(arguments.hardware), "main.py::run", destination_passing_style=style)
        author = arguments.author or default_author()
        base = f"{imported.definition.name}_{base_name(file)}"
        names.append(add_version(root, imported.definition.name, base, author, spec, files).solution.name)
    for note in imported.notes:
        errors.print(safe_text(f"note: {note}", "yellow"), soft_wrap=True)
    _print(arguments, root, imported, names)
    return 0


def _print(arguments: argparse.Namespace, root: Path, imported: Imported, solutions: list[str]) -> None:
    definition, where = imported.definition, shlex.quote(str(root))
    has_solutions = bool(TraceSet.from_path(root).solution_names(definition.name))
    following = f"fib-bench run {where} --definitions {definition.name}"
    following += "" if has_solutions else " --reference-as-solution"
    if arguments.json:
        print_json({
            "definition": definition.name,
            "workloads": [workload.uuid for workload in imported.workloads],
            "recorded_bytes": imported.recorded_bytes,
            "solutions": solutions,
            "notes": list(imported.notes),
            "next": following,
        })  # fmt: skip
        return
    console = output_console()
    console.print(safe_text(f"imported {definition.name}", "green"), soft_wrap=True)
    sizes = ", ".join([*definition.var_axes, *(f"{name}={size}" for name, size in definition.const_axes.items())])
    rows = {
        "inputs": ", ".join(definition.inputs),
        "outputs": ", ".join(definition.outputs),
        "axes": sizes,
        "workloads": f"{len(imported.workloads)}, with {counted(imported.recorded_bytes, 'byte')} of recorded values",
        "solutions": ", ".join(solutions) or "none; --solution FILE adds one",
    }
    for title, value in rows.items():
        console.print(safe_text(f"  {title:12} {value}"), soft_wrap=True)
    console.print(safe_text(f"next: {following}"), soft_wrap=True)
