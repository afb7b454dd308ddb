"""Import of problems that were written for other benchmarks, as definitions, workloads and solutions.

A module for each format reads a file or a folder, runs it, and returns its `Problem` and the sources of solutions;
`add_problem` writes a problem to a data set.
"""

from __future__ import annotations

from .gpumode import GpuModeTask, read_gpumode
from .kernelbench import KernelBenchFile, read_kernelbench
from .problem import Call, Imported, Problem, ProblemError, add_problem

__all__ = [
    "Call",
    "GpuModeTask",
    "Imported",
    "KernelBenchFile",
    "Problem",
    "ProblemError",
    "add_problem",
    "read_gpumode",
    "read_kernelbench",
]
