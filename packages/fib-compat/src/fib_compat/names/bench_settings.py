"""Settings of benchmarks by the old package's rules: nothing is read from YAML unless a program asks for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import fib_bench
from fib_bench import EvalConfig
from fib_bench.config.benchmark import bundled_layers
from fib_schema import Definition, TraceSet

__all__ = ["BenchmarkConfig", "ResolvedEvalConfig"]

_CONFIGS = ("op_type_config", "definition_config")


@attrs.frozen(kw_only=True)
class ResolvedEvalConfig(fib_bench.ResolvedEvalConfig):
    """The settings in force for one definition."""

    profile_baseline: bool = True
    """Whether the reference is timed; a setting of the whole `BenchmarkConfig`."""


class BenchmarkConfig(fib_bench.BenchmarkConfig):
    """`fib_bench.BenchmarkConfig` without the bundled settings and those of the data set.

    Precedence, lowest first: the defaults, `op_type_config`, `definition_config`, the fields of `EvalConfig` here.
    Entries of `op_type_config` and `definition_config` may be plain mappings.

    `log_level` is kept; `logging.basicConfig` sets levels.

    Raises:
        InvalidField: A value is out of bounds (a ValueError).
    """

    def __init__(self, *, log_level: str = "INFO", **fields: Any) -> None:
        object.__setattr__(self, "log_level", log_level)  # the class is frozen
        given: dict[str, Any] = {name: _configs(fields[name]) if name in _CONFIGS else fields[name] for name in fields}
        super().__init__(**given)

    log_level: str

    @classmethod
    def default(cls, **overrides: Any) -> BenchmarkConfig:
        """The bundled settings by operation type, and these fields."""
        layers = bundled_layers()
        bundled = {name: getattr(layers, name) for name in ("defaults", *_CONFIGS)}
        return cls(**{**bundled, **overrides})

    def for_data_set(self, trace_set: TraceSet) -> BenchmarkConfig:
        """This configuration: a file in the data set changes nothing."""
        del trace_set
        return self

    def resolve_eval_config(self, definition: Definition) -> fib_bench.ResolvedEvalConfig:
        """The settings for one definition; the highest layer that sets a field wins."""
        resolved: fib_bench.ResolvedEvalConfig = ResolvedEvalConfig(profile_baseline=self.profile_baseline)
        for layer in self.of(definition):
            resolved = resolved.overridden_by(layer)
        return resolved.overridden_by(self.overrides)


def _configs(value: object) -> object:
    if not isinstance(value, Mapping):
        return value
    return {name: EvalConfig(**item) if isinstance(item, Mapping) else item for name, item in value.items()}
