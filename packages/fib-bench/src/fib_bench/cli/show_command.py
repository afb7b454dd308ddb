"""Command ``fib-bench show``: everything about one solution, definition or workload."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence

from fib_schema import Definition, Solution, TensorSpec, Trace, TraceSet, UnknownName, Workload, to_plain
from fib_schema.command import plain_problems, print_problems
from fib_schema.display import counted
from rich.console import Console

from ..flags import CPU_TIMING, INTERPRETED
from ..report import speedup_of
from ..report.quantities import latency_with_bounds
from ..report.trace_fields import reference_timing_of, timed_by, timing_of
from .data_set_option import add_data_set_option, data_set_of
from .help_pages import add_help
from .printing import output_console, print_json, safe_text
from .quick_runs import compiler_error_of

_HISTORY = 50
_MIN_PREFIX = 6


def add_show(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``show``."""
    add_help(parser, "show")
    parser.add_argument("name", metavar="NAME", help="a solution, a definition, or the uuid of a workload")
    add_data_set_option(parser)
    parser.add_argument("--json", action="store_true", help="print the records as JSON")
    parser.set_defaults(command=_show)


def _show(arguments: argparse.Namespace, errors: Console) -> int:
    del errors
    trace_set = TraceSet.from_path(data_set_of(arguments))
    name: str = arguments.name
    if name in trace_set.solution_names():
        solution = trace_set.get_solution(name)
        assert solution is not None
        lines: Iterator[tuple[str, str]] = _solution_lines(trace_set, solution)
        plain = {
            "solution": to_plain(solution),
            "traces": [to_plain(trace) for trace in _traces_of(trace_set, solution)],
        }
    elif name in trace_set.definition_names():
        definition = trace_set.get_definition(name)
        lines = _definition_lines(trace_set, definition)
        plain = {
            "definition": to_plain(definition),
            "solutions": list(trace_set.solution_names(name)),
            "workloads": [to_plain(trace.workload) for trace in trace_set.workloads.get(name, [])],
        }
    else:
        definition_name, workload = _workload_named(trace_set, name)
        traces = [t for t in trace_set.traces.get(definition_name, []) if t.workload.uuid == workload.uuid]
        lines = _workload_lines(definition_name, workload, traces)
        plain = {
            "definition": definition_name,
            "workload": to_plain(workload),
            "traces": [to_plain(trace) for trace in traces],
        }
    problems = trace_set.problems
    print_problems(problems)
    if arguments.json:
        print_json({**plain, "problems": plain_problems(problems)})
    else:
        console = output_console()
        for text, style in lines:
            console.print(safe_text(text, style), soft_wrap=True)
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


def _solution_lines(trace_set: TraceSet, solution: Solution) -> Iterator[tuple[str, str]]:
    spec = solution.spec
    style = "its outputs are arguments" if spec.destination_passing_style else "it returns its outputs"
    yield f"solution {solution.name}", "bold"
    yield from _table({
        "definition": solution.definition,
        "author": solution.author,
        "language": spec.language,
        "entry point": f"{spec.entry_point} ({style})",
        "hardware": ", ".join(spec.target_hardware),
        "description": solution.description or "",
        "version": solution.hash()[:12],
    })  # fmt: skip
    for source in solution.sources:
        yield from _source_lines(source.path, source.content)
    traces = _traces_of(trace_set, solution)
    content = solution.hash()
    yield from _result_lines(_latest(traces))
    for log, names in _logs(_latest(traces)).items():
        yield f"\nlog of {', '.join(names)} (untrusted output of the solution):", "bold"
        yield log, ""
    errors = [error for trace in _latest(traces) if (error := compiler_error_of(trace, solution)) is not None]
    for error in errors[:1]:
        yield f"\n{error}", "red"
    yield from _history_lines(traces, content)


def _definition_lines(trace_set: TraceSet, definition: Definition) -> Iterator[tuple[str, str]]:
    yield f"definition {definition.name}", "bold"
    axes = [*definition.var_axes, *(f"{name}={size}" for name, size in definition.const_axes.items())]
    yield from _table({
        "op_type": definition.op_type,
        "axes": ", ".join(axes),
        "inputs": _specs(definition.inputs),
        "outputs": _specs(definition.outputs),
        "constraints": "; ".join(definition.constraints),
        "tags": ", ".join(definition.tags),
        "description": definition.description or "",
        "solutions": ", ".join(trace_set.solution_names(definition.name)) or "none",
    })  # fmt: skip
    yield from _source_lines("reference", definition.reference)
    workloads = trace_set.workloads.get(definition.name, [])
    yield f"\n{counted(len(workloads), 'workload')}", "bold"
    for trace in workloads[:_HISTORY]:
        yield f"  {trace.workload.uuid}  {_axes(trace.workload)}", ""
    if (more := len(workloads) - _HISTORY) > 0:
        yield f"  {more} more (--json lists all)", "yellow"


def _workload_lines(definition: str, workload: Workload, traces: Sequence[Trace]) -> Iterator[tuple[str, str]]:
    yield f"workload {workload.uuid}", "bold"
    rows = {"definition": definition, "axes": _axes(workload)}
    yield from _table({**rows, **{f"input {name}": str(spec) for name, spec in workload.inputs.items()}})
    by_solution = {trace.solution: trace for trace in traces}
    yield from _result_lines(list(by_solution.values()), by_solution=True)


def _traces_of(trace_set: TraceSet, solution: Solution) -> list[Trace]:
    return [trace for trace in trace_set.traces.get(solution.definition, []) if trace.solution == solution.name]


def _latest(traces: Sequence[Trace]) -> list[Trace]:
    """The last trace of each workload on each device."""
    found = {}
    for trace in traces:
        assert trace.evaluation is not None
        found[trace.workload.uuid, trace.evaluation.environment.hardware] = trace
    return list(found.values())


def _result_lines(traces: Sequence[Trace], *, by_solution: bool = False) -> Iterator[tuple[str, str]]:
    yield ("\nlatest results" if traces else "\nno results yet; fib-bench run makes them"), "bold"
    for trace in traces:
        what = trace.solution if by_solution else _axes(trace.workload) or trace.workload.uuid
        assert trace.evaluation is not None
        yield f"  {what}: {_outcome(trace)} ({trace.evaluation.environment.hardware})", ""


def _outcome(trace: Trace) -> str:
    """Status, latency and reference latency with their intervals, speedup, method and flags.

    A CPU timing has no speedup here: how reliable it is depends on the other solutions of the run. Reports have it.
    """
    evaluation = trace.evaluation
    assert evaluation is not None
    facts = [str(evaluation.status)]
    if evaluation.performance is not None:
        own, reference = timing_of(evaluation.performance), reference_timing_of(evaluation.performance)
        for timing, words in ((own, ""), (reference, "reference ")):
            if timing is not None:
                facts.append(f"{words}{latency_with_bounds(timing.latency_ms, timing.bounds_ms)}")
        if own is not None and reference is not None and not {CPU_TIMING, INTERPRETED} & set(evaluation.flags):
            facts.append(f"speedup {speedup_of(evaluation.performance).text}")
        facts += [f"timed by {methods}"] if (methods := timed_by(evaluation.performance)) else []
    facts += [f"flags: {', '.join(evaluation.flags)}"] if evaluation.flags else []
    return ", ".join(facts)


def _logs(traces: Sequence[Trace]) -> dict[str, list[str]]:
    """The logs, each once, with the workloads that it is of."""
    found: dict[str, list[str]] = {}
    for trace in traces:
        if trace.evaluation is not None and (log := trace.evaluation.log.rstrip()):
            found.setdefault(log, []).append(_axes(trace.workload) or trace.workload.uuid)
    return found


def _history_lines(traces: Sequence[Trace], content: str) -> Iterator[tuple[str, str]]:
    if not traces:
        return
    yield f"\nhistory: {counted(len(traces), 'result')}", "bold"
    for trace in traces[-_HISTORY:]:
        evaluation = trace.evaluation
        assert evaluation is not None
        version = None if evaluation.extra is None else evaluation.extra.get("solution_hash")
        note = "" if version in (None, content) else ", of an earlier version"
        yield f"  {evaluation.timestamp[:19]}  {_axes(trace.workload)}: {_outcome(trace)}{note}", ""


def _source_lines(title: str, text: str) -> Iterator[tuple[str, str]]:
    yield f"\n{title}", "bold"
    lines = text.splitlines()
    width = len(str(len(lines)))
    yield "\n".join(f"  {number:{width}} | {line}" for number, line in enumerate(lines, 1)), ""


def _table(rows: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for title, value in rows.items():
        if value:
            yield f"  {title:12} {value}", ""


def _specs(specs: Mapping[str, TensorSpec]) -> str:
    return ", ".join(f"{name}: {spec.dtype}{_shape(spec)}" for name, spec in specs.items())


def _shape(spec: TensorSpec) -> str:
    return "" if spec.shape is None else f"[{', '.join(spec.shape)}]"


def _axes(workload: Workload) -> str:
    return ", ".join(f"{axis}={size}" for axis, size in workload.axes.items())
