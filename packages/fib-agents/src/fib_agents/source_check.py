"""Tool `check_source`: what a source is, whether it can be called, and constructs of known exploits. Nothing runs."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
from fib_bench.authoring.sources import KernelFileError
from fib_schema.hardware import unknown_targets

from .errors import InvalidArguments
from .results import Result
from .triage import Finding, first_findings, is_suspicious
from .workspace import Code, Workspace, read_solution


@attrs.frozen
class SourceCheck(Result):
    """The facts about a source that are known before it runs."""

    is_callable: bool
    """Whether language, entry point and style are known, so that it can be built."""
    problems: tuple[str, ...]
    language: str | None
    entry_point: str | None
    style: str | None
    findings: tuple[Finding, ...]

    @property
    def is_suspicious(self) -> bool:
        """Whether a finding is more than a note. It is advice, and no verdict."""
        return is_suspicious(self.findings)

    def lines(self) -> Iterator[str]:
        """Problems first, then findings."""
        if self.is_callable:
            yield f"{self.language}, entry point {self.entry_point}, {self.style}"
        yield from (f"problem: {problem}" for problem in self.problems)
        yield from (finding.describe() for finding in self.findings)
        if self.is_suspicious:
            yield "submit refuses what is forbidden; all else is no verdict: an evaluation decides"
        elif self.is_callable and not self.problems:
            yield "no problem found"


def check_source(workspace: Workspace, definition: str, solution: Code) -> SourceCheck:
    """Check a solution without running it: entry point, signature, suspicious constructs.

    Args:
        workspace: Where to work.
        definition: The name of the definition that it implements.
        solution: The files, such as {"kernel.py": source}, or the name of a solution.

    Raises:
        UnknownName: There is no such definition or solution.
    """
    trace_set = workspace.open()
    found = trace_set.get_definition(definition)
    try:
        given = read_solution(workspace, trace_set, found, solution)
    except (KernelFileError, InvalidArguments) as error:
        return SourceCheck(False, (str(error),), None, None, None, ())
    spec = given.spec
    style = "fills outputs that are arguments" if spec.destination_passing_style else "returns its outputs"
    problems = [str(error) for error in unknown_targets(spec.target_hardware, workspace.device)]
    if not workspace.is_cuda and set(spec.target_hardware) == {"cuda"}:
        problems.append(f"{spec.language} needs a GPU, and the device is {workspace.device!r}")
    return SourceCheck(True, tuple(problems), str(spec.language), spec.entry_point, style, first_findings(given, found))
