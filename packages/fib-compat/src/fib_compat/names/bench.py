"""Benchmarks of the old package: it uses the GPUs, goes on without absent names, and logs what it skips.

Nothing is read from YAML unless a program asks for it. The evaluators only say which of them applies to a definition:
fib-bench's own check outputs in the judge process, and `fib_bench.evaluate` evaluates a solution.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, NoReturn

import attrs
import fib_bench
import fib_schema
from fib_bench import EvalConfig
from fib_bench.benchmark import RunResult
from fib_bench.config.model import bundled_layers
from fib_bench.evaluators.protocol import evaluator_for
from fib_compile.device import list_cuda_devices
from fib_schema import Definition, Trace

from ..errors import NotOffered
from .trace_set import TraceSet, present

_CONFIGS = ("op_type_config", "definition_config")
logger = logging.getLogger("flashinfer_bench.bench")


@attrs.frozen(kw_only=True)
class ResolvedEvalConfig(fib_bench.ResolvedEvalConfig):
    """The settings in force for one definition."""

    profile_baseline: bool = True
    """Whether the reference is timed; a setting of the whole `BenchmarkConfig`."""


class BenchmarkConfig(fib_bench.BenchmarkConfig):
    """`fib_bench.BenchmarkConfig` without the bundled settings and those of the data set.

    Precedence, lowest first: the defaults, `op_type_config`, `definition_config`, the fields of `EvalConfig` here.
    Entries of `op_type_config` and `definition_config` may be plain mappings.

    Raises:
        InvalidField: A value is out of bounds (a ValueError).
    """

    def __init__(self, **fields: Any) -> None:
        for name in fields.keys() & set(_CONFIGS):
            fields[name] = {key: _config(one) for key, one in fields[name].items()}
        if "defaults" in fields:
            fields["defaults"] = _config(fields["defaults"])
        super().__init__(**fields)

    @classmethod
    def default(cls, **overrides: Any) -> BenchmarkConfig:
        """The bundled settings by operation type, and these fields."""
        layers = bundled_layers()
        return cls(**{**{name: getattr(layers, name) for name in ("defaults", *_CONFIGS)}, **overrides})

    def for_data_set(self, trace_set: fib_schema.TraceSet) -> BenchmarkConfig:
        """This configuration: a file in the data set changes nothing."""
        del trace_set
        return self

    def resolve_eval_config(self, definition: Definition) -> fib_bench.ResolvedEvalConfig:
        """The settings for one definition; the highest layer that sets a field wins."""
        resolved: fib_bench.ResolvedEvalConfig = ResolvedEvalConfig(profile_baseline=self.profile_baseline)
        for layer in self.of(definition):
            resolved = resolved.overridden_by(layer)
        return resolved.overridden_by(self.overrides)


def _config(value: Any) -> Any:
    return EvalConfig(**value) if isinstance(value, Mapping) else value


class Benchmark(fib_bench.Benchmark):
    """Benchmarks the solutions of a data set.

    Without a device in the configuration, all visible GPUs are used, or the CPU if there is none.
    """

    def __init__(self, trace_set: fib_schema.TraceSet, config: fib_bench.BenchmarkConfig | None = None) -> None:
        changeable = TraceSet.from_set(trace_set)
        config = BenchmarkConfig() if config is None else config
        if config.devices is None and config.device == "cpu":
            config = config.with_fields(devices=tuple(list_cuda_devices()) or None)
        super().__init__(changeable, _without_absent_names(config, changeable))

    def run_all(self, dump_traces: bool = True, resume: bool = False) -> TraceSet:
        """Run everything that the configuration selects; what is skipped is logged.

        Returns the data set with all its traces. Without `dump_traces` nothing is written, and it is a set in memory
        with the new traces. `resume` skips pairs that have a trace.
        """
        result = self.run(dump_traces=dump_traces, resume=resume)
        trace_set = TraceSet.from_set(self.get_trace_set())
        for line in _skipped(result, trace_set):
            logger.warning("%s", line)
        if dump_traces:
            return trace_set
        return with_traces(trace_set, result.traces)


def with_traces(trace_set: fib_schema.TraceSet, traces: Iterable[Trace]) -> TraceSet:
    """A set in memory with the records of another one, and these traces alone."""
    groups: dict[str, list[Trace]] = {}
    for trace in traces:
        groups.setdefault(trace.definition, []).append(trace)
    return TraceSet(None, trace_set.definitions, trace_set.solutions, trace_set.workloads, groups)


def _without_absent_names(config: fib_bench.BenchmarkConfig, trace_set: TraceSet) -> fib_bench.BenchmarkConfig:
    """A configuration without definitions and solutions that the data set lacks, each of which is logged."""
    definitions, solutions = trace_set.definition_names(), trace_set.solution_names()
    layers = present("definition", config.definition_config, definitions, logger)
    changes: dict[str, Any] = {"definition_config": {name: config.definition_config[name] for name in layers}}
    if config.definitions is not None:
        changes["definitions"] = present("definition", config.definitions, definitions, logger)
    if config.solutions is not None:
        changes["solutions"] = present("solution", config.solutions, solutions, logger)
    return config.with_fields(**changes)


def _skipped(result: RunResult, trace_set: TraceSet) -> list[str]:
    """The failures; if nothing ran, all reasons."""
    if result.traces:
        return [str(skip) for skip in result.failures]
    bare = [name for name in trace_set.definition_names() if not trace_set.solution_names(name)]
    reasons = [*map(str, result.skipped), *(f"{name}: it has no solutions" for name in bare)]
    return [f"nothing was run: {reason}" for reason in reasons or ["no definition was selected"]]


# -- evaluators ----------------------------------------------------------------------------------------


class Evaluator:
    """Base of the evaluators."""

    evaluators: ClassVar[tuple[str, ...]] = ()
    """The classes of `fib_bench.evaluators` that it stands for."""

    @classmethod
    def can_evaluate(cls, definition: Definition) -> bool:
        """Whether this evaluator is the one for a definition."""
        return type(evaluator_for(definition, fib_bench.ResolvedEvalConfig())).__name__ in cls.evaluators

    @classmethod
    def build_baseline(cls, *_: object, **__: object) -> NoReturn:
        """Raise `NotOffered`: a judge process does this."""
        raise NotOffered(f"{cls.__name__} only says whether it applies: a judge process checks; use fib_bench.evaluate")

    check_correctness = eval_performance = evaluate = build_baseline


class SamplingEvaluator(Evaluator):
    """Compares distributions of samples."""

    evaluators = ("Sampling",)


class DsaTopkIndexerEvaluator(Evaluator):
    """Compares sets of selected indices."""

    evaluators = ("TopK",)


class LowBitEvaluator(Evaluator):
    """Compares results of low-precision inputs by the share of elements that match."""

    evaluators = ("LowPrecision", "MixtureOfExperts")


class DsaSparseAttentionEvaluator(Evaluator):
    """Compares sparse attention."""

    evaluators = ("SparseAttention",)


class DefaultEvaluator(Evaluator):
    """Compares elements."""

    evaluators = ("Default", "StateSpace")


def resolve_evaluator(definition: Definition) -> type[Evaluator]:
    """The evaluator of a definition."""
    special = (SamplingEvaluator, DsaTopkIndexerEvaluator, LowBitEvaluator, DsaSparseAttentionEvaluator)
    return next((each for each in special if each.can_evaluate(definition)), DefaultEvaluator)
