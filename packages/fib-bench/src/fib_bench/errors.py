"""What fib-bench raises; failures of solutions are results and not among these."""

from __future__ import annotations

import attrs
from fib_schema import FibError


@attrs.frozen
class InputError(FibError, ValueError):
    """The inputs of a workload cannot be made."""

    definition: str
    workload: str
    input: str
    problem: str

    def __str__(self) -> str:
        return f"workload {self.workload} of {self.definition!r}: {self.reason}"

    @property
    def reason(self) -> str:
        """What is wrong, without saying again which workload it is about."""
        return f"input {self.input!r}: {self.problem}" if self.input else self.problem


@attrs.frozen
class ReferenceFailed(FibError, RuntimeError):
    """A definition's reference did not give outputs to compare with."""

    definition: str
    workload: str
    problem: str

    def __str__(self) -> str:
        return f"workload {self.workload} of {self.definition!r}: {self.reason}"

    @property
    def reason(self) -> str:
        """What is wrong, without saying again which workload it is about."""
        return f"the reference failed: {self.problem}"


@attrs.frozen
class UnsupportedDevice(FibError, ValueError):
    """A device that does not exist or that this version cannot measure on."""

    device: str
    problem: str

    def __str__(self) -> str:
        return f"device {self.device!r}: {self.problem}"


@attrs.frozen
class WorkerPoolFailed(FibError, RuntimeError):
    """The process that forks workers could not be started or has died."""

    problem: str

    def __str__(self) -> str:
        return f"the worker server failed: {self.problem}"
