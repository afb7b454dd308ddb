"""Commands about whole data sets: ``fib-bench show``, ``validate``, ``migrate``, ``fetch`` and ``import``."""

from __future__ import annotations

import argparse
import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
from fib_schema import (
    BuildSpec,
    MigrationReport,
    Problem,
    Report,
    Solution,
    Trace,
    TraceSet,
    UnknownName,
    Workload,
    migrate,
    to_plain,
    validate,
)
from fib_schema.command import plain_problems, print_problems
from fib_schema.display import counted
from fib_schema.problems import group_problems
from fib_schema.trace_facts import CPU_TIMING, INTERPRETED, latest, reference_timing_of, timing_of
from rich.console import Console

from .. import hub
from ..authoring.solutions import add_version, base_name, default_author
from ..report import speedup_of
from ..report.leaderboard import axes_text
from ..report.ratios import latency_with_bounds, timed_by, timing_bounds
from .kernels import compiler_error_of
from .options import Commands, add_command, add_data_set, add_json, data_set_of, set_help
from .output import output_console, print_json, say, say_fields

if TYPE_CHECKING:
    from ..coverage import Coverage
    from ..problem_import import GpuModeTask, Imported, KernelBenchFile

_SHOWN_PROBLEMS = 100
_SHOWN_WORKLOADS = 50
_MIN_PREFIX = 6
_CASES = ("tests", "benchmarks")
_TRITON = re.compile(r"^\s*(import|from)\s+triton\b", re.MULTILINE)


def add_data_set_commands(commands: Commands) -> None:
    """Declare the commands."""
    show = add_command(commands, "show", "everything about one solution, definition or workload", _show)
    show.add_argument("name", metavar="NAME", help="a solution, a definition, or the uuid of a workload")
    add_data_set(show)
    add_json(show)
    _add_validate(add_command(commands, "validate", "list all problems of a data set", _validate))
    older = add_command(commands, "migrate", "convert an older data set to the current schema", _migrate)
    older.add_argument("source", metavar="SRC", help="the data set to read; it is not changed")
    older.add_argument("target", metavar="DST", help="a folder that is new or empty")
    add_json(older)
    _add_fetch(add_command(commands, "fetch", "download a data set from a hub", _fetch))
    problems = commands.add_parser("import", help="add a problem of KernelBench or GPU MODE")
    set_help(problems, "Add problems of other benchmarks. Their files are executed: import what you trust.")
    formats = problems.add_subparsers(required=True, metavar="FORMAT")
    one = add_command(formats, "kernelbench", "a file with Model, get_inputs and get_init_inputs", _kernelbench)
    one.add_argument("problem", metavar="FILE", type=Path, help="the problem; it is executed")
    _add_import(one)
    one = add_command(formats, "gpumode", "a folder with task.yml and reference.py", _gpumode)
    one.add_argument("problem", metavar="DIR", type=Path, help="the problem; its reference.py is executed")
    text = "the lists of the task that become workloads (default: both)"
    one.add_argument("--cases", nargs="+", choices=_CASES, default=list(_CASES), help=text)
    _add_import(one)


# -- show --------------------------------------------------------------------------------------


def _show(arguments: argparse.Namespace, errors: Console) -> int:
    """Show one solution, one definition or one workload.

    A solution has its source, the latest results with 95 % intervals and full logs; a definition its axes, inputs,
    reference, solutions and workloads; a workload its sizes and the results on it.

    Examples:
      fib-bench show rmsnorm_torch --dataset DIR
      fib-bench show rmsnorm_h1024
      fib-bench show rmsnorm_h1024-batch_size-8 --json
    """
    del errors
    trace_set = TraceSet.from_path(data_set_of(arguments))
    name: str = arguments.name
    solution = trace_set.get_solution(name) if name in trace_set.solution_names() else None
    if solution is not None:
        traces = [trace for trace in trace_set.traces.get(solution.definition, []) if trace.solution == name]
        plain: dict[str, object] = {"solution": to_plain(solution), "traces": list(map(to_plain, traces))}
    elif name in trace_set.definition_names():
        workloads = [trace.workload for trace in trace_set.workloads.get(name, [])]
        plain = {"definition": to_plain(trace_set.get_definition(name)), "solutions": trace_set.solution_names(name)}
        plain["workloads"] = list(map(to_plain, workloads))
        traces = []
    else:
        owner, workload = _workload_named(trace_set, name)
        traces = [trace for trace in trace_set.traces.get(owner, []) if trace.workload.uuid == workload.uuid]
        plain = {"workload": to_plain(workload), "definition": owner, "traces": list(map(to_plain, traces))}
    print_problems(trace_set.problems)
    if arguments.json:
        print_json({**plain, "problems": plain_problems(trace_set.problems)})
        return 0
    _print_record(output_console(), plain)
    if "traces" in plain:
        _print_results(output_console(), traces, solution)
    return 0


def _workload_named(trace_set: TraceSet, name: str) -> tuple[str, Workload]:
    """The workload whose uuid is, or begins with, a name.

    Raises:
        UnknownName: There is none, or there are several.
    """
    everything = [
        (definition, trace.workload) for definition in trace_set.workloads for trace in trace_set.workloads[definition]
    ]
    found = [item for item in everything if item[1].uuid == name]
    if not found and len(name) >= _MIN_PREFIX:
        found = [item for item in everything if item[1].uuid.startswith(name)]
    if len(found) == 1:
        return found[0]
    uuids = tuple(workload.uuid for _, workload in found or everything)
    known = uuids if found else (*trace_set.solution_names(), *trace_set.definition_names(), *uuids)
    raise UnknownName("solution, definition or workload", name, known)


def _print_record(console: Console, plain: Mapping[str, Any]) -> None:
    """Print the fields of a record, and each source code with line numbers."""
    kind, record = next(iter(plain.items()))
    say(console, f"{kind} {record.get('name') or record['uuid']}", "bold")
    sources = {source["path"]: source["content"] for source in record.get("sources", ())}
    sources |= {"reference": record["reference"]} if "reference" in record else {}
    fields = {key: value for key, value in record.items() if key not in ("name", "uuid", "sources", "reference")}
    fields |= {key: ", ".join(plain[key]) for key in ("solutions",) if key in plain}
    say_fields(console, {key: value if isinstance(value, str) else _text(value) for key, value in fields.items()})
    for path, text in sources.items():
        say(console, f"\n{path}", "bold")
        lines = text.splitlines()
        width = len(str(len(lines)))
        say(console, "\n".join(f"  {number:{width}} | {line}" for number, line in enumerate(lines, 1)))
    if "workloads" in plain:
        say(console, f"\n{counted(len(plain['workloads']), 'workload')}", "bold")
    for workload in plain.get("workloads", ())[:_SHOWN_WORKLOADS]:
        say(console, f"  {workload['uuid']}  {_text(workload['axes'])}")
    if (more := len(plain.get("workloads", ())) - _SHOWN_WORKLOADS) > 0:
        say(console, f"  {more} more (--json lists all)", "yellow")


def _text(value: Any) -> str:
    """A value in one line; empty if it says nothing."""
    if isinstance(value, Mapping) and not any(isinstance(item, Mapping | list) for item in value.values()):
        return ", ".join(f"{key}={item}" for key, item in value.items())
    return json.dumps(value) if value not in (None, [], {}) else ""


def _print_results(console: Console, traces: Sequence[Trace], solution: Solution | None) -> None:
    """Print the latest result of each solution, workload and device, each log once, and the first compiler error."""
    groups = latest(traces)
    last = [t for workloads in groups.values() for group in workloads.values() for t in group.values()]
    say(console, "\nlatest results" if last else "\nno results yet; fib-bench run makes them", "bold")
    logs: dict[str, list[str]] = {}
    for trace in last:
        assert trace.evaluation is not None
        what = (axes_text(trace.workload) or trace.workload.uuid) if solution else str(trace.solution)
        say(console, f"  {what}: {', '.join(_outcome(trace))} ({trace.evaluation.environment.hardware})")
        if log := trace.evaluation.log.rstrip():
            logs.setdefault(log, []).append(what)
    for log, names in logs.items():
        say(console, f"\nlog of {', '.join(names)} (untrusted output of the solution):", "bold")
        say(console, log)
    for error in [error for trace in last if (error := compiler_error_of(trace, solution)) is not None][:1]:
        say(console, f"\n{error}", "red")


def _outcome(trace: Trace) -> Iterator[str]:
    """Status, latency and reference latency with their intervals, speedup, method and flags.

    A CPU timing has no speedup here: how reliable it is depends on the other solutions of the run. Reports have it.
    """
    evaluation = trace.evaluation
    assert evaluation is not None
    yield str(evaluation.status)
    if (performance := evaluation.performance) is not None:
        own, reference = timing_of(performance), reference_timing_of(performance)
        for timing, words in ((own, ""), (reference, "reference ")):
            if timing is not None:
                yield f"{words}{latency_with_bounds(timing.latency_ms, timing_bounds(timing))}"
        if own is not None and reference is not None and not {CPU_TIMING, INTERPRETED} & set(evaluation.flags):
            yield f"speedup {speedup_of(performance).text}"
        if methods := timed_by(performance):
            yield f"timed by {methods}"
    if evaluation.flags:
        yield f"flags: {', '.join(evaluation.flags)}"


# -- validate and migrate ----------------------------------------------------------------------


def _add_validate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dir", metavar="DIR", help="the data set")
    add_json(parser)
    coverage = parser.add_argument_group("coverage")
    text = "also list definitions that lack workloads, a baseline, or a reference that runs"
    coverage.add_argument("--coverage", action="store_true", help=text)
    text = "the author of the baselines (default: %(default)s)"
    coverage.add_argument("--baseline-author", default="baseline", metavar="NAME", help=text)
    text = "do not run the references"
    coverage.add_argument("--no-references", dest="references", action="store_false", help=text)
    text = "the device that runs the references (default: %(default)s)"
    coverage.add_argument("--device", default="cpu", metavar="DEVICE", help=text)


def _validate(arguments: argparse.Namespace, errors: Console) -> int:
    """List all problems of a data set, each with its file, line and path.

    Problems are invalid records, unknown names, duplicate names and keys, workloads that contradict their definition,
    and missing blobs. Exits with 1 if there are errors; warnings do not count.

    With --coverage, also run all references and list the definitions that lack workloads, a baseline, traces of the
    baseline, or a reference that runs. These gaps do not change the exit code.

    Examples:
      fib-bench validate DIR
      fib-bench validate DIR --json | jq '.problems[].file'
      fib-bench validate DIR --coverage
      fib-bench validate DIR --coverage --no-references --json | jq '.coverage.definitions[].gaps'
    """
    del errors
    report = validate(arguments.dir)
    coverage = _coverage(arguments) if arguments.coverage else None
    if arguments.json:
        print_json({**report.to_plain(), **({} if coverage is None else {"coverage": coverage.to_plain()})})
    else:
        _print_report(output_console(), report)
        if coverage is not None:
            say(output_console(), coverage.to_text())
    return 0 if report.is_ok else 1


def _coverage(arguments: argparse.Namespace) -> Coverage:
    from ..config.benchmark import BenchmarkConfig
    from ..coverage import measure_coverage

    config = BenchmarkConfig(device=arguments.device, quick=True) if arguments.references else None
    trace_set = TraceSet.from_path(arguments.dir)
    return measure_coverage(trace_set, baseline_author=arguments.baseline_author, references=config)


def _migrate(arguments: argparse.Namespace, errors: Console) -> int:
    """Convert a data set of a legacy schema to the current one.

    Unreadable records go to DST/rejected with the reasons. Exits with 1 if there are any, or if the result has errors.

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
    for change, count in report.changes.items():
        say(console, f"changed in {counted(count, 'record')}: {change}")
    _print_groups(console, "rejected", report.rejected, "red")
    if report.rejected:
        say(console, f"rejected records are in {report.target}/rejected, with problems.jsonl", "yellow")
    _print_report(console, report.validation)


def _print_report(console: Console, report: Report) -> None:
    _print_groups(console, "error", report.problems, "red")
    _print_groups(console, "warning", report.warnings, "yellow")
    say(console, report.summary, "" if report.is_ok else "red")


def _print_groups(console: Console, word: str, problems: Sequence[Problem], style: str) -> None:
    groups = group_problems(problems)
    for group in groups[:_SHOWN_PROBLEMS]:
        say(console, f"{word}: {group}", style)
    if more := sum(len(group.problems) for group in groups[_SHOWN_PROBLEMS:]):
        say(console, f"{word}: {more} more (--json lists all)", style)


# -- fetch -------------------------------------------------------------------------------------


def _add_fetch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help=f"{', '.join(hub.DATA_SETS)}, or a repository OWNER/NAME")
    parser.add_argument("dir", metavar="DIR", nargs="?", type=Path, help="the data set (default: NAME without OWNER)")
    parser.add_argument("--op-types", nargs="+", metavar="NAME", default=[], help="only these op_types")
    parser.add_argument("--definitions", nargs="+", metavar="NAME", default=[], help="only these definitions")
    parser.add_argument("--no-blobs", dest="blobs", action="store_false", help="no stored tensors")
    parser.add_argument("--revision", metavar="REV", help="a branch, tag or commit (default: the newest)")
    parser.add_argument("--endpoint", metavar="URL", help="the address of the hub (default: that of huggingface_hub)")
    add_json(parser)


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
    op_types, definitions = tuple(arguments.op_types), tuple(arguments.definitions)
    selection = hub.Selection(op_types=op_types, definitions=definitions, blobs=arguments.blobs)
    fetched = hub.fetch(
        arguments.name, folder, revision=arguments.revision, endpoint=arguments.endpoint, selection=selection
    )
    following = f"fib-bench validate {shlex.quote(str(folder))}"
    if arguments.json:
        print_json(attrs.asdict(fetched) | {"next": following})
        return 0
    text = f"{fetched.repository} at {fetched.revision[:12]}: {counted(fetched.files, 'file')} in {folder}"
    say(output_console(), text, "green")
    say(output_console(), f"next: {following}")
    return 0


# -- import ------------------------------------------------------------------------------------


def _add_import(parser: argparse.ArgumentParser) -> None:
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
    add_json(parser)


def _kernelbench(arguments: argparse.Namespace, errors: Console) -> int:
    """Add a problem of KernelBench: a Python file with a module Model, get_inputs and get_init_inputs.

    It becomes a definition with one workload. Parameters of the model become inputs, so that no solution can know them.

    A solution is a file with a module ModelNew that has the parameters of Model.

    Examples:
      fib-bench import kernelbench level1/19_ReLU.py --dataset DIR
      fib-bench import kernelbench level1/19_ReLU.py --dataset DIR --solution model_new.py --author me
    """
    from ..problem_import import read_kernelbench

    op_type = arguments.op_type or "kernelbench"
    return _import(arguments, errors, read_kernelbench(arguments.problem, name=arguments.name, op_type=op_type))


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


def _import(arguments: argparse.Namespace, errors: Console, found: KernelBenchFile | GpuModeTask) -> int:
    from ..problem_import import add_problem

    sources = {file: found.solution(file) for file in arguments.solution}  # errors come before anything is written
    root: Path = arguments.dataset
    root.mkdir(parents=True, exist_ok=True)
    imported = add_problem(root, found.problem, random_inputs=arguments.random_inputs)
    definition, names = imported.definition.name, []
    for file, files in sources.items():
        language = "triton" if any(_TRITON.search(source.content) for source in files) else "python"
        style, hardware = found.is_destination_passing, tuple(arguments.hardware)
        spec = BuildSpec(language, hardware, "main.py::run", destination_passing_style=style)
        author = arguments.author or default_author()
        names.append(
            add_version(root, definition, f"{definition}_{base_name(file)}", author, spec, files).solution.name
        )
    for note in imported.notes:
        say(errors, f"note: {note}", "yellow")
    following = f"fib-bench run {shlex.quote(str(root))} --definitions {definition}"
    following += "" if TraceSet.from_path(root).solution_names(definition) else " --reference-as-solution"
    _print_imported(arguments, imported, names, following)
    return 0


def _print_imported(arguments: argparse.Namespace, imported: Imported, solutions: list[str], following: str) -> None:
    definition, recorded = imported.definition, imported.recorded_bytes
    if arguments.json:
        uuids = [workload.uuid for workload in imported.workloads]
        plain = {"definition": definition.name, "workloads": uuids, "recorded_bytes": recorded}
        print_json(plain | {"solutions": solutions, "notes": list(imported.notes), "next": following})
        return
    console = output_console()
    say(console, f"imported {definition.name}", "green")
    say_fields(
        console,
        {
            "inputs": ", ".join(definition.inputs),
            "outputs": ", ".join(definition.outputs),
            "axes": ", ".join([*definition.var_axes, *(f"{n}={size}" for n, size in definition.const_axes.items())]),
            "workloads": f"{len(imported.workloads)}, with {counted(recorded, 'byte')} of recorded values",
            "solutions": ", ".join(solutions) or "none; --solution FILE adds one",
        },
    )
    say(console, f"next: {following}")
