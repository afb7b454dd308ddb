"""Tool `sanitize`: memory defects of a solution's kernels, by compute-sanitizer inside the sandbox."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import attrs
from fib_schema import CompileOptions, Solution, UnknownName

from .errors import InvalidArguments, ToolFailed
from .marked_text import fenced
from .results import Result, untrusted
from .sanitizer_output import Defect, parse_sanitizer
from .workspace import Code, Workspace, choose_workloads, read_solution, require_gpu

CHECKS = ("memcheck", "racecheck", "initcheck", "synccheck")
PROGRAM = "compute-sanitizer"
REMEDY = "install the CUDA toolkit (cuda-sanitizer) and add its bin folder to PATH"
ENVIRONMENT = {
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",  # else an access beyond a tensor lands in another one of the same block
    "CUDA_LAUNCH_BLOCKING": "1",
}
_DEFECT_EXIT = 86
_SECONDS = 5
"""The time limit of one check in multiples of the workspace's: instrumented kernels are slow."""
_SHOWN = 12


@attrs.frozen
class Check:
    """The result of one check."""

    tool: str
    defects: tuple[Defect, ...]
    summary: str = untrusted()
    seconds: float = 0.0
    problem: str = ""
    """The reason that the check did not finish; empty if it did."""
    output: str = untrusted(default="")
    """The end of what a call has printed that failed."""


@attrs.frozen
class Sanitized(Result):
    """Defects of a solution on one workload."""

    definition: str
    solution: str
    workload: str
    checks: tuple[Check, ...]
    isolation_level: int

    @property
    def is_clean(self) -> bool:
        """Whether all checks finished and found nothing."""
        return bool(self.checks) and all(not check.defects and not check.problem for check in self.checks)

    def lines(self) -> Iterator[str]:
        """Each check with its defects."""
        yield f"{self.solution} on workload {self.workload}, isolation level {self.isolation_level}"
        for check in self.checks:
            if check.problem:
                yield f"{check.tool}: did not finish: {check.problem}"
                yield from fenced(check.output, "output of the call") if check.output else ()
            elif not check.defects:
                yield f"{check.tool}: no defect in {check.seconds:.1f} s"
            if check.defects:
                text = "\n".join(_defect_line(defect) for defect in check.defects[:_SHOWN])
                left = len(check.defects) - _SHOWN
                yield from fenced(f"{text}\nand {left} more" if left > 0 else text, f"report of {check.tool}")


def sanitize(
    workspace: Workspace,
    definition: str,
    solution: Code,
    *,
    checks: Sequence[str] = ("memcheck",),
    workload: str | None = None,
) -> Sanitized:
    """Look for memory defects: accesses out of bounds, races, uninitialised reads, wrong barriers. Needs a GPU.

    Args:
        workspace: Where to work.
        definition: The name of the definition.
        solution: The files, such as {"kernel.cu": source}, or the name of a solution of the data set.
        checks: Some of memcheck, racecheck, initcheck, synccheck; each runs the solution once.
        workload: The uuid of a workload; by default the first.

    Raises:
        NeedsGpu: The device is not a GPU of this machine.
        ToolMissing: compute-sanitizer is not installed.
        ToolFailed: It could not be run.
        UnknownName: There is no such definition, solution, workload or check.
    """
    from .sandboxed.jobs import Inspection, inspect_call, make_values
    from .sandboxed.run import find_program

    if not checks:
        raise InvalidArguments("sanitize", (f"checks is empty; name some of {', '.join(CHECKS)}",))
    for check in checks:
        if check not in CHECKS:
            raise UnknownName("check", check, CHECKS)
    trace_set = workspace.open()
    found = trace_set.get_definition(definition)
    given = with_lines(read_solution(workspace, trace_set, found, solution))
    (chosen,) = choose_workloads(trace_set, found, None if workload is None else [workload], 1)
    require_gpu(workspace, "sanitize")
    program = find_program(PROGRAM, REMEDY)
    values = make_values(workspace, found, chosen, "normal")
    results, level = [], 3
    for number, check in enumerate(dict.fromkeys(checks)):
        workspace.progress(number, len(checks), check)
        inspection = Inspection(
            definition=found,
            solution=given,
            workload=chosen,
            values=values,
            command=partial(sanitizer_command, program, check),
            timeout_seconds=_SECONDS * workspace.timeout_seconds,
            environment=ENVIRONMENT,
        )
        log, ended = inspect_call(workspace, inspection)
        results.append(check_result(check, log, ended.code, ended.output, ended.seconds))
        level = min(level, ended.isolation_level)
    return Sanitized(definition, given.name, chosen.uuid, tuple(results), level)


def with_lines(solution: Solution) -> Solution:
    """The solution, built with the numbers of its source lines if it is in CUDA; Triton keeps them anyway."""
    spec = solution.spec
    if str(spec.language) not in ("cuda", "cutlass"):
        return solution
    options = spec.compile_options or CompileOptions()
    flags = dict.fromkeys((*options.cuda_cflags, "-lineinfo"))
    return attrs.evolve(
        solution, spec=attrs.evolve(spec, compile_options=attrs.evolve(options, cuda_cflags=tuple(flags)))
    )


def sanitizer_command(program: str, check: str, log: str, call: Sequence[str]) -> list[str]:
    """The command line of one check."""
    options = ["--tool", check, "--log-file", log, "--print-limit", "100", "--error-exitcode", str(_DEFECT_EXIT)]
    extra = {"racecheck": ["--racecheck-report", "analysis"], "memcheck": ["--report-api-errors", "no"]}
    return [program, *options, *extra.get(check, []), *call]


def check_result(check: str, log: str, code: int | None, output: str, seconds: float) -> Check:
    """The result of a check by its log and its exit status.

    Raises:
        ToolFailed: The tool itself did not work.
    """
    defects, summary = parse_sanitizer(log)
    problem, shown = "", ""
    if code is None:
        problem = f"ended after {seconds:.0f} s; choose a smaller workload"
    elif not summary and not defects:
        raise ToolFailed(f"{PROGRAM} --tool {check}", f"wrote no summary, exit status {code}", (log or output)[-1500:])
    elif code not in (0, _DEFECT_EXIT) and not defects:
        problem, shown = f"the call failed with exit status {code}", output.strip()[-600:]
    return Check(check, defects, summary, seconds, problem, shown)


def _defect_line(defect: Defect) -> str:
    places = " and ".join(map(str, defect.places)) or "place unknown"
    count = f", {defect.count} times" if defect.count > 1 else ""
    return f"{defect.kind} at {places}{count}; {defect.detail}".rstrip("; ")
