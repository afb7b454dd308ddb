"""Settings of an evaluation: tolerances, sampling, distributions; layers of them, and the checks of their values.

This module imports no torch, so that `fib-bench --help` is fast.
"""

from __future__ import annotations

import math
import sys
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


def checked(default: Any, check: Check, converter: Callable[[Any], Any] | None = None) -> Any:
    """An attrs field whose value a check accepts; a default of None stands for no value.

    The validator raises `InvalidField` with the problem that the check finds.
    """

    def validate(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
        if (default is not None or value is not None) and (problem := check(value)):
            raise InvalidField(f"{type(instance).__name__}.{attribute.name}", problem)

    return attrs.field(default=default, validator=validate, converter=converter)


def as_tuple(value: Any) -> Any:
    """A list as a tuple; other values unchanged, for the check to reject."""
    return tuple(value) if isinstance(value, list) else value


def expected(wanted: str, holds: Callable[[Any], bool]) -> Check:
    """The check that a value is what the words say."""
    return lambda value: "" if holds(value) else f"must be {wanted}, got {value!r}"


flag = expected("true or false", lambda value: type(value) is bool)
text = expected("a name", lambda value: isinstance(value, str) and value != "")
names = expected("a list of names", lambda value: isinstance(value, tuple) and all(isinstance(n, str) for n in value))


def whole(least: float = -math.inf, most: float = math.inf, because: str = "") -> Check:
    """An integer, not a bool; `because` is the reason of `most`, for the message."""
    wanted = "a whole number" if least == -math.inf else f"a whole number of at least {least}"
    wanted += "" if most == math.inf else f" and at most {most} ({because})"
    return expected(wanted, lambda value: type(value) is int and least <= value <= most)


def number(*, has_zero: bool = False, most: float = sys.float_info.max) -> Check:
    """A number from 0 on, included or not, to a bound; not NaN."""
    wanted = f"a {'finite ' if most == sys.float_info.max else ''}number {'of at least' if has_zero else 'above'} 0"
    wanted += f" and at most {most:g}" if most <= 1 else ""

    def holds(value: object) -> bool:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and (value >= 0 if has_zero else value > 0) and value <= most  # type: ignore[operator]

    return expected(wanted, holds)


def one_of(kind: str, known: Callable[[], Sequence[str]]) -> Check:
    """One of the names that are known at the time of the check."""
    return lambda value: text(value) or ("" if value in known() else str(UnknownName(kind, str(value), tuple(known()))))


def mapping_of(kind: type, what: str) -> Check:
    """A mapping from strings to instances of a class."""

    def holds(value: object) -> bool:
        return isinstance(value, Mapping) and all(isinstance(k, str) and isinstance(v, kind) for k, v in value.items())

    return expected(f"a mapping from names to {what}", holds)


def _tolerances(value: Any) -> str:
    problem = mapping_of(Tolerance, "tolerances")(value)
    return problem or "; ".join(str(UnknownName("floating dtype", k, FLOATING)) for k in value if k not in FLOATING)


def _some_distributions(value: object) -> str:
    if problem := names(value):
        return problem
    assert isinstance(value, tuple)
    if unknown := [UnknownName("distribution", name, DISTRIBUTIONS) for name in value if name not in DISTRIBUTIONS]:
        return "; ".join(map(str, unknown))
    return "" if value and len(set(value)) == len(value) else "must name at least one, and none twice"


@attrs.frozen
class Tolerance:
    """The error bounds of one dtype: an element is wrong if it exceeds both."""

    atol: float = checked(attrs.NOTHING, number(has_zero=True))
    rtol: float = checked(attrs.NOTHING, number(has_zero=True))


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

    warmup_runs: int = checked(10, whole(0))
    """Calls before timing."""
    iterations: int = checked(50, whole(1))
    """The fewest calls to time, unless a cap is hit; at least 20 samples, where it asks for more calls than that."""
    max_iterations: int = checked(2000, whole(1))
    """The most samples to take; more only where `iterations` asks for more."""
    num_trials: int = checked(3, whole(1))
    """Input sets with different values; each is checked, and timed calls get mixtures of them."""
    measure_seconds: float = checked(1.0, number())
    """The cap on timing one function on one workload."""
    cpu_processes: int = checked(3, whole(1))
    """On the CPU: the processes that time a function, one after the other. Their differences are in its interval."""
    confidence: float = checked(0.005, number(has_zero=True, most=1))
    """Stop when half the median's 95 % confidence interval is below this share of the median."""
    rtol: float = checked(1e-2, number(has_zero=True))
    """Relative error that an element may have, whatever `atol` says."""
    atol: float = checked(1e-2, number(has_zero=True))
    """Absolute error that an element may have, whatever `rtol` says."""
    required_matched_ratio: float | None = checked(None, number(most=1))
    """Share of elements that must be right; None means all."""
    error_cap: float = checked(1.0, number(most=math.inf))
    """However many match, none may be off by more than this times the largest magnitude expected."""
    distributions: tuple[str, ...] = checked(DISTRIBUTIONS, _some_distributions, as_tuple)
    """The distributions of the input sets, as far as the op allows them."""
    evaluator: str | None = checked(None, one_of("evaluator", evaluator_names))
    """The evaluator; None means the first one that applies to the definition."""
    dtypes: Mapping[str, Tolerance] = checked(attrs.Factory(lambda: dict(ONE_STEP)), _tolerances)
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
            cpu_processes=1,
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
        fields = attrs.fields_dict(ResolvedEvalConfig)
        if unknown := [name for name in given if name not in fields]:
            raise UnknownName("setting", unknown[0], tuple(fields))
        known = {name: value for name, value in given.items() if value is not None}
        made = ResolvedEvalConfig(**known)
        self.__attrs_init__({name: getattr(made, name) for name in known})

    def __getattr__(self, name: str) -> Any:
        """The value of a setting; None if it is inherited."""
        if name in attrs.fields_dict(ResolvedEvalConfig):
            return self.given.get(name)
        raise AttributeError(name)


def _layers_by_name() -> Any:
    return checked(attrs.Factory(dict), mapping_of(EvalConfig, "EvalConfig"))


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
