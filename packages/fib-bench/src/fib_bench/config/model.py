"""Settings of an evaluation: tolerances, sampling, distributions; layers of them, and the checks of their values.

This module imports no torch, so that `fib-bench --help` is fast.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import attrs
from fib_schema import Definition, DType, InvalidField, UnknownName
from fib_schema.entry_points import find_entry_points

GROUP = "fib_bench.evaluators"
"""The entry points that evaluators from outside are found by; each names a subclass of `Evaluator`."""
BUILT_IN: Mapping[str, str] = MappingProxyType(
    {
        "sampling": "sampling:Sampling",
        "top_k": "top_k:TopK",
        "low_precision": "low_precision:LowPrecision",
        "moe": "scaled:MixtureOfExperts",
        "state_space": "scaled:StateSpace",
        "sparse_attention": "scaled:SparseAttention",
        "default": "protocol:Default",
    }
)
"""Module in ``fib_bench.evaluators`` and class of each built-in evaluator, in order of precedence."""
DISTRIBUTIONS = ("normal", "wide", "tiny", "zeros_and_ones", "shifted")
"""The distributions of random floating inputs."""
FLOATING = tuple(str(dtype) for dtype in DType if "float" in dtype)
"""The dtypes that tolerances apply to; all others are compared exactly."""
Check = Callable[[object], str]
"""Returns the problem of a value, or an empty string."""


def evaluator_names() -> tuple[str, ...]:
    """The names that a setting accepts: built-in evaluators and installed ones."""
    return (*BUILT_IN, *dict.fromkeys(point.name for point in find_entry_points(GROUP)))


# -- checks ------------------------------------------------------------------------------------


def checked(default: Any, check: Check, converter: Callable[[Any], Any] | None = None, **more: Any) -> Any:
    """An attrs field whose value a check accepts; a list becomes a tuple.

    The validator raises `InvalidField` with the problem that the check finds. A default of None stands for no value.
    """

    def validate(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
        if (default is not None or value is not None) and (problem := check(value)):
            raise InvalidField(f"{type(instance).__name__}.{attribute.name}", problem)

    return attrs.field(default=default, validator=validate, converter=converter or as_tuple, **more)


def as_tuple(value: Any) -> Any:
    """A list as a tuple; other values unchanged, for the check to reject."""
    return tuple(value) if isinstance(value, list) else value


def whole(*, least: int | None = None, most: int | None = None, because: str = "") -> Check:
    """An integer, not a bool; `because` is the reason of `most`, for its message."""

    def check(value: object) -> str:
        if type(value) is not int:
            return f"must be a whole number, got {value!r}"
        if least is not None and value < least:
            return f"must be at least {least}, got {value}"
        if most is not None and value > most:
            return f"must be at most {most}, got {value}{f': {because}' if because else ''}"
        return ""

    return check


def number(*, least: float = -math.inf, above: float = -math.inf, most: float = math.inf, finite: bool = True) -> Check:
    """A number in a range, without NaN; infinity only if `finite` is False."""

    def check(value: object) -> str:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return f"must be a number, got {value!r}"
        if math.isnan(value) or (finite and math.isinf(value)):
            return f"must be a finite number, got {value}"
        for holds, limit in (
            (value >= least, f"at least {least}"),
            (value > above or above == -math.inf, f"greater than {above}"),
            (value <= most, f"at most {most}"),
        ):
            if not holds:
                return f"must be {limit}, got {value}"
        return ""

    return check


def flag(value: object) -> str:
    """True or False."""
    return "" if type(value) is bool else f"must be true or false, got {value!r}"


def text(value: object) -> str:
    """A non-empty string."""
    return "" if isinstance(value, str) and value else f"must be a name, got {value!r}"


def names(value: object) -> str:
    """A sequence of strings, not one string."""
    if isinstance(value, tuple) and all(isinstance(name, str) for name in value):
        return ""
    return f"must be a list of names, got {value!r}"


def one_of(kind: str, known: Callable[[], Sequence[str]]) -> Check:
    """One of the names that are known at the time of the check."""

    def check(value: object) -> str:
        if not isinstance(value, str):
            return f"must be a name, got {value!r}"
        return "" if value in known() else str(UnknownName(kind, value, tuple(known())))

    return check


def mapping_of(kind: type, what: str) -> Check:
    """A mapping from strings to instances of a class."""

    def check(value: object) -> str:
        if not isinstance(value, Mapping):
            return f"must be a mapping from names to {what}, got {value!r}"
        wrong = [key for key, item in value.items() if not (isinstance(key, str) and isinstance(item, kind))]
        return f"must map names to {what}; wrong at {', '.join(map(repr, wrong))}" if wrong else ""

    return check


def _some_distributions(value: object) -> str:
    if problem := names(value):
        return problem
    assert isinstance(value, tuple)
    if unknown := [UnknownName("distribution", name, DISTRIBUTIONS) for name in value if name not in DISTRIBUTIONS]:
        return "; ".join(map(str, unknown))
    return "" if value and len(set(value)) == len(value) else "must name at least one, and none twice"


def _tolerances(value: object) -> str:
    if problem := mapping_of(Tolerance, "tolerances")(value):
        return problem
    assert isinstance(value, Mapping)
    return "; ".join(str(UnknownName("floating dtype", name, FLOATING)) for name in value if name not in FLOATING)


# -- settings ----------------------------------------------------------------------------------


@attrs.frozen
class Tolerance:
    """The error bounds of one dtype: an element is wrong if it exceeds both."""

    atol: float = checked(attrs.NOTHING, number(least=0))
    rtol: float = checked(attrs.NOTHING, number(least=0))


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


@attrs.frozen(kw_only=True)
class ResolvedEvalConfig:
    """The settings in force for one definition."""

    warmup_runs: int = checked(10, whole(least=0))
    """Calls before timing."""
    iterations: int = checked(50, whole(least=1))
    """The fewest calls to time, unless a cap is hit; at least 20 samples, where it asks for more calls than that."""
    max_iterations: int = checked(2000, whole(least=1))
    """The most samples to take; more only where `iterations` asks for more."""
    num_trials: int = checked(3, whole(least=1))
    """Input sets with different values; each is checked, and timed calls get mixtures of them."""
    measure_seconds: float = checked(1.0, number(above=0))
    """The cap on timing one function on one workload."""
    confidence: float = checked(0.005, number(least=0, most=1))
    """Stop when half the median's 95 % confidence interval is below this share of the median."""
    rtol: float = checked(1e-2, number(least=0))
    """Relative error that an element may have, whatever `atol` says."""
    atol: float = checked(1e-2, number(least=0))
    """Absolute error that an element may have, whatever `rtol` says."""
    required_matched_ratio: float | None = checked(None, number(above=0, most=1))
    """Share of elements that must be right; None means all."""
    error_cap: float = checked(1.0, number(above=0, finite=False))
    """However many match, none may be off by more than this times the largest magnitude expected."""
    distributions: tuple[str, ...] = checked(DISTRIBUTIONS, _some_distributions)
    """The distributions of the input sets, as far as the op allows them."""
    evaluator: str | None = checked(None, one_of("evaluator", evaluator_names))
    """The evaluator; None means the first one that applies to the definition."""
    strict_hardware: bool = checked(False, flag)
    """Run solutions only on devices that their `target_hardware` names, not on all of the same architecture."""
    dtypes: Mapping[str, Tolerance] = checked(ONE_STEP, _tolerances, dict)
    """Tolerances of single dtypes, in place of `atol` and `rtol`."""
    extra: Mapping[str, Any] = checked(attrs.Factory(dict), mapping_of(object, "values"))
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
        """These settings with those of a layer.

        An `atol` or `rtol` of the layer is meant for every dtype: it replaces those that layers
        below gave single dtypes. What the layer itself says about a dtype comes after that.
        """
        given = layer.given
        for_all = {name: given[name] for name in ("atol", "rtol") if name in given}
        dtypes = {name: attrs.evolve(tolerance, **for_all) for name, tolerance in self.dtypes.items()}
        merged = {name: {**mine, **given.get(name, {})} for name, mine in (("dtypes", dtypes), ("extra", self.extra))}
        return attrs.evolve(self, **{**given, **merged})


@attrs.frozen(init=False)
class EvalConfig:
    """One layer of settings: some fields of `ResolvedEvalConfig`. Others, and those that are None, are inherited.

    `dtypes` and `extra` are merged key by key.

    Raises:
        InvalidField: A value is not valid.
        UnknownName: There is no such setting.
    """

    given: Mapping[str, Any]

    def __init__(self, **given: Any) -> None:
        self.__attrs_init__({name: self._valid(name, value) for name, value in given.items() if value is not None})

    def __getattr__(self, name: str) -> Any:
        """The value of a setting; None if it is inherited."""
        if name in attrs.fields_dict(ResolvedEvalConfig):
            return self.given.get(name)
        raise AttributeError(name)

    def _valid(self, name: str, value: Any) -> Any:
        fields = attrs.fields_dict(ResolvedEvalConfig)
        if name not in fields:
            raise UnknownName("setting", name, tuple(fields))
        return valid_value(self, fields[name], value)


def valid_value(instance: object, attribute: attrs.Attribute[Any], value: Any) -> Any:
    """A value as a field keeps it, or `InvalidField`."""
    if attribute.name == "dtypes" and isinstance(value, Mapping):
        value = dict(value)
    value = as_tuple(value)
    if attribute.validator is not None:
        attribute.validator(instance, attribute, value)
    return value


def _layers_by_name() -> Any:
    return checked(attrs.Factory(dict), mapping_of(EvalConfig, "an EvalConfig each"))


@attrs.frozen(kw_only=True)
class Layers:
    """The layers of one source: defaults, by op_type, by definition."""

    defaults: EvalConfig = attrs.field(factory=EvalConfig)
    """Settings for all definitions, below those of op_types and definitions."""
    op_type_config: Mapping[str, EvalConfig] = _layers_by_name()
    """Settings by op_type."""
    definition_config: Mapping[str, EvalConfig] = _layers_by_name()
    """Settings by name of a definition."""

    def of(self, definition: Definition) -> Iterator[EvalConfig]:
        """The layers for one definition, lowest first."""
        yield self.defaults
        for layers, name in ((self.op_type_config, definition.op_type), (self.definition_config, definition.name)):
            if name in layers:
                yield layers[name]
