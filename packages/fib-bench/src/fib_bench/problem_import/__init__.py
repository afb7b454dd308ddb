"""Import of problems that were written for other benchmarks, as definitions, workloads and solutions.

A module for each format reads a file or a folder, runs it, and returns a `ForeignProblem`; `add_problem` writes its
problem to a data set.
"""

from __future__ import annotations

from .gpumode import read_gpumode
from .kernelbench import read_kernelbench
from .problem import ForeignProblem, Imported, add_problem
from .solexecbench import add_solexecbench

__all__ = ["ForeignProblem", "Imported", "add_problem", "add_solexecbench", "read_gpumode", "read_kernelbench"]
