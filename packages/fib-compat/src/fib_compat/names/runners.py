"""Runners of the first release: the reference in this process, each solution in a worker of fib-bench."""

from __future__ import annotations

import abc
from pathlib import Path

import fib_bench
from fib_schema import Definition, Evaluation, FibError, Solution, Trace, TraceSet, Workload

from .baselines import BaselineHandle, DeviceBaseline, make_baseline

__all__ = ["BaselineHandle", "DeviceBaseline", "MultiProcessRunner", "Runner", "RunnerError", "RunnerFatalError"]


class RunnerError(RuntimeError):
    """A baseline cannot be made, or a solution cannot be run; a failure of a solution is an `Evaluation`."""


class RunnerFatalError(RunnerError):
    """The device cannot be used."""


class Runner(abc.ABC):
    """Runs references and solutions on one device.

    Args:
        device: ``cpu`` or ``cuda:N``.
        log_dir: Kept as an attribute: logs are in `Evaluation.log`.
    """

    def __init__(self, device: str, log_dir: str = "/tmp/flashinfer_bench") -> None:
        self.device, self.log_dir = device, log_dir

    @abc.abstractmethod
    def run_ref(
        self,
        defn: Definition,
        workload: Workload,
        cfg: fib_bench.BenchmarkConfig,
        traceset_root: Path | None = None,
    ) -> BaselineHandle:
        """Make the baseline of a workload."""

    @abc.abstractmethod
    def run_solution(self, sol: Solution, baseline: BaselineHandle, cfg: fib_bench.BenchmarkConfig) -> Evaluation:
        """Run a solution on the workload of a baseline."""

    @abc.abstractmethod
    def close(self) -> None:
        """Release everything."""

    @abc.abstractmethod
    def release(self, baseline: BaselineHandle) -> None:
        """Release a baseline."""


class MultiProcessRunner(Runner):
    """Runs each solution in a process of its own, with the checks of `fib_bench.Benchmark`."""

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self._kept: dict[str, tuple[DeviceBaseline, Workload, Path | None]] = {}

    def run_ref(
        self,
        defn: Definition,
        workload: Workload,
        cfg: fib_bench.BenchmarkConfig,
        traceset_root: Path | None = None,
    ) -> BaselineHandle:
        """Make the baseline of a workload.

        Raises:
            RunnerError: The reference or an input fails.
        """
        try:
            made = make_baseline(defn, workload, cfg, self.device, traceset_root)
        except Exception as error:
            raise RunnerError(f"the reference of {defn.name!r} failed: {error}") from error
        self._kept[made.handle] = (made, workload, traceset_root)
        return made.handle

    def run_solution(self, sol: Solution, baseline: BaselineHandle, cfg: fib_bench.BenchmarkConfig) -> Evaluation:
        """Run a solution on the workload of a baseline.

        Raises:
            RunnerError: There is no such baseline, or the workload cannot be run.
            RunnerFatalError: The device cannot be used.
        """
        if baseline not in self._kept:
            raise RunnerError(f"there is no baseline {baseline!r}")
        made, workload, root = self._kept[baseline]
        name = made.defn.name
        trace_set = TraceSet(root, {name: made.defn}, {name: [sol]}, {name: [Trace(name, workload)]})
        only = cfg.with_fields(device=self.device, devices=None, definitions=None, solutions=None)
        try:
            with fib_bench.Benchmark(trace_set, only) as benchmark:
                result = benchmark.run(dump_traces=False)
        except fib_bench.UnsupportedDevice as error:
            raise RunnerFatalError(str(error)) from error
        except FibError as error:
            raise RunnerError(str(error)) from error
        for trace in result.traces:
            if trace.evaluation is not None:
                return trace.evaluation
        raise RunnerError("; ".join(map(str, result.skipped)) or f"{sol.name!r} was not run")

    def release(self, baseline: BaselineHandle) -> None:
        """Release the tensors of a baseline."""
        self._kept.pop(baseline, None)

    def close(self) -> None:
        """Release all baselines."""
        self._kept.clear()
