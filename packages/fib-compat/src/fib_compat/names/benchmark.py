"""Benchmark of the old package: uses the GPUs, goes on without absent names, and logs what it skips."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

import fib_bench
import fib_schema
from fib_bench.benchmark import RunResult
from fib_bench.events import Event
from fib_compile.device import list_cuda_devices
from fib_schema import Trace

from .bench_settings import BenchmarkConfig
from .trace_set import TraceSet

__all__ = ["Benchmark"]

logger = logging.getLogger("flashinfer_bench.bench")


class Benchmark(fib_bench.Benchmark):
    """Benchmarks the solutions of a data set.

    Without a device in the configuration, all visible GPUs are used, or the CPU if there is none.

    Args:
        trace_set: The data set; with a root, traces are appended there as they are made.
        config: Names and settings. Names that the data set lacks are logged and ignored.
        log_level: Of the first release; has no effect.
    """

    def __init__(
        self,
        trace_set: fib_schema.TraceSet,
        config: fib_bench.BenchmarkConfig | None = None,
        log_level: str | None = None,
    ) -> None:
        del log_level
        changeable = TraceSet.from_set(trace_set)
        config = BenchmarkConfig() if config is None else config
        super().__init__(changeable, without_absent_names(on_devices(config), changeable))
        self._evaluated: list[Trace] = []

    def run(
        self,
        config: fib_bench.BenchmarkConfig | None = None,
        *,
        dump_traces: bool = True,
        resume: bool = False,
        observe: Callable[[Event], None] = lambda _: None,
    ) -> RunResult:
        """Run, and return traces and what was skipped.

        Args:
            config: In place of the benchmark's own, as in the first release.
            dump_traces: Add each trace to the data set when it is made.
            resume: Skip pairs that have a trace in the data set.
            observe: Called with each event.
        """
        if config is not None:
            with Benchmark(self.get_trace_set(), config) as other:
                return other.run(dump_traces=dump_traces, resume=resume, observe=observe)
        return super().run(dump_traces=dump_traces, resume=resume, observe=observe)

    def evaluate(self, config: fib_bench.BenchmarkConfig | None = None) -> TraceSet:
        """Run, and return a set in memory with the new traces; `flush` adds them to the data set."""
        result = self.run(config, dump_traces=False)
        self._evaluated += result.traces
        return _with_traces(TraceSet.from_set(self.get_trace_set()), result.traces)

    def flush(self) -> None:
        """Add the traces of `evaluate` to the data set; those of `run` and `run_all` are there already."""
        evaluated, self._evaluated = self._evaluated, []
        self.get_trace_set().add_traces(evaluated)

    def run_all(self, dump_traces: bool = True, resume: bool = False) -> TraceSet:
        """Run everything that the configuration selects; what is skipped is logged.

        Args:
            dump_traces: Add each trace to the data set when it is made.
            resume: Skip pairs that have a trace in the data set.

        Returns:
            The data set with all its traces; without `dump_traces`, a set in memory with the new traces, and the
            definitions, solutions and workloads of the data set.
        """
        result = self.run(dump_traces=dump_traces, resume=resume)
        trace_set = TraceSet.from_set(self.get_trace_set())
        for line in _skipped(result, trace_set):
            logger.warning("%s", line)
        if dump_traces:
            return trace_set
        return _with_traces(trace_set, result.traces)


def _with_traces(trace_set: TraceSet, made: Iterable[Trace]) -> TraceSet:
    """A set in memory with new traces, and all else of a data set."""
    traces: dict[str, list[Trace]] = {}
    for trace in made:
        traces.setdefault(trace.definition, []).append(trace)
    return TraceSet(None, trace_set.definitions, trace_set.solutions, trace_set.workloads, traces)


def on_devices(config: fib_bench.BenchmarkConfig) -> fib_bench.BenchmarkConfig:
    """A configuration that names all visible GPUs, unless it names a device or there is no GPU."""
    if config.devices is not None or config.device != "cpu":
        return config
    return config.with_fields(devices=tuple(list_cuda_devices()) or None)


def without_absent_names(config: fib_bench.BenchmarkConfig, trace_set: TraceSet) -> fib_bench.BenchmarkConfig:
    """A configuration without definitions and solutions that the data set lacks, each of which is logged."""
    definitions = frozenset(trace_set.definition_names())
    solutions = frozenset(trace_set.solution_names())
    kept_configs = {}
    for name in config.definition_config:
        if name in definitions:
            kept_configs[name] = config.definition_config[name]
        else:
            logger.warning("the data set has no definition %r, which definition_config names", name)
    return config.with_fields(
        definitions=_known("definition", config.definitions, definitions),
        solutions=_known("solution", config.solutions, solutions),
        definition_config=kept_configs,
    )


def _known(kind: str, names: Iterable[str] | None, known: frozenset[str]) -> tuple[str, ...] | None:
    if names is None:
        return None
    for name in names:
        if name not in known:
            logger.warning("the data set has no %s %r, which the configuration names", kind, name)
    return tuple(name for name in names if name in known)


def _skipped(result: RunResult, trace_set: TraceSet) -> list[str]:
    """The failures; if nothing ran, all reasons."""
    if result.traces:
        return [str(skip) for skip in result.failures]
    reasons = [str(skip) for skip in result.skipped]
    for name in trace_set.definition_names():
        if not any(skip.definition == name for skip in result.skipped) and not trace_set.solution_names(name):
            reasons.append(f"{name}: it has no solutions")
    nothing = "no definition was selected" if trace_set.definition_names() else "the data set has no definitions"
    return [f"nothing was run: {reason}" for reason in reasons or [nothing]]
