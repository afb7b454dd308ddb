"""Settings of an evaluation: tolerances, sampling, distributions; one layer of them, and the settings in force.

This module imports no torch, so that `fib-bench --help` is fast.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import attrs
from fib_schema import Definition, DType, InvalidField, UnknownName

from .evaluator_names import evaluator_names
from .validators import as_tuple, flag, mapping_field, mapping_of, number, one_of, optional, some_of, validated, whole

DISTRIBUTIONS = ("normal", "wide", "tiny", "zeros_and_ones", "shifted")
"""The distributions of random floating inputs."""
FLOATING = tuple(str(dtype) for dtype in DType if "float" in dtype)
"""The dtypes that tolerances apply to; all others are compared exactly."""


@attrs.frozen
class Tolerance:
    """The error bounds of one dtype: an element is wrong if it exceeds both."""

    atol: float = attrs.field(validator=validated(number(least=0)))
    rtol: float = attrs.field(validator=validated(number(least=0)))


EXACT = Tolerance(0.0, 0.0)
ONE_STEP: Mapping[str, Tolerance] = MappingProxyType(
    {
        "float8_e4m3fn": Tolerance(atol=0.01, rtol=0.125),
        "float8_e5m2": Tolerance(atol=0.01, rtol=0.25),
        "float4_e2m1": Tolerance(atol=0.5, rtol=0.5),
    }
)
"""Tolerances of dtypes whose rounding step exceeds 1e-2: the largest step relative to the smaller of two
neighbours, and for float4 the absolute step around zero, which is below 1e-2 for the other two."""


def _check_dtypes(instance: object, attribute: attrs.Attribute[Any], value: Mapping[str, Tolerance]) -> None:
    validated(mapping_of(Tolerance, "tolerances"))(instance, attribute, value)
    unknown = [str(UnknownName("floating dtype", name, FLOATING)) for name in value if name not in FLOATING]
    if unknown:
        raise InvalidField(f"{type(instance).__name__}.{attribute.name}", "; ".join(unknown))


_CHECKS = {
    "warmup_runs": whole(least=0),
    "iterations": whole(least=1),
    "max_iterations": whole(least=1),
    "num_trials": whole(least=1),
    "measure_seconds": number(above=0),
    "confidence": number(least=0, most=1),
    "rtol": number(least=0),
    "atol": number(least=0),
    "required_matched_ratio": number(above=0, most=1),
    "error_cap": number(above=0, finite=False),
    "distributions": some_of("distribution", DISTRIBUTIONS),
    "evaluator": one_of("evaluator", evaluator_names),
    "strict_hardware": flag,
}


def _layer(name: str) -> Any:
    """A field of a layer, where None inherits."""
    return attrs.field(default=None, validator=validated(optional(_CHECKS[name])), converter=as_tuple)


def _setting(name: str, default: Any) -> Any:
    """A field of the settings in force."""
    check = _CHECKS[name] if default is not None else optional(_CHECKS[name])
    return attrs.field(default=default, validator=validated(check), converter=as_tuple)


_IS_EXTRA = validated(mapping_of(object, "values"))


@attrs.frozen(kw_only=True)
class EvalConfig:
    """One layer of settings of an evaluation; None inherits from the layer below.

    `ResolvedEvalConfig` documents each field. `dtypes` and `extra` are merged key by key.
    """

    warmup_runs: int | None = _layer("warmup_runs")
    iterations: int | None = _layer("iterations")
    max_iterations: int | None = _layer("max_iterations")
    num_trials: int | None = _layer("num_trials")
    measure_seconds: float | None = _layer("measure_seconds")
    confidence: float | None = _layer("confidence")
    rtol: float | None = _layer("rtol")
    atol: float | None = _layer("atol")
    required_matched_ratio: float | None = _layer("required_matched_ratio")
    error_cap: float | None = _layer("error_cap")
    distributions: tuple[str, ...] | None = _layer("distributions")
    evaluator: str | None = _layer("evaluator")
    strict_hardware: bool | None = _layer("strict_hardware")
    dtypes: Mapping[str, Tolerance] = mapping_field(_check_dtypes)
    extra: Mapping[str, Any] = mapping_field(_IS_EXTRA)


@attrs.frozen(kw_only=True)
class ResolvedEvalConfig:
    """The settings in force for one definition."""

    warmup_runs: int = _setting("warmup_runs", 10)
    """Calls before timing."""
    iterations: int = _setting("iterations", 50)
    """The fewest calls to time, unless a cap is hit; at least 20 samples, where it asks for more calls than that."""
    max_iterations: int = _setting("max_iterations", 2000)
    """The most samples to take; more only where `iterations` asks for more."""
    num_trials: int = _setting("num_trials", 3)
    """Input sets with different values; each is checked, and timed calls get mixtures of them."""
    measure_seconds: float = _setting("measure_seconds", 1.0)
    """The cap on timing one function on one workload."""
    confidence: float = _setting("confidence", 0.005)
    """Stop when half the median's 95 % confidence interval is below this share of the median."""
    rtol: float = _setting("rtol", 1e-2)
    """Relative error that an element may have, whatever `atol` says."""
    atol: float = _setting("atol", 1e-2)
    """Absolute error that an element may have, whatever `rtol` says."""
    required_matched_ratio: float | None = _setting("required_matched_ratio", None)
    """Share of elements that must be right; None means all."""
    error_cap: float = _setting("error_cap", 1.0)
    """However many match, none may be off by more than this times the largest magnitude expected."""
    distributions: tuple[str, ...] = _setting("distributions", DISTRIBUTIONS)
    """The distributions of the input sets, as far as the op allows them."""
    evaluator: str | None = _setting("evaluator", None)
    """The evaluator; None means the first one that applies to the definition."""
    strict_hardware: bool = _setting("strict_hardware", False)
    """Run solutions only on devices that their `target_hardware` names, not on all of the same architecture."""
    dtypes: Mapping[str, Tolerance] = attrs.field(factory=lambda: dict(ONE_STEP), validator=_check_dtypes)
    """Tolerances of single dtypes, in place of `atol` and `rtol`."""
    extra: Mapping[str, Any] = mapping_field(_IS_EXTRA)
    """Settings of single evaluators, such as `sampling_validation_trials`."""

    def shortened(self) -> ResolvedEvalConfig:
        """These settings for a quick evaluation: fewer input sets, and one short timing."""
        return attrs.evolve(
            self,
            warmup_runs=min(self.warmup_runs, 3),
            iterations=min(self.iterations, 10),
            max_iterations=min(self.max_iterations, 200),
            num_trials=min(self.num_trials, 2),
            measure_seconds=min(self.measure_seconds, 0.05),
            confidence=max(self.confidence, 0.05),
        )

    def tolerance(self, dtype: str) -> Tolerance:
        """The tolerances for outputs of a dtype, named as definitions do; integers and booleans have none."""
        if "float" not in dtype:
            return EXACT
        return self.dtypes.get(dtype, Tolerance(self.atol, self.rtol))

    def overridden_by(self, layer: EvalConfig) -> ResolvedEvalConfig:
        """These settings with those of a layer that are not None.

        An `atol` or `rtol` of the layer is meant for every dtype: it replaces those that layers
        below gave single dtypes. What the layer itself says about a dtype comes after that.
        """
        given = {k: v for k, v in attrs.asdict(layer, recurse=False).items() if v is not None}
        for_all = {name: given[name] for name in ("atol", "rtol") if name in given}
        dtypes = {name: attrs.evolve(tolerance, **for_all) for name, tolerance in self.dtypes.items()}
        merged = {"dtypes": {**dtypes, **layer.dtypes}, "extra": {**self.extra, **layer.extra}}
        return attrs.evolve(self, **{**given, **merged})


EVAL_CONFIGS = validated(mapping_of(EvalConfig, "an EvalConfig each"))
"""Validator of the layers by name."""


@attrs.frozen(kw_only=True)
class Layers:
    """The layers of one source: defaults, by op_type, by definition."""

    defaults: EvalConfig = attrs.field(factory=EvalConfig)
    op_type_config: Mapping[str, EvalConfig] = mapping_field(EVAL_CONFIGS)
    definition_config: Mapping[str, EvalConfig] = mapping_field(EVAL_CONFIGS)

    def of(self, definition: Definition) -> Iterator[EvalConfig]:
        """The layers for one definition, lowest first."""
        yield self.defaults
        for layers, name in ((self.op_type_config, definition.op_type), (self.definition_config, definition.name)):
            if name in layers:
                yield layers[name]
