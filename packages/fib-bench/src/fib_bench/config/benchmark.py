"""Settings of a benchmark run: which pairs to run, where, and the layers of their evaluation settings.

This module imports no torch, so that `fib-bench --help` is fast.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
from fib_schema import Definition, Problem, TraceSet, UnknownName

from ..errors import InvalidConfig
from .layers import bundled_layers, read_data_set_layers, read_settings, unknown_names
from .model import EVAL_CONFIGS, EvalConfig, Layers, ResolvedEvalConfig
from .validators import (
    checked_field,
    flag,
    mapping_field,
    names,
    number,
    one_of,
    optional,
    text,
    whole,
    with_device_numbers,
)

EXECUTORS = ("local", "ray")
MAX_CONCURRENCY = 16
"""On each device: the contexts of sixteen judges and their workers take about 32 GiB, and only one of them times."""


@attrs.frozen(kw_only=True)
class BenchmarkConfig(EvalConfig):
    """Choice of pairs and settings of a run; the fields of EvalConfig override every other layer.

    The layers, lowest first: the bundled ones, those of the data set, `defaults`,
    `op_type_config`, `definition_config`, and the fields of EvalConfig in this very object.
    """

    device: str = checked_field("cpu", text, with_device_numbers)
    """``cpu``, ``cuda:N``, or ``cuda`` for the first GPU. The CPU unless another one is named; the command line
    defaults to the first GPU."""
    devices: tuple[str, ...] | None = checked_field(None, optional(names), with_device_numbers)
    """Devices that share the work, instead of `device`; ``all`` means every CUDA device that is visible."""
    concurrency: int | None = checked_field(
        None,
        optional(
            whole(
                least=1,
                most=MAX_CONCURRENCY,
                because="each evaluation in flight holds about 2 GiB of the device, and one of them times at a time",
            )
        ),
    )
    """Evaluations in flight on each CUDA device of this machine, at most 16, of which only one times a pass at a
    moment; None depends on the number of cores. The CPU has one."""
    executor: str = checked_field("local", one_of("executor", lambda: EXECUTORS))
    """The place of the work: this machine, or on the nodes of a Ray cluster."""
    address: str | None = checked_field(None, optional(text))
    """The address of the Ray cluster; None starts a local one."""
    definitions: tuple[str, ...] | None = checked_field(None, optional(names))
    """Names to run; None means all."""
    solutions: tuple[str, ...] | None = checked_field(None, optional(names))
    """Names to run; None means all."""
    op_types: tuple[str, ...] | None = checked_field(None, optional(names))
    """Op_types whose definitions to run; None means all."""
    max_workloads: int | None = checked_field(None, optional(whole(least=1)))
    """The maximum number of workloads of each definition, in order."""
    baseline: str | None = checked_field(None, optional(text))
    """The solution that speedups are quoted against; None means the reference."""
    profile_baseline: bool = checked_field(True, flag)
    """Time the reference."""
    use_isolated_runner: bool = checked_field(False, flag)
    """No effect: every solution runs in a worker of its own. Accepted for configurations of other tools."""
    timeout_seconds: float = checked_field(300.0, number(above=0))
    """The bound on one build, and on each step of an evaluation."""
    memory_bytes: int | None = checked_field(None, optional(whole(least=1)))
    """The approximate bound on memory of prepared inputs and outputs; None means half of the free memory."""
    seed: int = checked_field(0, whole())
    """Seed of all random inputs."""
    quick: bool = checked_field(False, flag)
    """Check two distributions and time shortly; passing traces carry the flag ``quick`` and rank nobody."""
    synthesize_missing: bool = checked_field(False, flag)
    """Make valid inputs if the blob of a workload is missing, instead of skipping the workload."""
    defaults: EvalConfig = attrs.field(factory=EvalConfig)
    """Settings for all definitions, below those of op_types and definitions."""
    op_type_config: Mapping[str, EvalConfig] = mapping_field(EVAL_CONFIGS)
    """Settings by op_type."""
    definition_config: Mapping[str, EvalConfig] = mapping_field(EVAL_CONFIGS)
    """Settings by name of a definition."""
    data_set_layers: Layers | None = None
    """The layers of the data set; `for_data_set` reads them."""

    @classmethod
    def default(cls, **overrides: Any) -> BenchmarkConfig:
        """A configuration with these fields; the bundled layers are always included."""
        return cls(**overrides)

    @classmethod
    def from_yaml(
        cls, path: str | os.PathLike[str], *, trace_set: TraceSet | None = None, **overrides: Any
    ) -> BenchmarkConfig:
        """Read a configuration; its keys are the fields of this class.

        Args:
            path: The file.
            trace_set: The data set, to reject names that match nothing.
            overrides: Fields that override those of the file.

        Raises:
            InvalidConfig: The file is not valid; the error lists all problems.
        """
        return cls(**{**read_fields(Path(path), trace_set), **overrides})

    def for_data_set(self, trace_set: TraceSet) -> BenchmarkConfig:
        """This configuration above the layers in the ``fib-bench.yaml`` of a data set.

        Raises:
            InvalidConfig: That file is not valid, or a name in this configuration matches nothing.
        """
        check_names(self, trace_set)
        return attrs.evolve(self, data_set_layers=read_data_set_layers(trace_set))

    @property
    def layers(self) -> Layers:
        """The layers of this configuration, without the fields that override them."""
        own = {field.name: getattr(self, field.name) for field in attrs.fields(Layers)}
        return Layers(**own)

    def resolve_eval_config(self, definition: Definition) -> ResolvedEvalConfig:
        """The settings for one definition; the highest layer that sets a field wins."""
        resolved = ResolvedEvalConfig()
        for layers in (bundled_layers(), self.data_set_layers or Layers(), self.layers):
            for layer in layers.of(definition):
                resolved = resolved.overridden_by(layer)
        if self.quick:
            resolved = resolved.shortened()
        top = EvalConfig(**{field.name: getattr(self, field.name) for field in attrs.fields(EvalConfig)})
        return resolved.overridden_by(top)


def read_fields(path: Path, trace_set: TraceSet | None = None) -> dict[str, Any]:
    """Read the fields of a `BenchmarkConfig`.

    Args:
        path: The file.
        trace_set: The data set, to reject names that match nothing.

    Raises:
        InvalidConfig: The file is not valid.
    """
    return read_settings(BenchmarkConfig, path, trace_set, hidden=("data_set_layers",))


def check_names(config: BenchmarkConfig, trace_set: TraceSet) -> None:
    """Reject layers and a baseline that match nothing in a data set.

    Raises:
        InvalidConfig: A name matches nothing.
    """
    problems = list(unknown_names(config.layers, "the configuration", trace_set))
    if config.baseline is not None and config.baseline not in trace_set.solution_names():
        error = UnknownName("solution", config.baseline, trace_set.solution_names())
        problems.append(Problem("the configuration", "$.baseline", str(error)))
    if problems:
        raise InvalidConfig(tuple(problems))
