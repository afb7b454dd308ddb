"""Tool `explain_failure`: the first wrong elements with their inputs, the first compiler error with its line."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs
from fib_bench import BenchmarkConfig
from fib_bench.authoring.compiler_errors import CompilerError, compiler_error_of
from fib_schema import (
    UNRANKED_FLAGS,
    Definition,
    Evaluation,
    EvaluationStatus,
    FibError,
    Solution,
    TensorSpec,
    Trace,
    Workload,
)
from fib_schema.trace_facts import QUICK

from .evaluation import QUICK_WORKLOADS, run_traces
from .results import Result, fenced, untrusted
from .sandboxed.call import FILL
from .workspace import Code, Workspace, choose_workloads, read_solution

if TYPE_CHECKING:
    import torch
    from fib_bench.config import ResolvedEvalConfig

    from .sandboxed.run import Values

_WRONG_ELEMENTS = 5
_SHOWN_VALUES = 6
_LOG_CHARS = 1500
_SCALAR = re.compile(r"(\w+) = (True|False|-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)")
_ELEMENT_BY_ELEMENT = "default"
"""The evaluator whose verdicts are about single elements."""


@attrs.frozen
class WrongElement:
    """An element of an output that differs from the reference by more than the tolerance."""

    index: tuple[int, ...]
    found: float
    expected: float
    is_unwritten: bool
    """Whether it still holds the bytes of the harness."""
    inputs: Mapping[str, str]
    """Values of each input, at the same position of the axes that it shares with the output."""


@attrs.frozen
class WrongOutput:
    """An output with wrong elements."""

    name: str
    wrong: int
    count: int
    wrong_per_axis: Mapping[str, str]
    """Number of positions of each axis with a wrong element, and the first ones."""
    unwritten: int
    """Elements that still hold the bytes of the harness: the kernel wrote nothing there."""
    elements: tuple[WrongElement, ...]


@attrs.frozen
class Explanation(Result):
    """The reasons that a solution failed."""

    definition: str
    solution: str
    workload: str | None
    status: str
    """``PASSED`` if no workload of those that were tried fails, ``NOT_RUN`` if one could not run."""
    compiler_error: CompilerError | None
    outputs: tuple[WrongOutput, ...]
    note: str
    """A note about what could not be found out, with the reason."""
    log: str = untrusted()

    @property
    def is_passed(self) -> bool:
        """Whether all workloads that were tried passed."""
        return self.status == EvaluationStatus.PASSED

    def lines(self) -> Iterator[str]:
        """The cause first, then the log."""
        if self.workload is None:
            verdict = "passed" if self.is_passed else "has no verdict"
            yield f"{self.solution} {verdict} on the workloads that were tried; {self.note}".rstrip("; ")
            return
        yield f"{self.solution} on workload {self.workload}: {self.status}"
        if self.compiler_error is not None:
            yield from fenced(str(self.compiler_error), "first error in the sources")
        for output in self.outputs:
            yield from _output_lines(output)
        if self.note:
            yield f"note: {self.note}"
        yield from fenced(self.log, "log of the evaluation", _LOG_CHARS)


def explain_failure(
    workspace: Workspace, definition: str, solution: Code, *, workload: str | None = None
) -> Explanation:
    """Explain why a solution fails: first wrong elements with indices and inputs, or the first compiler error.

    Args:
        workspace: Where to work.
        definition: The name of the definition.
        solution: The files, such as {"kernel.py": source}, or the name of a solution of the data set.
        workload: The uuid of a workload; by default the first one of 3 that fails.

    Raises:
        UnknownName: There is no such definition, solution or workload.
        KernelFileError: Language, entry point or style cannot be inferred.
    """
    trace_set = workspace.open()
    found = trace_set.get_definition(definition)
    given = read_solution(workspace, trace_set, found, solution)
    chosen = choose_workloads(trace_set, found, None if workload is None else [workload], QUICK_WORKLOADS)
    notes, skips = list[str](), list[str]()
    failed: Trace | None = None
    for index, one in enumerate(chosen):  # each may wait for the time limit
        run = run_traces(workspace, found, given, [one], quick=True, place=(index, len(chosen)))
        skips += [f"{skip.workload} did not run: {skip.reason.splitlines()[0]}" for skip in run.skipped]
        if failed := next((trace for trace in run.traces if not trace.is_successful()), None):
            break
        flags = (flag for trace in run.traces if trace.evaluation for flag in trace.evaluation.flags)
        notes += [f"unranked: {flag}" for flag in flags if flag in UNRANKED_FLAGS - {QUICK}]
    if failed is None or failed.evaluation is None:
        status, note = "NOT_RUN" if skips else EvaluationStatus.PASSED, "; ".join(dict.fromkeys([*skips, *notes]))
        return Explanation(definition, given.name, None, str(status), None, (), note, "")
    outputs, note = _wrong_outputs(workspace, found, given, failed.workload, failed.evaluation)
    return Explanation(
        definition=definition,
        solution=given.name,
        workload=failed.workload.uuid,
        status=str(failed.evaluation.status),
        compiler_error=compiler_error_of(failed.evaluation, given),
        outputs=outputs,
        note=note,
        log=failed.evaluation.log,
    )


def _wrong_outputs(
    workspace: Workspace, definition: Definition, solution: Solution, workload: Workload, evaluation: Evaluation
) -> tuple[tuple[WrongOutput, ...], str]:
    """The outputs with wrong elements of one call, and a note if there are none to show."""
    if evaluation.status is not EvaluationStatus.INCORRECT_NUMERICAL:
        return (), ""
    from fib_bench.evaluators import evaluator_for
    from fib_bench.inputs.generation import distributions_of

    from .sandboxed.run import call_once, make_values

    config = BenchmarkConfig(device=workspace.device).for_data_set(workspace.open()).resolve_eval_config(definition)
    evaluator = evaluator_for(definition, config)
    if evaluator.name != _ELEMENT_BY_ELEMENT:
        return (), f"elements are not shown: the evaluator {evaluator.name!r} judges outputs as a whole, see the log"
    config = evaluator.settings(config)
    known = distributions_of(definition, config.distributions)
    named = [name for name in known if f"({name})" in evaluation.log]
    given = _SCALAR.findall(evaluation.log.partition("\n")[0].rpartition("; with ")[2])
    scalars = {name: ast.literal_eval(text) for name, text in given if name in definition.inputs}
    for distribution in dict.fromkeys((*named, *known)):
        try:
            values = {**make_values(workspace, definition, workload, distribution), **scalars}
            found = call_once(workspace, definition, solution, workload, values)
            expected = call_once(workspace, definition, None, workload, values)
        except FibError as error:
            return (), f"elements are not shown: {error}"
        outputs = tuple(_compare(definition, values, found, expected, config))
        if outputs:
            return outputs, f"inputs of the distribution {distribution!r}"
    problem = "the result depends on earlier calls, or is not repeatable"
    return (), f"a single call in a process of its own was right: {problem}"


def _compare(
    definition: Definition,
    values: Values,
    found: Mapping[str, torch.Tensor],
    expected: Mapping[str, torch.Tensor],
    config: ResolvedEvalConfig,
) -> Iterator[WrongOutput]:
    import torch
    from fib_bench.checking.comparison import examine, flat, logical_shape, to_double

    for name, spec in definition.outputs.items():
        rule = examine(name, expected[name], values, config).rule  # the tolerances of the judge
        one, other = (to_double(flat(tensor)).view(logical_shape(tensor)) for tensor in (found[name], expected[name]))
        close = torch.isclose(one, other, rtol=rule.rtol, atol=rule.atol) | other.isnan()
        indices = (~close).nonzero()
        if not len(indices):
            continue
        untouched = _untouched(found[name], one)
        elements = tuple(
            WrongElement(
                tuple(index),
                float(one[tuple(index)]),
                float(other[tuple(index)]),
                bool(untouched[tuple(index)]),
                _inputs_at(definition, spec, index, values),
            )
            for index in indices[:_WRONG_ELEMENTS].tolist()
        )
        per_axis = {f"{axis}={one.shape[at]}": _positions(indices[:, at]) for at, axis in enumerate(spec.shape or ())}
        yield WrongOutput(name, len(indices), one.numel(), per_axis, int(untouched.sum()), elements)


def _untouched(output: torch.Tensor, elements: torch.Tensor) -> torch.Tensor:
    """The elements whose bytes are those from before the call; none where a byte holds several elements."""
    import torch
    from fib_bench.checking.comparison import flat

    data = flat(output).view(torch.uint8)
    if len(data) < elements.numel():
        return torch.zeros_like(elements, dtype=torch.bool)
    return (data.view(elements.numel(), -1) == FILL).all(-1).view(elements.shape)


def _positions(places: torch.Tensor) -> str:
    """The number of wrong positions of an axis, and the first ones."""
    unique = sorted(set(places.tolist()))
    shown = ", ".join(map(str, unique[:_SHOWN_VALUES]))
    return f"{len(unique)} wrong: {shown}{', ...' if len(unique) > _SHOWN_VALUES else ''}"


def _inputs_at(definition: Definition, output: TensorSpec, index: Sequence[int], values: Values) -> dict[str, str]:
    """The inputs at the position that an output's element has on the axes that both share."""
    import torch
    from fib_bench.checking.comparison import is_float4

    places = dict(zip(output.shape or (), index, strict=True))
    shown = {}
    for name, spec in definition.inputs.items():
        value = values[name]
        if not isinstance(value, torch.Tensor) or spec.shape is None or is_float4(value):
            shown[name] = "packed" if isinstance(value, torch.Tensor) and spec.shape else str(value)
            continue
        key = tuple(places.get(axis, slice(None)) for axis in spec.shape)
        part = value[key].reshape(-1)[:_SHOWN_VALUES].double().tolist()
        where = ", ".join(str(places.get(axis, ":")) for axis in spec.shape)
        shown[f"{name}[{where}]"] = ", ".join(f"{number:.4g}" for number in part)
    return shown


def _output_lines(output: WrongOutput) -> Iterator[str]:
    axes = "; ".join(f"axis {axis}: {text}" for axis, text in output.wrong_per_axis.items())
    yield f"output {output.name}: {output.wrong} of {output.count} elements are wrong; {axes}"
    if output.unwritten:
        yield f"  {output.unwritten} elements look unwritten: they hold the bytes 0x{FILL:X} of the harness"
    for one in output.elements:
        inputs = "; ".join(f"{name} = {text}" for name, text in one.inputs.items())
        found = "unwritten" if one.is_unwritten else f"{one.found:.4g}"
        yield f"  {output.name}{list(one.index)} = {found}, expected {one.expected:.4g}; {inputs}"
