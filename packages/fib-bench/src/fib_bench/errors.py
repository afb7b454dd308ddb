"""Exceptions of fib-bench. Failures of solutions are results, not exceptions."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
from fib_schema import FibError, Problem


@attrs.frozen
class InvalidConfig(FibError, ValueError):
    """A configuration that is not valid; holds all of its problems, not only the first."""

    problems: tuple[Problem, ...]

    def __str__(self) -> str:
        lines = "\n  ".join(map(str, self.problems))
        return f"not a valid configuration:\n  {lines}"


@attrs.frozen
class _WorkloadError(FibError):
    definition: str
    workload: str

    def __str__(self) -> str:
        return f"workload {self.workload} of {self.definition!r}: {self.reason}"

    @property
    def reason(self) -> str:
        """The problem without the workload, for tables that name it already."""
        return self._reason()

    def _reason(self) -> str:
        raise NotImplementedError


@attrs.frozen
class InputError(_WorkloadError, ValueError):
    """The inputs of a workload cannot be made."""

    input: str
    problem: str

    def _reason(self) -> str:
        return f"input {self.input!r}: {self.problem}" if self.input else self.problem


@attrs.frozen
class ReferenceFailed(_WorkloadError, RuntimeError):
    """The reference of a definition failed, so there are no expected outputs."""

    problem: str

    def _reason(self) -> str:
        return f"the reference failed: {self.problem}"


@attrs.frozen
class OutputsUndefined(ReferenceFailed):
    """Most of an output is undefined: the reference gives NaN there, so any value of a solution would be right."""

    shares: Mapping[str, float]
    """The share of undefined elements, by output."""
    problem: str = attrs.field(init=False)

    @problem.default
    def _describe(self) -> str:
        shares = ", ".join(f"{share:.1%} of {name!r}" for name, share in self.shares.items() if share)
        return f"NaN in {shares}; at most half of an output may be undefined"

    def _reason(self) -> str:
        return f"the reference leaves outputs undefined: {self.problem}"


@attrs.frozen
class EvaluatorUnusable(FibError, RuntimeError):
    """An evaluator that does not exist, cannot be loaded, or is not the only one that applies."""

    evaluator: str
    problem: str

    def __str__(self) -> str:
        return f"evaluator {self.evaluator!r}: {self.problem}"


@attrs.frozen
class EvaluatorFailed(_WorkloadError, RuntimeError):
    """An evaluator could not judge a workload, or could not be had: no solution is to blame."""

    evaluator: str
    """Its name; empty if something else failed, such as the allocation of memory in the judge."""
    problem: str

    def _reason(self) -> str:
        return f"the evaluator {self.evaluator!r} failed: {self.problem}" if self.evaluator else self.problem


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


@attrs.frozen
class JudgeFailed(FibError, RuntimeError):
    """The judge's process could not be started, or died before it did anything."""

    problem: str

    def __str__(self) -> str:
        return f"the judge's process failed: {self.problem}"


@attrs.frozen
class ClusterUnreachable(FibError, ConnectionError):
    """Nothing listens at the address of a Ray cluster."""

    address: str
    problem: str

    def __str__(self) -> str:
        return f"Ray cluster {self.address} does not answer: {self.problem}; check the address and that Ray runs there"
