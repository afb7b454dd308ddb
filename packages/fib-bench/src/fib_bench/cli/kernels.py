"""Commands ``fib-bench add``, ``watch`` and ``new``: solutions and definitions without writing JSON."""

from __future__ import annotations

import argparse
import shlex
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import attrs
from fib_schema import (
    BuildSpec,
    Definition,
    FibError,
    Performance,
    Solution,
    SupportedLanguages,
    Trace,
    TraceSet,
    Workload,
    parse_json,
)
from fib_schema.command import add_data_set, data_set_of
from fib_schema.syntax import undefined_names
from fib_schema.trace_facts import timing_of
from rich.console import Console

from ..authoring.compiler_errors import CompilerError, compiler_error_of
from ..authoring.definitions import definition_from_reference, random_workload
from ..authoring.inference import DESTINATION, RETURN, STYLES, Choices, InferredKernel, infer_kernel
from ..authoring.solutions import Added, add_version, base_name, default_author, versions_before
from ..authoring.sources import KernelFileError, files_left_out, read_text, source_files
from ..config.model import BenchmarkConfig
from ..events import Evaluated, Skipped
from ..report.leaderboard import format_trace
from .options import add_command, add_device, default_device, set_command, set_help
from .output import breaking_silence, error_console, output_console, print_done, print_skipped, progress_on, say

if TYPE_CHECKING:
    from ..benchmark import RunResult
    from ..execution.judge_process import JudgeProcess

MAX_WORKLOADS = 3
"""The workloads of a quick evaluation, the first ones of the data set."""
_OPTIONS = {"language": "--language", "entry point": "--entry", "style": "--style", "hardware": "--hardware"}
_PACKED = (".json", ".toml")
"""Suffixes of files that state a solution and its definition."""
_INTERRUPTED = 130
_NO_SAVES: Mapping[str, Trace] = MappingProxyType({})
_POLL_SECONDS = 0.25


def declare_add(add: argparse.ArgumentParser) -> None:
    """Declare the commands about kernel files."""
    set_command(add, _add)
    text = "a .py, .cu or .cpp file, a folder of them, a solution.json, or the starter kit's config.toml"
    add.add_argument("file", metavar="FILE", type=Path, help=text)
    add.add_argument("--name", help="name of the solution (default: that of the file)")
    add.add_argument("--author", help="who wrote it (default: your user name)")
    _add_kernel_options(add, is_required=False)
    add.add_argument("--quick", action="store_true", help="evaluate it at once on up to 3 workloads, unranked")
    add.add_argument("--device", help="where --quick runs: cpu or cuda:N")


def declare_watch(watch: argparse.ArgumentParser) -> None:
    """Declare ``fib-bench watch``."""
    set_command(watch, _watch)
    watch.add_argument("file", metavar="FILE", type=Path, help="a .py, .cu or .cpp file, or a folder of them")
    _add_kernel_options(watch, is_required=True)
    add_device(watch)


def declare_new(new: argparse.ArgumentParser) -> None:
    """Declare ``fib-bench new``."""
    set_help(new, "Write new records.")
    kinds = new.add_subparsers(required=True, metavar="KIND")
    _add_new_definition(add_command(kinds, "definition", "a definition from a Python reference", _new_definition))


def _add_kernel_options(parser: argparse.ArgumentParser, *, is_required: bool) -> None:
    text = "what the kernel computes"
    parser.add_argument("--definition", metavar="NAME", required=is_required, help=text)
    add_data_set(parser)
    add_inference_options(parser.add_argument_group("inferred from the file unless given"))


def add_inference_options(parser: argparse._ActionsContainer) -> None:
    """Declare the options that override inference; `choices_of` reads them."""
    parser.add_argument("--language", choices=[str(language) for language in SupportedLanguages])
    parser.add_argument("--entry", metavar="FUNCTION", help="the function to call, or FILE::FUNCTION")
    parser.add_argument("--style", choices=STYLES, help="whether outputs are arguments (destination) or returned")
    parser.add_argument("--hardware", nargs="+", metavar="NAME", help="such as cpu, cuda or H100")


def choices_of(arguments: argparse.Namespace) -> Choices:
    """Decisions that the options of `add_inference_options` state."""
    hardware = None if arguments.hardware is None else tuple(arguments.hardware)
    return Choices(language=arguments.language, entry_point=arguments.entry, style=arguments.style, hardware=hardware)


def _add(arguments: argparse.Namespace, errors: Console) -> int:
    """Add a kernel to a data set as a solution.

    Its language, entry point and calling style are inferred from the file, and overridden by options. No file is
    overwritten: changed code is the next version (kernel_v2). Code that the data set has is not added again.

    language     from the suffix, and for .py from the imports
    entry point  the function run, else the only one that fits the definition
    style        destination if the function takes the outputs, return if it takes the inputs only

    Examples:
      fib-bench add kernel.py --definition rmsnorm_h1024
      fib-bench add kernel.cu --definition rmsnorm_h1024 --dataset DIR --name warp_per_row
      fib-bench add kernel.cpp --definition rmsnorm_h1024 --quick
                                                       add it and evaluate it at once
      fib-bench add folder --definition gemm_n256_k256 --entry src/gemm.cu::run
      fib-bench add config.toml                        as FlashInfer's starter kit packs it, or solution.json
    """
    root = data_set_of(arguments)
    found = _solution_of(arguments, TraceSet.from_path(root))
    kernel = InferredKernel(found.sources, found.spec)
    added = add_version(root, found.definition, found.name, found.author, found.spec, found.sources)
    following = _next_command(root, added.solution)
    if left_out := files_left_out(arguments.file):
        say(errors, f"left out, as no source and no text that kernels read: {', '.join(left_out)}", "yellow")
    _print_added(added, kernel, "" if arguments.quick else following)
    if not arguments.quick:
        return 0
    saved = _last_saves(TraceSet.from_path(root), added.solution)
    result = _evaluated(root, added.solution, arguments.device, errors)
    _print_results(output_console(), result.traces, added.solution, saved)
    print_skipped(errors, result.skipped)
    return 1 if result.failures or result.is_without_results else 0


def _solution_of(arguments: argparse.Namespace, trace_set: TraceSet) -> Solution:
    """The solution that a kernel file is, or that a file of `_PACKED` states."""
    path, choices, wanted = arguments.file, choices_of(arguments), arguments.definition
    if path.suffix in _PACKED:
        if choices != Choices():
            raise KernelFileError(str(path), "states its language, entry point, style and hardware; change them there")
        stated = _packed(path, trace_set)
        changed = {"name": arguments.name, "author": arguments.author, "definition": wanted}
        return attrs.evolve(stated, **{field: value for field, value in changed.items() if value is not None})
    if wanted is None:
        raise KernelFileError(str(path), "does not name its definition; say it with --definition NAME")
    kernel = infer_kernel(path, trace_set.get_definition(wanted), choices)
    name, author = arguments.name or base_name(path), arguments.author or default_author()
    return Solution(name, wanted, author, kernel.spec, kernel.sources)


def _packed(path: Path, trace_set: TraceSet) -> Solution:
    """The solution of a record, or of FlashInfer's starter kit: ``config.toml`` with ``solution/LANGUAGE`` beside it.

    Source: the public files of the starter kit.
    """
    text = read_text(path)
    if path.suffix == ".json":
        return parse_json(text, Solution, source=str(path))
    try:
        raw = tomllib.loads(text)
        given, build = raw["solution"], raw["build"]
        name, definition, language = given["name"], given["definition"], build["language"]
    except (KeyError, ValueError, TypeError) as error:
        raise KernelFileError(str(path), f"is no config.toml with [solution] and [build]: {error!r}") from error
    style = None
    if "destination_passing_style" in build:
        style = DESTINATION if build["destination_passing_style"] else RETURN
    choices = Choices(language=language, entry_point=build.get("entry_point"), style=style)
    kernel = infer_kernel(path.parent / "solution" / language, trace_set.get_definition(definition), choices)
    return Solution(name, definition, given.get("author") or default_author(), kernel.spec, kernel.sources)


def _print_added(added: Added, kernel: InferredKernel, following: str) -> None:
    solution, spec = added.solution, kernel.spec
    if not added.is_new:
        text = f"nothing added: {solution.name} of {solution.definition} has the same code and settings"
        print_done(text, {}, following, "yellow")
        return
    rows = {"file": str(added.path)}
    values = (spec.language, spec.entry_point, kernel.style, ", ".join(spec.target_hardware))
    rows |= {title: f"{value}  ({_OPTIONS[title]} overrides)" for title, value in zip(_OPTIONS, values, strict=True)}
    print_done(f"added {solution.name} to {solution.definition}", rows, following)


def _next_command(root: Path, solution: Solution) -> str:
    device = _device_of(solution.spec)
    device = "" if device == default_device() else f" --device {device}"
    return f"fib-bench run {shlex.quote(str(root))} --solutions {solution.name} --quick{device}"


def _device_of(spec: BuildSpec) -> str:
    """The device of a command that names none: the CPU for a solution that runs nowhere else, else the default."""
    return "cpu" if spec.target_hardware == ("cpu",) else default_device()


def _evaluated(root: Path, solution: Solution, device: str | None, errors: Console) -> RunResult:
    """Evaluate a solution on some workloads and record it.

    One judge runs all of them: each start of a judge takes seconds of several cores, an evaluation less than one.
    """
    from ..benchmark import Benchmark

    names, device = (solution.name,), device or _device_of(solution.spec)
    config = BenchmarkConfig(quick=True, solutions=names, max_workloads=MAX_WORKLOADS, device=device, concurrency=1)
    with progress_on(errors) as observe:
        return Benchmark(TraceSet.from_path(root), config).run(observe=observe)


def _print_results(
    console: Console, traces: Iterable[Trace], solution: Solution, saved: Mapping[str, Trace] = _NO_SAVES
) -> None:
    """Print the lines of each evaluation, compared with that of the last save, and each compiler error once."""
    shown: set[CompilerError] = set()
    for trace in traces:
        say(console, format_trace(trace))
        if text := _speedups_of(trace, saved.get(trace.workload.uuid)):
            say(console, f"  {text}")
        if (error := compiler_error_of(trace.evaluation, solution)) is not None and error not in shown:
            shown.add(error)
            say(console, str(error), "red")


def _speedups_of(trace: Trace, before: Trace | None) -> str:
    from ..report.ratios import ratio_of, speedup_of

    if (now := _performance_of(trace)) is None:
        return ""
    found = {"reference": speedup_of(now)}
    if before is not None and (then := _performance_of(before)) is not None:
        found["last save"] = ratio_of(timing_of(then), timing_of(now))
    known = [f"{ratio.text} over the {name}" for name, ratio in found.items() if ratio.point is not None]
    return f"speedup: {'; '.join(known)}" if known else ""


def _performance_of(trace: Trace) -> Performance | None:
    return None if trace.evaluation is None else trace.evaluation.performance


def _last_saves(trace_set: TraceSet, solution: Solution) -> dict[str, Trace]:
    """The latest evaluation on each workload of the version before a solution."""
    names = versions_before(trace_set, solution)
    found: dict[str, Trace] = {}
    for trace in trace_set.traces.get(solution.definition, []):
        if trace.solution in names and _performance_of(trace) is not None:
            before = found.get(trace.workload.uuid)
            if before is None or names.index(trace.solution) <= names.index(str(before.solution)):
                found[trace.workload.uuid] = trace
    return found


def _watch(arguments: argparse.Namespace, errors: Console) -> int:
    """Evaluate a kernel on up to 3 workloads, and again whenever its file changes.

    Nothing is recorded: `fib-bench add` keeps a version. Ctrl-C or SIGTERM ends it with exit code 130.

    Examples:
      fib-bench watch kernel.py --definition rmsnorm_h1024
      fib-bench watch kernel.cu --definition rmsnorm_h1024 --device cuda:0
    """
    root = data_set_of(arguments)
    trace_set = TraceSet.from_path(root)
    definition = trace_set.get_definition(arguments.definition)
    workloads = tuple(trace.workload for trace in trace_set.workloads.get(definition.name, [])[:MAX_WORKLOADS])
    if not workloads:
        say(errors, f"fib-bench: {definition.name} has no workloads", "red")
        return 1
    keep = f"fib-bench add {shlex.quote(str(arguments.file))} --definition {definition.name}"
    say(errors, f"watching {arguments.file}; Ctrl-C ends. To keep a version: {keep} --dataset {shlex.quote(str(root))}")
    from ..execution.judge_process import JudgeProcess

    config = BenchmarkConfig(quick=True, device=arguments.device or default_device()).for_data_set(trace_set)
    with suppress(KeyboardInterrupt), JudgeProcess(config, root) as judge:
        seen: list[tuple[str, int, int, int]] | None = None
        saved: dict[str, Trace] = {}
        while True:
            if (stamp := list(_stamps(arguments.file))) != seen:
                seen = stamp
                saved |= _evaluate_file(arguments.file, definition, workloads, choices_of(arguments), judge, saved)
            time.sleep(_POLL_SECONDS)
    errors.print("stopped")
    return _INTERRUPTED


def _evaluate_file(
    path: Path,
    definition: Definition,
    workloads: Sequence[Workload],
    choices: Choices,
    judge: JudgeProcess,
    saved: Mapping[str, Trace],
) -> dict[str, Trace]:
    """Evaluate a kernel as it is now, and print the results or why it cannot be evaluated; returns what was timed."""
    console, timed = output_console(), dict[str, Trace]()
    say(console, f"-- {time.strftime('%H:%M:%S')} {path}", "bold")
    try:
        kernel = infer_kernel(path, definition, choices)
        solution = Solution(base_name(path), definition.name, default_author(), kernel.spec, kernel.sources)
        with breaking_silence(partial(say, error_console()), lambda: f"{definition.name} {solution.name}") as note:
            for event in judge.run(definition, solution, workloads):
                if isinstance(event, Evaluated):
                    note()
                    _print_results(console, [event.trace], solution, saved)
                    if _performance_of(event.trace) is not None:
                        timed[event.trace.workload.uuid] = event.trace
                elif isinstance(event, Skipped):
                    say(console, f"could not run: {event.skip}", "red")
    except FibError as error:
        say(console, str(error), "red")
    console.file.flush()
    return timed


def _stamps(path: Path) -> Iterator[tuple[str, int, int, int]]:
    """Name, inode, size and time of each source file; nothing while a file is missing."""
    for file in source_files(path) if path.is_dir() else [path]:
        try:
            status = file.stat()
        except OSError:
            continue
        yield str(file), status.st_ino, status.st_size, status.st_mtime_ns


def _add_new_definition(new: argparse.ArgumentParser) -> None:
    new.add_argument("name", metavar="NAME", help="such as rmsnorm_h4096")
    new.add_argument("--reference", metavar="FILE", type=Path, required=True, help="a .py file with a function run")
    new.add_argument("--op-type", metavar="TYPE", help="kind of operation (default: NAME up to the first _)")
    new.add_argument("--description", metavar="TEXT", help="what it computes")
    text = "the type of a parameter, in place of its annotation; once for each"
    new.add_argument("--input", metavar="'NAME: TYPE'", action="append", default=[], help=text)
    text = "likewise of an output; all of them"
    new.add_argument("--output", metavar="'NAME: TYPE'", action="append", default=[], help=text)
    text = "make axes constant"
    new.add_argument("--axis", metavar="NAME=N,...", action="append", type=_sizes, default=[], help=text)
    text = "add a workload with these sizes and random inputs; may be given several times"
    new.add_argument("--workload", metavar="NAME=N,...", action="append", type=_sizes, default=[], help=text)
    new.add_argument("--dataset", metavar="DIR", type=Path, default=Path(), help="the data set; made if it is missing")


def _new_definition(arguments: argparse.Namespace, errors: Console) -> int:
    """Write a definition from a Python file whose function run is the reference.

    Annotations give the types:

      def run(x: "float32[rows, width=1024]", weight: "float32[width]") -> "y: float32[rows, width]":

    An axis with a size is constant, others vary. A type without brackets is a scalar; integers need bounds, as in
    "int32[rows] 0..99". Several outputs are a tuple: -> ("y: float32[rows]", "z: int32[rows]"). Options give types too.

    Examples:
      fib-bench new definition rmsnorm_h1024 --reference rmsnorm.py --workload rows=1 --workload rows=64
    """
    name, op_type, description = arguments.name, arguments.op_type, arguments.description
    definition = definition_from_reference(
        name,
        arguments.reference,
        op_type=op_type,
        description=description,
        inputs=arguments.input,
        outputs=arguments.output,
        sizes={axis: size for sizes in arguments.axis for axis, size in sizes.items()},
    )
    workloads = [random_workload(definition, sizes) for sizes in arguments.workload]
    root: Path = arguments.dataset
    root.mkdir(parents=True, exist_ok=True)
    trace_set = TraceSet.from_path(root)
    trace_set.add_definitions([definition])
    trace_set.add_traces([Trace(definition.name, workload) for workload in workloads])
    fields = {
        "file": str(root / "definitions" / definition.op_type / f"{name}.json"),
        "op_type": f"{definition.op_type}  (--op-type overrides)",
        "axes": axes_of(definition),
        "workloads": str(len(workloads)) if workloads else "none yet; --workload adds one, and so does fib-tracer",
    }
    following = f"fib-bench add FILE --definition {name} --dataset {shlex.quote(str(root))}"
    print_done(f"added definition {name}", fields, following)
    if unknown := undefined_names(definition.reference):
        say(errors, f"warning: run uses {', '.join(unknown)}, which nothing in the file defines", "yellow")
    return 0


def axes_of(definition: Definition) -> str:
    """The axes of a definition, constant ones with their sizes."""
    return ", ".join([*definition.var_axes, *(f"{axis}={size}" for axis, size in definition.const_axes.items())])


def _sizes(text: str) -> dict[str, int]:
    found = {}
    for part in filter(None, text.split(",")):
        name, _, size = part.partition("=")
        if not name.strip().isidentifier() or not size.strip().isdecimal() or len(size) > 18:
            raise argparse.ArgumentTypeError(f"{part!r} is not of the form NAME=N, such as rows=8")
        found[name.strip()] = int(size)
    return found
