"""Commands ``fib-bench add``, ``edit`` and ``new``: solutions and definitions without writing JSON."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

import attrs
from fib_schema import (
    InvalidField,
    Solution,
    SourceFile,
    SupportedLanguages,
    Trace,
    TraceSet,
    UnknownName,
)
from rich.console import Console

from ..authoring.definitions import definition_from_reference, random_workload
from ..authoring.errors import KernelFileError
from ..authoring.inference import STYLES, Choices, InferredKernel, infer_kernel
from ..authoring.python_code import parse
from ..authoring.solutions import Added, add_version, base_name, default_author
from ..step_timer import StepTimer
from .data_set_option import add_data_set_option, data_set_of
from .help_pages import add_help
from .printing import output_console, print_json, safe_text
from .quick_runs import device_of, run_quickly
from .run_options import default_device

_STYLE_WORDS = {
    "destination": "destination: its outputs are arguments that it fills",
    "return": "return: it returns its outputs",
}
_OPTIONS = {"language": "--language", "entry point": "--entry", "style": "--style", "hardware": "--hardware"}
_EDITORS = ("sensible-editor", "nano", "vi")


def add_add(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``add``."""
    add_help(parser, "add")
    parser.add_argument("file", metavar="FILE", type=Path, help="a .py, .cu or .cpp file, or a folder of them")
    parser.add_argument("--name", help="name of the solution (default: that of the file)")
    parser.add_argument("--author", help="who wrote it (default: your user name)")
    add_kernel_options(parser)
    parser.add_argument("--quick", action="store_true", help="evaluate it at once on up to 3 workloads, unranked")
    parser.add_argument("--device", help="where --quick runs: cpu or cuda:N")
    parser.add_argument("--json", action="store_true", help="print what was added as JSON")
    parser.add_argument("-v", "--verbose", action="store_true", help="print the seconds of each phase of --quick")
    parser.set_defaults(command=_add)


def add_edit(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``edit``."""
    add_help(parser, "edit")
    parser.add_argument("solution", metavar="SOLUTION", help="its name")
    parser.add_argument("--author", help="author of the new version (default: your user name)")
    add_data_set_option(parser)
    parser.set_defaults(command=_edit)


def add_new(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``new definition``."""
    add_help(parser, "new")
    kinds = parser.add_subparsers(required=True, metavar="KIND")
    new = kinds.add_parser("definition", help="a definition from a Python reference")
    add_help(new, "new definition")
    new.add_argument("name", metavar="NAME", help="such as rmsnorm_h4096")
    new.add_argument("--reference", metavar="FILE", type=Path, required=True, help="a .py file with a function run")
    new.add_argument("--op-type", metavar="TYPE", help="kind of operation (default: NAME up to the first _)")
    new.add_argument("--description", metavar="TEXT", help="what it computes")
    for option, text in (
        ("--input", "type of a parameter, such as 'x: float32[rows, width]', in place of its annotation"),
        ("--output", "name and type of an output, in place of the annotation of the return value"),
    ):
        new.add_argument(option, metavar="'NAME: TYPE'", action="append", type=_named_type, default=[], help=text)
    new.add_argument(
        "--axis", metavar="NAME=N", action="append", type=_sizes, default=[], help="size of a constant axis"
    )
    new.add_argument(
        "--workload",
        metavar="NAME=N,...",
        action="append",
        type=_sizes,
        default=[],
        help="add a workload with these sizes and random inputs; may be given several times",
    )
    new.add_argument("--dataset", metavar="DIR", type=Path, default=Path(), help="the data set; made if it is missing")
    new.set_defaults(command=_new_definition)


def add_kernel_options(parser: argparse.ArgumentParser) -> None:
    """Declare the definition, the data set and what overrides inference."""
    parser.add_argument("--definition", metavar="NAME", required=True, help="what the kernel computes")
    add_data_set_option(parser)
    group = parser.add_argument_group("inferred from the file unless given")
    group.add_argument("--language", choices=[str(language) for language in SupportedLanguages])
    group.add_argument("--entry", metavar="FUNCTION", help="the function to call, or FILE::FUNCTION")
    group.add_argument("--style", choices=STYLES, help="whether outputs are arguments (destination) or returned")
    group.add_argument("--hardware", nargs="+", metavar="NAME", help="such as cpu, cuda or H100")


def choices_of(arguments: argparse.Namespace) -> Choices:
    """Decisions that the options of `add_kernel_options` state."""
    hardware = None if arguments.hardware is None else tuple(arguments.hardware)
    return Choices(language=arguments.language, entry_point=arguments.entry, style=arguments.style, hardware=hardware)


def _add(arguments: argparse.Namespace, errors: Console) -> int:
    steps = StepTimer()
    steps.finish("command")
    root = data_set_of(arguments)
    trace_set = TraceSet.from_path(root)
    definition = trace_set.get_definition(arguments.definition)
    kernel = infer_kernel(arguments.file, definition, choices_of(arguments))
    name, author = arguments.name or base_name(arguments.file), arguments.author or default_author()
    added = add_version(root, definition.name, name, author, kernel.spec, kernel.sources)
    following = _next_command(root, added.solution)
    plain = _plain(added, kernel, following) if arguments.json else None
    if plain is None:
        _print_added(output_console(), added, kernel)
    if arguments.quick:
        steps.finish("add")
        return run_quickly(
            root, added.solution, arguments.device, errors, plain, steps=steps if arguments.verbose else None
        )
    if plain is not None:
        print_json(plain)
        return 0
    output_console().print(safe_text(f"next: {following}"), soft_wrap=True)
    return 0


def _print_added(console: Console, added: Added, kernel: InferredKernel | None = None) -> None:
    solution = added.solution
    if not added.is_new:
        text = f"nothing added: {solution.name} of {solution.definition} has the same code and settings"
        console.print(safe_text(text, "yellow"), soft_wrap=True)
        return
    console.print(safe_text(f"added {solution.name} to {solution.definition}", "green"), soft_wrap=True)
    rows = {"file": str(added.path)}
    if kernel is not None:
        spec = kernel.spec
        values = (spec.language, spec.entry_point, _STYLE_WORDS[kernel.style], ", ".join(spec.target_hardware))
        for (title, option), value in zip(_OPTIONS.items(), values, strict=True):
            reason = kernel.reasons[title]
            rows[title] = f"{value}  ({reason if reason == 'as you said' else f'{reason}; {option} overrides'})"
    for title, value in rows.items():
        console.print(safe_text(f"  {title:12} {value}"), soft_wrap=True)


def _plain(added: Added, kernel: InferredKernel, following: str) -> dict[str, object]:
    spec = kernel.spec
    return {
        "solution": added.solution.name,
        "definition": added.solution.definition,
        "is_new": added.is_new,
        "file": None if added.path is None else str(added.path),
        "language": spec.language,
        "entry_point": spec.entry_point,
        "style": kernel.style,
        "hardware": list(spec.target_hardware),
        "reasons": kernel.reasons,
        "next": following,
    }


def _next_command(root: Path, solution: Solution) -> str:
    device = device_of(solution.spec)
    device = "" if device == default_device() else f" --device {device}"
    return f"fib-bench run {shlex.quote(str(root))} --solutions {solution.name} --quick{device}"


def _edit(arguments: argparse.Namespace, errors: Console) -> int:
    del errors
    root = data_set_of(arguments)
    trace_set = TraceSet.from_path(root)
    solution = trace_set.get_solution(arguments.solution)
    if solution is None:
        raise UnknownName("solution", arguments.solution, trace_set.solution_names())
    folder = Path(tempfile.mkdtemp(prefix=f"fib-edit-{solution.name[:40]}-"))
    try:
        _edit_in(folder, solution)
        sources = _read_back(folder, solution)
    except (KernelFileError, InvalidField):
        output_console().print(safe_text(f"your edit is kept in {folder}", "yellow"), soft_wrap=True)
        raise
    author = arguments.author or default_author()
    added = add_version(root, solution.definition, solution.name, author, solution.spec, sources)
    shutil.rmtree(folder)
    _print_added(output_console(), added)
    if added.is_new:
        output_console().print(safe_text(f"next: {_next_command(root, added.solution)}"), soft_wrap=True)
    return 0


def _edit_in(folder: Path, solution: Solution) -> None:
    """Open an editor on copies of the sources, the entry file first."""
    entry = solution.get_entry_path()
    files = []
    for source in sorted(solution.sources, key=lambda source: source.path != entry):
        file = folder / source.path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source.content, "utf-8")
        files.append(str(file))
    command = [*_editor(), *files]
    try:
        code = subprocess.run(command, check=False).returncode
    except OSError as error:
        raise KernelFileError(command[0], f"this editor does not start: {error.strerror}; set EDITOR") from error
    if code:
        raise KernelFileError(command[0], f"the editor ended with exit code {code}; nothing was added")


def _editor() -> list[str]:
    for variable in ("VISUAL", "EDITOR"):
        if words := shlex.split(os.environ.get(variable, "")):
            return words
    for name in _EDITORS:
        if found := shutil.which(name):
            return [found]
    raise KernelFileError("EDITOR", "is not set, and no editor is installed; set it, such as EDITOR=nano")


def _read_back(folder: Path, solution: Solution) -> tuple[SourceFile, ...]:
    sources = []
    for source in solution.sources:
        try:
            text = (folder / source.path).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise KernelFileError(source.path, f"cannot be read after the edit: {error}") from error
        edited = attrs.evolve(source, content=text)
        if source.path.endswith(".py"):
            parse(edited)
        sources.append(edited)
    return tuple(sources)


def _new_definition(arguments: argparse.Namespace, errors: Console) -> int:
    del errors
    definition = definition_from_reference(
        arguments.name,
        arguments.reference,
        op_type=arguments.op_type,
        axes={axis: size for sizes in arguments.axis for axis, size in sizes.items()},
        inputs=dict(arguments.input),
        outputs=dict(arguments.output),
        description=arguments.description,
    )
    workloads = [random_workload(definition, sizes) for sizes in arguments.workload]
    root: Path = arguments.dataset
    root.mkdir(parents=True, exist_ok=True)
    trace_set = TraceSet.from_path(root)
    trace_set.add_definitions([definition])
    trace_set.add_traces([Trace(definition.name, workload) for workload in workloads])
    console = output_console()
    console.print(safe_text(f"added definition {definition.name}", "green"), soft_wrap=True)
    rows = {
        "file": str(root / "definitions" / definition.op_type / f"{definition.name}.json"),
        "op_type": f"{definition.op_type}  (--op-type overrides)",
        "axes": ", ".join([*definition.var_axes, *(f"{n}={size}" for n, size in definition.const_axes.items())]),
        "workloads": str(len(workloads)) if workloads else "none yet; --workload adds one, and so does fib-tracer",
    }
    for title, value in rows.items():
        console.print(safe_text(f"  {title:12} {value}"), soft_wrap=True)
    where = shlex.quote(str(root))
    following = f"fib-bench add FILE --definition {definition.name} --dataset {where}"
    console.print(safe_text(f"next: {following}"), soft_wrap=True)
    return 0


def _named_type(text: str) -> tuple[str, str]:
    name, colon, kind = text.partition(":")
    if not colon or not name.strip().isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form 'NAME: TYPE', such as 'x: float32[rows]'")
    return name.strip(), kind.strip()


def _sizes(text: str) -> dict[str, int]:
    found = {}
    for part in filter(None, text.split(",")):
        name, _, size = part.partition("=")
        if not name.strip().isidentifier() or not size.strip().isdecimal() or len(size) > 18 or not int(size):
            raise argparse.ArgumentTypeError(f"{part!r} is not of the form NAME=N, such as rows=8")
        found[name.strip()] = int(size)
    return found
