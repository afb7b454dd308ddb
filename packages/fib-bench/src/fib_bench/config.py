"""What a benchmark run can be told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
from fib_schema import Definition

from .wire import MAX_DESCRIPTORS


@attrs.frozen(kw_only=True)
class EvalConfig:
    """Settings of an evaluation; None inherits from the layer below.

    The layers, each overriding the one before: defaults, op_type, definition, top level.
    """

    warmup_runs: int | None = None
    iterations: int | None = None
    num_trials: int | None = None
    rtol: float | None = None
    atol: float | None = None
    required_matched_ratio: float | None = None
    extra: Mapping[str, Any] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class ResolvedEvalConfig:
    """The settings in force for one definition."""

    warmup_runs: int = attrs.field(default=10, validator=attrs.validators.ge(0))
    """Calls before timing."""
    iterations: int = attrs.field(default=50, validator=attrs.validators.ge(1))
    """Samples to take, fewer if the time cap is hit."""
    num_trials: int = attrs.field(
        default=3, validator=[attrs.validators.ge(1), attrs.validators.le(MAX_DESCRIPTORS // 2)]
    )
    """Input sets with different values; each is checked, and timed calls rotate among them."""
    rtol: float = attrs.field(default=1e-2, validator=attrs.validators.ge(0))
    atol: float = attrs.field(default=1e-2, validator=attrs.validators.ge(0))
    required_matched_ratio: float | None = None
    """Share of elements that must be right; None means all."""
    extra: Mapping[str, Any] = attrs.field(factory=dict)

    def overridden_by(self, layer: EvalConfig) -> ResolvedEvalConfig:
        """These settings with those of a layer that are not None."""
        given = {k: v for k, v in attrs.asdict(layer, recurse=False).items() if v is not None}
        given["extra"] = {**self.extra, **layer.extra}
        return attrs.evolve(self, **given)


@attrs.frozen(kw_only=True)
class BenchmarkConfig(EvalConfig):
    """Which pairs to run and how; the fields of EvalConfig override every other layer."""

    device: str = "cpu"
    definitions: tuple[str, ...] | None = None
    """Names to run; None means all."""
    solutions: tuple[str, ...] | None = None
    op_types: tuple[str, ...] | None = None
    max_workloads: int | None = attrs.field(default=None, validator=attrs.validators.optional(attrs.validators.ge(1)))
    """At most so many workloads of each definition, the first ones."""
    timeout_seconds: float = attrs.field(default=300.0, validator=attrs.validators.gt(0))
    """The bound on one build, and on one evaluation."""
    measure_seconds: float = attrs.field(default=1.0, validator=attrs.validators.gt(0))
    """The cap on timing one function on one workload; `MIN_SAMPLES` are taken in any case."""
    memory_bytes: int = attrs.field(default=4 << 30, validator=attrs.validators.gt(0))
    """About how much memory prepared inputs and outputs may take at a time."""
    seed: int = 0
    synthesize_missing: bool = False
    """Make valid inputs where a workload's blob is missing, instead of leaving the workload out."""
    op_type_config: Mapping[str, EvalConfig] = attrs.field(factory=dict)
    definition_config: Mapping[str, EvalConfig] = attrs.field(factory=dict)

    def resolve_eval_config(self, definition: Definition) -> ResolvedEvalConfig:
        """The settings for one definition: defaults, op_type, definition, top level."""
        top = EvalConfig(**{f.name: getattr(self, f.name) for f in attrs.fields(EvalConfig)})
        layers = (
            self.op_type_config.get(definition.op_type),
            self.definition_config.get(definition.name),
            top,
        )
        resolved = ResolvedEvalConfig()
        for layer in layers:
            if layer is not None:
                resolved = resolved.overridden_by(layer)
        return resolved
