"""Tool `profile`: metrics of a solution's kernels, by Nsight Compute inside the sandbox."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import attrs
from fib_schema.display import counted

from .catalogue import floor_of
from .errors import CountersForbidden, InvalidArguments, ToolFailed
from .marked_text import fenced
from .profiler_output import SECTIONS, Kernel, Table, parse_profile, total_us
from .results import Result
from .workspace import Code, Workspace, choose_workloads, read_solution, require_gpu

PROFILE_CHARS = 2000
"""The length of the text of a profile unless the caller asks for another one."""
PROGRAM = "ncu"
REMEDY = "install Nsight Compute (part of the CUDA toolkit) and add it to PATH"
_PARAMETERS = Path("/proc/driver/nvidia/params")
WARM_CALLS = 2
_SHOWN = 10
_STALLS = 3


@attrs.frozen
class Profile(Result):
    """Metrics of the kernels of one call. They come from the process of the solution: advice, and no verdict."""

    definition: str
    solution: str
    workload: str
    kernels: tuple[Kernel, ...]
    total_us: float
    """The sum of the kernels' durations under the profiler, which flushes caches and fixes clocks."""
    floor_us: float | None
    """The least latency by the roofline; None if the work of the op_type is not declared."""
    isolation_level: int
    seconds: float
    phases: Mapping[str, float] = attrs.Factory(dict)
    """Seconds by phase, some of them as the process of the solution states them."""

    def to_text(self, max_chars: int = PROFILE_CHARS) -> str:
        """The text, by default in at most 2000 characters."""
        return super().to_text(max_chars)

    def lines(self) -> Iterator[str]:
        """A table of the kernels, then the top stalls of the slowest one."""
        kernels = counted(len(self.kernels), "kernel")
        yield f"{self.solution} on workload {self.workload}: {kernels}, {self.total_us:.2f} us"
        if self.floor_us is not None and self.total_us:
            share = self.floor_us / self.total_us
            yield f"roofline: at least {self.floor_us:.2f} us; the kernels reach {share:.0%} of it"
        slowest = sorted(self.kernels, key=lambda kernel: -(kernel.duration_us or 0.0))
        text = "\n".join(_kernel_line(kernel) for kernel in slowest[:_SHOWN])
        yield from fenced(text, "kernels by time")
        if len(slowest) > _SHOWN:
            yield f"and {counted(len(slowest) - _SHOWN, 'kernel')} more"
        if self.phases:
            yield "seconds: " + ", ".join(f"{name} {taken:.1f}" for name, taken in self.phases.items())


def profile(
    workspace: Workspace,
    definition: str,
    solution: Code,
    *,
    workload: str | None = None,
    sections: Sequence[str] = SECTIONS,
) -> Profile:
    """Profile the kernels of one call with Nsight Compute: time, shares of the peaks, occupancy, stalls. Needs a GPU.

    Args:
        workspace: Where to work.
        definition: The name of the definition.
        solution: The files, such as {"kernel.cu": source}, or the name of a solution of the data set.
        workload: The uuid of a workload; by default the last, which is often the largest.
        sections: Sections of Nsight Compute that are collected.

    Raises:
        NeedsGpu: The device is not a GPU of this machine.
        ToolMissing: ncu is not installed.
        CountersForbidden: The driver refuses performance counters.
        ToolFailed: It could not be run, or the call failed.
        UnknownName: There is no such definition, solution or workload.
    """
    from .sandboxed.jobs import Inspection, inspect_call, make_values
    from .sandboxed.run import find_program

    wrong = [
        f"section {section!r}: write its identifier, such as SpeedOfLight"
        for section in sections
        if not section.isidentifier()
    ]
    if wrong or not sections:
        raise InvalidArguments("profile", tuple(wrong) or (f"sections is empty; name some of {', '.join(SECTIONS)}",))
    trace_set = workspace.open()
    found = trace_set.get_definition(definition)
    given = read_solution(workspace, trace_set, found, solution)
    chosen = choose_workloads(trace_set, found, None if workload is None else [workload], 2)[-1]
    require_gpu(workspace, "profile")
    program = find_program(PROGRAM, REMEDY)
    begin = time.monotonic()
    values = make_values(workspace, found, chosen, "normal")
    made = time.monotonic()
    inspection = Inspection(
        definition=found,
        solution=given,
        workload=chosen,
        values=values,
        command=lambda log, call: profiler_command(program, sections, log, call),
        timeout_seconds=2 * workspace.timeout_seconds,
        warm_calls=WARM_CALLS,
    )
    log, ended = inspect_call(workspace, inspection)
    read = time.monotonic()
    table = checked_table(log, ended.code, ended.output)
    phases = {"inputs on the CPU": made - begin, "wait and files": read - made - ended.seconds, **ended.phases}
    phases["report"] = time.monotonic() - read
    floor_ms = floor_of(workspace, found, chosen, values)[2]
    return Profile(
        definition=definition,
        solution=given.name,
        workload=chosen.uuid,
        kernels=table.kernels,
        total_us=total_us(table.kernels),
        floor_us=None if floor_ms is None else 1e3 * floor_ms,
        isolation_level=ended.isolation_level,
        seconds=ended.seconds,
        phases=phases,
    )


def profiler_command(program: str, sections: Sequence[str], log: str, call: Sequence[str]) -> list[str]:
    """The command line of a profile: one call, between ``cudaProfilerStart`` and ``cudaProfilerStop``."""
    chosen = [option for section in sections for option in ("--section", section)]
    options = ["--csv", "--page", "raw", "--print-units", "base", "--log-file", log, "--profile-from-start", "off"]
    return [program, *options, "--launch-count", "100", *chosen, *call]


def checked_table(log: str, code: int | None, output: str) -> Table:
    """The kernels of a profile.

    Raises:
        CountersForbidden: The driver refuses performance counters.
        ToolFailed: There is no kernel, or the tool did not work.
    """
    table = parse_profile(log)
    if table.is_forbidden or (not table.kernels and parse_profile(output).is_forbidden):
        raise CountersForbidden(is_admin_only())
    if not table.kernels:
        if code is None:
            raise ToolFailed(PROGRAM, "ended by the time limit; choose a smaller workload", output[-1000:])
        problem = f"no kernel was profiled, exit status {code}; the call launched none, or failed"
        raise ToolFailed(PROGRAM, problem, (output.strip() or log.strip())[-1500:])
    return table


def is_admin_only() -> bool | None:
    """Whether the driver reserves counters to administrators; None if it does not say."""
    try:
        text = _PARAMETERS.read_text()
    except OSError:
        return None
    lines = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    value = lines.get("RmProfilingAdminOnly", "").strip()
    return None if value not in ("0", "1") else value == "1"


def _kernel_line(kernel: Kernel) -> str:
    parts = [kernel.name[:60]]
    if kernel.duration_us is not None:
        parts.append(f"{kernel.duration_us:.2f} us")
    percent = kernel.percent
    parts += [f"{name} {percent[name]:.0f}%" for name in ("compute", "memory", "dram", "occupancy") if name in percent]
    if "registers" in kernel.launch:
        parts.append(f"{kernel.launch['registers']:.0f} registers")
    if kernel.shared_bytes:
        parts.append(f"{kernel.shared_bytes:.0f} B shared")
    if "grid_blocks" in kernel.launch and "block_threads" in kernel.launch:
        parts.append(f"grid {kernel.launch['grid_blocks']:.0f} x {kernel.launch['block_threads']:.0f} threads")
    if "waves" in kernel.launch:
        parts.append(f"{kernel.launch['waves']:.2f} waves")
    if kernel.limiter is not None:
        parts.append(f"occupancy limited by {kernel.limiter}")
    if kernel.stalls:
        parts.append("stalls: " + ", ".join(f"{name} {value:.1f}" for name, value in kernel.stalls[:_STALLS]))
    return "; ".join(parts)
