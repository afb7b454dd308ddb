"""Reports of Nsight Compute and compute-sanitizer as text, for callers that choose the options of these tools.

`profile` and `sanitize` return parsed values; the functions here return what the tools write, marked as untrusted.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
from fib_schema import Solution, UnknownName, Workload
from fib_schema.display import escape_controls

from . import profiling, sanitizing
from .errors import CountersForbidden, InvalidArguments, ToolFailed
from .marked_text import fenced
from .profiler_output import forbids_counters
from .workspace import Workspace, require_gpu

if TYPE_CHECKING:
    from .sandboxed.run import Finished

PAGES = ("details", "raw", "source")
_MAX_CHARS = 32 << 20
_END_CHARS = 1500


@attrs.frozen(kw_only=True)
class ProfilerOptions:
    """Options of Nsight Compute.

    Args:
        section_set: A set of sections, such as ``detailed``; `list_profiler_options` has their names.
        sections: More sections.
        kernel: The name of the only kernel that is profiled, or ``regex:EXPRESSION``; None for all.
        page: One of `PAGES`.

    Raises:
        InvalidArguments: A name could be read as another option, or there is no such page.
    """

    section_set: str = "detailed"
    sections: Sequence[str] | None = None
    kernel: str | None = None
    page: str = "details"

    def __attrs_post_init__(self) -> None:
        wrong = [
            f"{name!r} is not an identifier of a set or section; list_profiler_options has them"
            for name in (self.section_set, *(self.sections or ()))
            if not name.isidentifier()
        ]
        if self.page not in PAGES:
            wrong.append(f"page {self.page!r} is none of {', '.join(PAGES)}")
        if self.kernel is not None and (not self.kernel or self.kernel.startswith("-")):
            wrong.append(f"kernel {self.kernel!r} is not a name of a kernel")
        if wrong:
            raise InvalidArguments("profile", tuple(wrong))

    def command(self, program: str, log: str, call: Sequence[str]) -> list[str]:
        """The command line: one call, between ``cudaProfilerStart`` and ``cudaProfilerStop``."""
        chosen = [option for section in self.sections or () for option in ("--section", section)]
        only = [] if self.kernel is None else ["--kernel-name", self.kernel]
        options = ["--set", self.section_set, *chosen, *only, "--page", self.page, "--launch-count", "100"]
        return [program, *options, "--log-file", log, "--profile-from-start", "off", *call]


def list_profiler_options(program: str = profiling.PROGRAM, *, timeout_seconds: float = 60.0) -> str:
    """The sets and sections of Nsight Compute, as ``ncu`` lists them.

    Raises:
        ToolMissing: ncu is not installed.
        ToolFailed: It cannot be run, or fails.
    """
    from .sandboxed.run import find_program

    path = find_program(program, profiling.REMEDY)
    return "\n".join(_listing(path, option, timeout_seconds) for option in ("--list-sets", "--list-sections"))


def profile_report(
    workspace: Workspace,
    solution: Solution,
    workload: Workload,
    options: ProfilerOptions,
    *,
    program: str = profiling.PROGRAM,
) -> str:
    """The report of Nsight Compute on one call of a solution. Needs a GPU; the time limit is the workspace's.

    Raises:
        NeedsGpu: The device is not a GPU of this machine.
        ToolMissing: ncu is not installed.
        CountersForbidden: The driver refuses performance counters.
        ToolFailed: It could not be run, or the call failed.
        UnknownName: The data set has no such definition.
    """
    from .sandboxed.run import find_program

    require_gpu(workspace, "profile")
    path = find_program(program, profiling.REMEDY)
    command, variables = partial(options.command, path), _path_with(path)
    log, ended = run_tool(
        workspace, solution, workload, command, environment=variables, warm_calls=profiling.WARM_CALLS
    )
    return checked_report(log, ended.code, ended.output, options.page)


def checked_report(log: str, code: int | None, output: str, page: str) -> str:
    """The report in a log of Nsight Compute, marked as untrusted.

    Raises:
        CountersForbidden: The driver refuses performance counters.
        ToolFailed: There is none, or the call failed.
    """
    if forbids_counters(log) or (not log.strip() and forbids_counters(output)):
        raise CountersForbidden(profiling.is_admin_only())
    if code is None:
        raise ToolFailed(profiling.PROGRAM, "ended by the time limit; allow more time or choose a smaller workload")
    if code != 0 or not log.strip():
        problem = f"wrote no report, exit status {code}" if not log.strip() else f"the call failed, exit status {code}"
        raise ToolFailed(profiling.PROGRAM, problem, (output.strip() or log.strip())[-_END_CHARS:])
    return "\n".join(fenced(log, f"report of ncu, page {page}", _MAX_CHARS))


def sanitizer_report(
    workspace: Workspace,
    solution: Solution,
    workload: Workload,
    checks: Sequence[str] = sanitizing.CHECKS,
    *,
    program: str = sanitizing.PROGRAM,
) -> str:
    """The reports of compute-sanitizer on a solution. Needs a GPU; each check has the time limit of the workspace.

    Raises:
        NeedsGpu: The device is not a GPU of this machine.
        ToolMissing: compute-sanitizer is not installed.
        ToolFailed: It could not be run.
        UnknownName: There is no such check, or the data set has no such definition.
        InvalidArguments: No check is named.
    """
    from .sandboxed.run import find_program

    if not checks:
        raise InvalidArguments("sanitize", (f"checks is empty; name some of {', '.join(sanitizing.CHECKS)}",))
    for check in checks:
        if check not in sanitizing.CHECKS:
            raise UnknownName("check", check, sanitizing.CHECKS)
    require_gpu(workspace, "sanitize")
    path = find_program(program, sanitizing.REMEDY)
    given = sanitizing.with_lines(solution)
    return "\n\n".join("\n".join(_checked(workspace, given, workload, path, check)) for check in dict.fromkeys(checks))


def _checked(workspace: Workspace, solution: Solution, workload: Workload, path: str, check: str) -> Iterator[str]:
    command = partial(sanitizing.sanitizer_command, path, check)
    variables = {**sanitizing.ENVIRONMENT, **_path_with(path)}
    log, ended = run_tool(workspace, solution, workload, command, environment=variables)
    result = sanitizing.check_result(check, log, ended.code, ended.output, ended.seconds)
    verdict = f"did not finish: {result.problem}" if result.problem else f"{len(result.defects)} kinds of defects"
    yield f"{check}: {verdict}"
    yield from fenced(log, f"report of {check}", _MAX_CHARS)
    if result.output:
        yield from fenced(result.output, "output of the call")


def run_tool(
    workspace: Workspace,
    solution: Solution,
    workload: Workload,
    command: Callable[[str, list[str]], list[str]],
    *,
    environment: Mapping[str, str] | None = None,
    warm_calls: int = 0,
) -> tuple[str, Finished]:
    """Run a tool on one call of a solution; see `inspect_call`.

    Raises:
        UnknownName: The data set has no such definition.
        InputError: The inputs of the workload cannot be made.
        ToolFailed: The tool could not be run.
    """
    from .sandboxed.jobs import Inspection, inspect_call, make_values

    definition = workspace.open().get_definition(solution.definition)
    inspection = Inspection(
        definition=definition,
        solution=solution,
        workload=workload,
        values=make_values(workspace, definition, workload, "normal"),
        command=command,
        timeout_seconds=workspace.timeout_seconds,
        environment=environment or {},
        warm_calls=warm_calls,
    )
    return inspect_call(workspace, inspection)


def _path_with(program: str) -> dict[str, str]:
    """The search path with the folders of a program, which the sandbox opens, because the caller has named them."""
    path = Path(program)
    folders = (str(path.parent), str(path.resolve().parent), os.environ.get("PATH", ""))
    return {"PATH": os.pathsep.join(filter(None, dict.fromkeys(folders)))}


def _listing(program: str, option: str, seconds: float) -> str:
    """Text that a program prints for an option."""
    try:
        ended = subprocess.run(
            [program, option], stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ToolFailed(program, f"{option} did not end within {seconds:g} s") from error
    except OSError as error:
        raise ToolFailed(program, f"cannot be run: {error.strerror or error}") from error
    text = ended.stdout.decode("utf-8", "replace")
    if ended.returncode != 0 or not text.strip():
        shown = ended.stderr.decode("utf-8", "replace") or text
        raise ToolFailed(program, f"{option} failed with exit status {ended.returncode}", shown[-_END_CHARS:])
    return escape_controls(text.rstrip())
