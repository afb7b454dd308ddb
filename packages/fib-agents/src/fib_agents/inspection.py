"""Tools that look into one call of a solution: Nsight Compute, compute-sanitizer and disassemblers, in the sandbox.

Their output is text for a model to read, marked as untrusted, because the solution runs as the same user and can write
into the same log. `profile`, `sanitize` and `disassemble` are the tools of agents; `profile_report` and
`sanitizer_report` are for callers that choose the options of these programs.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
from fib_schema import CompileOptions, Definition, Solution, UnknownName, Workload
from fib_schema.display import escape_controls

from .errors import CountersForbidden, InvalidArguments, ToolFailed
from .results import Result, fenced, shorten, untrusted
from .workspace import Code, Workspace, choose_workloads, read_solution, require_gpu

if TYPE_CHECKING:
    from .sandboxed.run import Finished

SECTIONS = ("SpeedOfLight", "MemoryWorkloadAnalysis", "WarpStateStats", "LaunchStats", "Occupancy")
"""The sections of a profile unless the caller names others."""
PAGES = ("details", "raw", "source")
CHECKS = ("memcheck", "racecheck", "initcheck", "synccheck")
_NCU, _NCU_REMEDY = "ncu", "install Nsight Compute (part of the CUDA toolkit) and add it to PATH"
_SANITIZER = "compute-sanitizer"
_SANITIZER_REMEDY = "install the CUDA toolkit (cuda-sanitizer) and add its bin folder to PATH"
_DISASSEMBLERS = {
    "cuobjdump": "install the CUDA toolkit (cuda-cuobjdump) and add its bin folder to PATH",
    "nvdisasm": "install the CUDA toolkit (cuda-nvdisasm) and add its bin folder to PATH",
}
_SANITIZER_VARIABLES = {
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",  # else an access beyond a tensor lands in another one of the same block
    "CUDA_LAUNCH_BLOCKING": "1",
}
_FORBIDDEN = re.compile(r"ERR_NVGPUCTRPERM|insufficient (?:permissions|privileges)", re.I)
_ARCHITECTURE = re.compile(r"\d{1,2}\.\d[af]?")
_DEFECT_EXIT = 86
_WARM_CALLS = 2
_SANITIZER_SECONDS = 5
"""The time limit of one check in multiples of the workspace's: instrumented kernels are slow."""
_MAX_CHARS = 32 << 20
_MAX_CODE = 100_000
_END_CHARS = 1500


# -- profiles --------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class ProfilerOptions:
    """Options of Nsight Compute.

    Args:
        section_set: A set of sections, such as ``detailed``; `list_profiler_options` has their names. None for none.
        sections: More sections.
        kernel: The name of the only kernel that is profiled, or ``regex:EXPRESSION``; None for all.
        page: One of `PAGES`.

    Raises:
        InvalidArguments: A name could be read as another option, or there is no such page.
    """

    section_set: str | None = "detailed"
    sections: Sequence[str] | None = None
    kernel: str | None = None
    page: str = "details"

    def __attrs_post_init__(self) -> None:
        names = [*([] if self.section_set is None else [self.section_set]), *(self.sections or ())]
        unknown = (name for name in names if not name.isidentifier())
        wrong = [f"{name!r} is not a set or section; list_profiler_options has them" for name in unknown]
        if not names:
            wrong.append(f"sections is empty; name some of {', '.join(SECTIONS)}")
        if self.page not in PAGES:
            wrong.append(f"page {self.page!r} is none of {', '.join(PAGES)}")
        if self.kernel is not None and (not self.kernel or self.kernel.startswith("-")):
            wrong.append(f"kernel {self.kernel!r} is not a name of a kernel")
        if wrong:
            raise InvalidArguments("profile", tuple(wrong))

    def command(self, program: str, log: str, call: Sequence[str]) -> list[str]:
        """The command line: one call, between ``cudaProfilerStart`` and ``cudaProfilerStop``."""
        chosen = [] if self.section_set is None else ["--set", self.section_set]
        chosen += [option for section in self.sections or () for option in ("--section", section)]
        only = [] if self.kernel is None else ["--kernel-name", self.kernel]
        options = [*chosen, *only, "--page", self.page, "--launch-count", "100"]
        return [program, *options, "--log-file", log, "--profile-from-start", "off", *call]


@attrs.frozen
class Profile(Result):
    """The profile of the kernels of one call. It comes from the process of the solution: advice, and no verdict."""

    definition: str
    solution: str
    workload: str
    report: str = untrusted()
    """The text of Nsight Compute, which flushes caches and fixes clocks."""

    def lines(self) -> Iterator[str]:
        """The workload, then the report."""
        yield f"{self.solution} on workload {self.workload}"
        yield from fenced(self.report, "report of ncu", _MAX_CHARS)


def profile(
    workspace: Workspace,
    definition: str,
    solution: Code,
    *,
    workload: str | None = None,
    sections: Sequence[str] = SECTIONS,
    kernel: str | None = None,
) -> Profile:
    """Profile the kernels of one call with Nsight Compute: time, shares of the peaks, occupancy, stalls. Needs a GPU.

    Args:
        workspace: Where to work.
        definition: The name of the definition.
        solution: The files, such as {"kernel.cu": source}, or the name of a solution of the data set.
        workload: The uuid of a workload; by default the last, which is often the largest.
        sections: Sections of Nsight Compute that are collected.
        kernel: The name of the only kernel that is profiled, or regex:EXPRESSION; by default all.

    Raises:
        NeedsGpu: The device is not a GPU of this machine.
        ToolMissing: ncu is not installed.
        CountersForbidden: The driver refuses performance counters.
        ToolFailed: It could not be run, or the call failed.
        UnknownName: There is no such definition, solution or workload.
    """
    options = ProfilerOptions(section_set=None, sections=sections, kernel=kernel)
    found, given, chosen = _chosen(workspace, definition, solution, workload, 2)
    report = _profiled(workspace, found, given, chosen, options, _NCU, 2 * workspace.timeout_seconds)
    return Profile(definition, given.name, chosen.uuid, report)


def profile_report(
    workspace: Workspace, solution: Solution, workload: Workload, options: ProfilerOptions, *, program: str = _NCU
) -> str:
    """The report of Nsight Compute on one call of a solution. Needs a GPU; the time limit is the workspace's.

    Raises:
        FibError: As `profile`.
    """
    require_gpu(workspace, "profile")
    definition = workspace.open().get_definition(solution.definition)
    report = _profiled(workspace, definition, solution, workload, options, program, workspace.timeout_seconds)
    return "\n".join(fenced(report, f"report of ncu, page {options.page}", _MAX_CHARS))


def _profiled(
    workspace: Workspace,
    definition: Definition,
    solution: Solution,
    workload: Workload,
    options: ProfilerOptions,
    program: str,
    timeout_seconds: float,
) -> str:
    from .sandboxed.run import find_program

    require_gpu(workspace, "profile")
    path = find_program(program, _NCU_REMEDY)
    log, ended = run_tool(
        workspace, definition, solution, workload, partial(options.command, path),
        timeout_seconds=timeout_seconds, environment=_path_with(path), warm_calls=_WARM_CALLS,
    )  # fmt: skip
    return checked_profile(log, ended.code, ended.output)


def checked_profile(log: str, code: int | None, output: str) -> str:
    """The log of Nsight Compute.

    Raises:
        CountersForbidden: The driver refuses performance counters.
        ToolFailed: There is no report, or the call failed.
    """
    if _FORBIDDEN.search(log) or (not log.strip() and _FORBIDDEN.search(output)):
        raise CountersForbidden
    if code is None:
        raise ToolFailed(_NCU, "ended by the time limit; allow more time or choose a smaller workload")
    if code != 0 or not log.strip():
        problem = f"wrote no report, exit status {code}" if not log.strip() else f"the call failed, exit status {code}"
        raise ToolFailed(_NCU, problem, (output.strip() or log.strip())[-_END_CHARS:])
    return log


def list_profiler_options(program: str = _NCU, *, timeout_seconds: float = 60.0) -> str:
    """The sets and sections of Nsight Compute, as ``ncu`` lists them.

    Raises:
        ToolMissing: ncu is not installed.
        ToolFailed: It cannot be run, or fails.
    """
    from .sandboxed.run import find_program

    path = find_program(program, _NCU_REMEDY)
    return "\n".join(_listing(path, option, timeout_seconds) for option in ("--list-sets", "--list-sections"))


def _listing(program: str, option: str, seconds: float) -> str:
    """Text that a program prints for an option."""
    command = [program, option]
    try:
        ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired as error:
        raise ToolFailed(program, f"{option} did not end within {seconds:g} s") from error
    except OSError as error:
        raise ToolFailed(program, f"cannot be run: {error.strerror or error}") from error
    text = ended.stdout.decode("utf-8", "replace")
    if ended.returncode != 0 or not text.strip():
        shown = ended.stderr.decode("utf-8", "replace") or text
        raise ToolFailed(program, f"{option} failed with exit status {ended.returncode}", shown[-_END_CHARS:])
    return escape_controls(text.rstrip())


# -- memory defects --------------------------------------------------------------------------------


@attrs.frozen
class Check:
    """The result of one check."""

    tool: str
    has_defects: bool
    """Whether the tool says that it found some, by its exit status."""
    seconds: float
    problem: str = ""
    """The reason that the check did not finish; empty if it did."""
    report: str = untrusted(default="")
    output: str = untrusted(default="")
    """The end of what a call has printed that failed."""

    def lines(self, *, shows_all: bool = False) -> Iterator[str]:
        """The findings, then the report if it has any, or `shows_all`."""
        verdict = "found defects" if self.has_defects else f"no defect in {self.seconds:.1f} s"
        yield f"{self.tool}: did not finish: {self.problem}" if self.problem else f"{self.tool}: {verdict}"
        if shows_all or self.has_defects or self.problem:
            yield from fenced(self.report, f"report of {self.tool}", _MAX_CHARS)
        yield from fenced(self.output, "output of the call") if self.output else ()


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
        return bool(self.checks) and not any(check.has_defects or check.problem for check in self.checks)

    def lines(self) -> Iterator[str]:
        """Each check with its report."""
        yield f"{self.solution} on workload {self.workload}, isolation level {self.isolation_level}"
        for check in self.checks:
            yield from check.lines()


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
    _require_known(checks)
    found, given, chosen = _chosen(workspace, definition, solution, workload, 1)
    limit = _SANITIZER_SECONDS * workspace.timeout_seconds
    ran = list(_sanitized(workspace, found, given, chosen, checks, _SANITIZER, limit))
    level = min(ended.isolation_level for _, ended in ran)
    return Sanitized(definition, given.name, chosen.uuid, tuple(check for check, _ in ran), level)


def sanitizer_report(
    workspace: Workspace,
    solution: Solution,
    workload: Workload,
    checks: Sequence[str] = CHECKS,
    *,
    program: str = _SANITIZER,
) -> str:
    """The reports of compute-sanitizer on a solution. Needs a GPU; each check has the time limit of the workspace.

    Raises:
        FibError: As `sanitize`.
    """
    _require_known(checks)
    definition = workspace.open().get_definition(solution.definition)
    limit = workspace.timeout_seconds
    ran = _sanitized(workspace, definition, solution, workload, checks, program, limit)
    return "\n\n".join("\n".join(check.lines(shows_all=True)) for check, _ in ran)


def _require_known(checks: Sequence[str]) -> None:
    if not checks:
        raise InvalidArguments("sanitize", (f"checks is empty; name some of {', '.join(CHECKS)}",))
    for check in checks:
        if check not in CHECKS:
            raise UnknownName("check", check, CHECKS)


def _sanitized(
    workspace: Workspace,
    definition: Definition,
    solution: Solution,
    workload: Workload,
    checks: Sequence[str],
    program: str,
    timeout_seconds: float,
) -> Iterator[tuple[Check, Finished]]:
    from .sandboxed.run import find_program

    require_gpu(workspace, "sanitize")
    path = find_program(program, _SANITIZER_REMEDY)
    for number, check in enumerate(dict.fromkeys(checks)):
        workspace.progress(number, len(checks), check)
        log, ended = run_tool(
            workspace, definition, with_lines(solution), workload, partial(sanitizer_command, path, check),
            timeout_seconds=timeout_seconds, environment={**_SANITIZER_VARIABLES, **_path_with(path)},
        )  # fmt: skip
        yield check_result(check, log, ended.code, ended.output, ended.seconds), ended


def with_lines(solution: Solution) -> Solution:
    """The solution, built with the numbers of its source lines if it is in CUDA; Triton keeps them anyway."""
    spec = solution.spec
    if str(spec.language) not in ("cuda", "cutlass"):
        return solution
    options = spec.compile_options or CompileOptions()
    flags = tuple(dict.fromkeys((*options.cuda_cflags, "-lineinfo")))
    return attrs.evolve(solution, spec=attrs.evolve(spec, compile_options=attrs.evolve(options, cuda_cflags=flags)))


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
    if code is None:
        return Check(check, False, seconds, f"ended after {seconds:.0f} s; choose a smaller workload", log)
    if "SUMMARY" not in log:
        problem = f"wrote no summary, exit status {code}"
        raise ToolFailed(f"{_SANITIZER} --tool {check}", problem, (log or output)[-_END_CHARS:])
    if code not in (0, _DEFECT_EXIT):
        return Check(check, False, seconds, f"the call failed with exit status {code}", log, output.strip()[-600:])
    return Check(check, code == _DEFECT_EXIT, seconds, report=log)


# -- machine code ----------------------------------------------------------------------------------


@attrs.frozen
class Disassembly(Result):
    """The machine code of a solution."""

    definition: str
    solution: str
    resources: str = untrusted()
    """Registers, stack and shared memory of each kernel."""
    code: str = untrusted()
    """SASS, the middle of long code left out."""
    ptx: str = untrusted()

    def lines(self) -> Iterator[str]:
        """The resources, then the code."""
        yield self.solution
        yield from fenced(self.resources, "registers, stack and memory", _END_CHARS) if self.resources else ()
        yield from fenced(self.code, "disassembly", _MAX_CODE)


def disassemble(
    workspace: Workspace, definition: str, solution: Code, *, architecture: str | None = None
) -> Disassembly:
    """Show machine code of kernels: registers, shared memory, spills, SASS and PTX.

    Args:
        workspace: Where to work.
        definition: The name of the definition.
        solution: The files, such as {"kernel.cu": source}, or the name of a solution of the data set.
        architecture: Compile CUDA code for this one, such as 9.0a; needs no GPU. By default that of the device.

    Raises:
        NeedsGpu: The solution is compiled when it is called, and the device is not a GPU of this machine.
        ToolMissing: cuobjdump or nvdisasm is not installed.
        ToolFailed: The solution has no machine code, or does not build.
        UnknownName: There is no such definition or solution.
    """
    from .sandboxed.call import CODE, MAX_DUMP_BYTES, PTX, RESOURCES
    from .sandboxed.run import COMMAND, Sandbox, find_program, make_values, write_job

    found, given, workload = _chosen(workspace, definition, solution, None, 1)
    if str(given.spec.language) not in ("cuda", "cutlass"):
        require_gpu(workspace, "disassemble")
    if architecture is not None and not _ARCHITECTURE.fullmatch(architecture):
        raise InvalidArguments("disassemble", (f"architecture {architecture!r}: write it as 9.0 or 9.0a",))
    programs = {name: find_program(name, remedy) for name, remedy in _DISASSEMBLERS.items()}
    with Sandbox(workspace, given) as sandbox:
        job = write_job(sandbox, workspace, found, given, workload, make_values(workspace, found, workload))[-1]
        command = [*COMMAND, "dump", job, json.dumps(programs)]
        variables = {} if architecture is None else {"FIB_CUDA_ARCH_LIST": architecture}
        ended = sandbox.run(command, timeout_seconds=2 * workspace.timeout_seconds, environment=variables)
        if ended.code != 0:
            raise ToolFailed(given.name, f"building or calling it {ended.end}", ended.output[-_END_CHARS:])
        resources, code, ptx = (
            (sandbox.read(name, MAX_DUMP_BYTES) or b"").decode("utf-8", "replace") for name in (RESOURCES, CODE, PTX)
        )
    if not code.strip():
        raise ToolFailed(given.name, f"has no machine code of its own on {workspace.device}")
    shown = (shorten(text, _MAX_CODE) for text in (resources, code, ptx))
    return Disassembly(definition, given.name, *shown)


# -- calls in the sandbox --------------------------------------------------------------------------


def run_tool(
    workspace: Workspace,
    definition: Definition,
    solution: Solution,
    workload: Workload,
    command: Callable[[str, list[str]], list[str]],
    *,
    timeout_seconds: float,
    environment: Mapping[str, str] | None = None,
    warm_calls: int = 0,
) -> tuple[str, Finished]:
    """Run a tool on one call of a solution, alone on the device; returns its log, which is untrusted, and its end.

    `command` makes the command line from the path of the log and the command line of the call.

    Raises:
        InputError: The inputs of the workload cannot be made.
        ToolFailed: The tool could not be run, or its log cannot be read.
        CancelledError: The workspace was cancelled.
    """
    from .sandboxed.run import Sandbox, device_alone, make_values, write_job

    with Sandbox(workspace, solution, local_sockets=True) as sandbox:
        values = make_values(workspace, definition, workload)
        call = write_job(sandbox, workspace, definition, solution, workload, values, warm_calls=warm_calls)
        sandbox.build(call, timeout_seconds=timeout_seconds)
        with device_alone(workspace):
            line = command(str(sandbox.log_path), call)
            ended = sandbox.run(line, timeout_seconds=timeout_seconds, environment=environment)
        return (sandbox.read_log(_MAX_CHARS) or b"").decode("utf-8", "replace"), ended


def _chosen(
    workspace: Workspace, definition: str, solution: Code, workload: str | None, count: int
) -> tuple[Definition, Solution, Workload]:
    """Definition, solution and workload of a tool; the last of `count` workloads if none is named."""
    trace_set = workspace.open()
    found = trace_set.get_definition(definition)
    given = read_solution(workspace, trace_set, found, solution)
    return found, given, choose_workloads(trace_set, found, None if workload is None else [workload], count)[-1]


def _path_with(program: str) -> dict[str, str]:
    """The search path with the folders of a program, which the sandbox opens, because the caller has named them."""
    path = Path(program)
    folders = (str(path.parent), str(path.resolve().parent), os.environ.get("PATH", ""))
    return {"PATH": os.pathsep.join(filter(None, dict.fromkeys(folders)))}
