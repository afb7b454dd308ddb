"""Exceptions of fib-agents. What is wrong with a solution is a result, not an exception."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
from fib_schema import FibError

from .results import fenced


@attrs.frozen
class ToolMissing(FibError, FileNotFoundError):
    """A program that a tool runs is not installed."""

    program: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.program} is not on PATH; {self.remedy}"


@attrs.frozen
class ToolFailed(FibError, RuntimeError):
    """A program that a tool runs failed; its output is untrusted, because the solution ran inside."""

    program: str
    problem: str
    output: str = ""

    def __str__(self) -> str:
        end = fenced(self.output, f"end of the output of {self.program}") if self.output.strip() else ()
        return "\n".join((f"{self.program}: {self.problem}", *end))


@attrs.frozen
class CountersForbidden(FibError, PermissionError):
    """The driver refuses performance counters to this user."""

    def __str__(self) -> str:
        return (
            "ncu: the driver refuses performance counters to this process. An administrator allows them to all users "
            "with the module option NVreg_RestrictProfilingToAdminUsers=0 of nvidia; a container needs that on its "
            "host. The sandbox drops the capability that would allow them otherwise"
        )


@attrs.frozen
class NeedsGpu(FibError, RuntimeError):
    """A tool that looks at a GPU was called for another device, or for one that this machine does not have."""

    tool: str
    device: str

    def __str__(self) -> str:
        problem = f"needs a CUDA device of this machine, and the device is {self.device!r}"
        return f"{self.tool}: {problem}, which the program that runs the tools chooses (--device cuda:0)"


@attrs.frozen
class InvalidArguments(FibError, ValueError):
    """Arguments of a tool that do not match its schema."""

    tool: str
    problems: Sequence[str]

    def __str__(self) -> str:
        return f"{self.tool}: {'; '.join(self.problems)}"
