"""State of a run of `transformer_block`: its options, its data set and its problems."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs
from block_parts import LARGE, ON_CPU, ON_GPU, PARTS, solution_of
from fib_schema import Definition

if TYPE_CHECKING:
    from gpu_report import Report

Call: TypeAlias = Callable[[], Any]
ROUNDS = 21
SECTIONS = ("block", "overhead")


@attrs.frozen(kw_only=True)
class Options:
    """The command-line options."""

    data_set: Path
    device: str
    out: Path
    is_small: bool
    seconds: float
    backend: str
    batches: tuple[int, ...]
    sections: tuple[str, ...] = SECTIONS

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts whose solutions are benchmarked."""
        return tuple(PARTS if "block" in self.sections else LARGE)

    @property
    def is_cuda(self) -> bool:
        """Whether the device is a CUDA device."""
        return self.device != "cpu"

    @property
    def rounds(self) -> int:
        """The number of samples per measurement."""
        return 3 if self.is_small else ROUNDS


@attrs.define
class Job:
    """The state shared by all sections."""

    options: Options
    report: Report
    definitions: Mapping[str, Definition]
    """By part."""
    root: Path
    """The root of a data set with only these definitions and our solutions."""
    problems: list[str] = attrs.field(factory=list)

    def fail(self, problem: str) -> None:
        """Record a problem."""
        self.report.say(f"- **failed**: {problem}")
        self.problems.append(problem)


def baseline_of(job: Job, part: str) -> str:
    """The solution in torch: its time is that of the function that a part uses without apply."""
    file = (ON_GPU if job.options.is_cuda else ON_CPU)[part][0]
    return solution_of(file, job.definitions[part], job.options.device).name
