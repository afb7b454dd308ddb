"""Settings of an evaluation and of a run: values with their checks, layers, files.

Evaluations have tolerances, sampling and distributions; a run chooses its pairs, places and layers of these. Files of
settings are YAML. A data set may bring `DATA_SET_FILE` with the layers that its owner recommends. This module imports
no torch, so that `fib-bench --help` is fast.
"""

from __future__ import annotations

import functools
import math
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import attrs
from fib_schema import Definition, DType, InvalidField, InvalidRecord, Problem, TraceSet, UnknownName
from fib_schema.entry_points import find_entry_points
from fib_schema.settings import SettingsFile

from ..errors import InvalidConfig

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


DATA_SET_FILE = "fib-bench.yaml"
"""The file at the root of a data set with the layers that its owner recommends."""
EXECUTORS = ("local", "ray")
MAX_CONCURRENCY = 16
"""On each device: the contexts of sixteen judges and their workers take about 32 GiB, and only one of them times."""
_IN_FLIGHT = "each evaluation in flight holds about 2 GiB of the device, and one of them times at a time"
_FIRST_GPU = "cuda:0"
_LAYERS = attrs.fields_dict(Layers).keys()


def with_device_numbers(value: Any) -> Any:
    """The name of a device, or a list or tuple of names as a tuple, with ``cuda`` as ``cuda:0``."""
    value = as_tuple(value)
    if isinstance(value, tuple):
        return tuple(map(with_device_numbers, value))
    return _FIRST_GPU if value == "cuda" else value


@attrs.frozen(kw_only=True, init=False)
class BenchmarkConfig(Layers):
    """Choice of pairs and settings of a run; its constructor takes the settings of `ResolvedEvalConfig` too.

    The layers, lowest first: the bundled ones, those of the data set, `defaults`, `op_type_config`,
    `definition_config`, and the settings that the constructor was given (`overrides`).
    """

    device: str = checked("cpu", text, with_device_numbers)
    """``cpu``, ``cuda:N``, or ``cuda`` for the first GPU. The CPU unless another one is named; the command line
    defaults to the first GPU."""
    devices: tuple[str, ...] | None = checked(None, names, with_device_numbers)
    """Devices that share the work, instead of `device`; ``all`` means every CUDA device that is visible."""
    concurrency: int | None = checked(None, whole(1, MAX_CONCURRENCY, _IN_FLIGHT))
    """Evaluations in flight on each CUDA device of this machine, at most 16, of which only one times a pass at a
    moment; None depends on the number of cores. The CPU has one."""
    executor: str = checked("local", one_of("executor", lambda: EXECUTORS))
    """The place of the work: this machine, or on the nodes of a Ray cluster."""
    address: str | None = checked(None, text)
    """The address of the Ray cluster; None starts a local one."""
    definitions: tuple[str, ...] | None = checked(None, names, as_tuple)
    """Names to run; None means all."""
    solutions: tuple[str, ...] | None = checked(None, names, as_tuple)
    """Names to run; None means all."""
    op_types: tuple[str, ...] | None = checked(None, names, as_tuple)
    """Op_types whose definitions to run; None means all."""
    max_workloads: int | None = checked(None, whole(1))
    """The maximum number of workloads of each definition, in order."""
    baseline: str | None = checked(None, text)
    """The solution that speedups are quoted against; None means the reference."""
    profile_baseline: bool = checked(True, flag)
    """Time the reference."""
    use_isolated_runner: bool = checked(False, flag)
    """No effect: every solution runs in a worker of its own. Accepted for configurations of other tools."""
    timeout_seconds: float = checked(300.0, number())
    """The bound on one build, and on each step of an evaluation; at most 60 while other judges of the device wait. All
    calls of a step, compilation left out, end after about three times as long together."""
    memory_bytes: int | None = checked(None, whole(1))
    """The approximate bound on memory of prepared inputs and outputs; None means half of the free memory."""
    seed: int = checked(0, whole())
    """Seed of all random inputs."""
    quick: bool = checked(False, flag)
    """Check two distributions and time shortly; passing traces carry the flag ``quick`` and rank nobody."""
    synthesize_missing: bool = checked(False, flag)
    """Make valid inputs if the blob of a workload is missing, instead of skipping the workload."""
    overrides: EvalConfig = attrs.field(factory=EvalConfig)
    """The settings of evaluations that override every layer."""
    data_set_layers: Layers | None = None
    """The layers of the data set; `for_data_set` reads them."""

    def __init__(self, **fields: Any) -> None:
        own = attrs.fields_dict(type(self))
        settings = {name: value for name, value in fields.items() if name not in own}
        given = {name: value for name, value in fields.items() if name in own}
        if settings:
            above = given["overrides"].given if "overrides" in given else {}
            given["overrides"] = EvalConfig(**{**above, **settings})
        self.__attrs_init__(**given)

    def __getattr__(self, name: str) -> Any:
        """The value of a setting among `overrides`; None if it is inherited."""
        if name in attrs.fields_dict(ResolvedEvalConfig):
            return getattr(self.overrides, name)
        raise AttributeError(name)

    def with_fields(self, **changes: Any) -> Self:
        """This configuration with other fields or settings."""
        return type(self)(**{**{name: getattr(self, name) for name in attrs.fields_dict(type(self))}, **changes})

    @classmethod
    def default(cls, **overrides: Any) -> BenchmarkConfig:
        """A configuration with these fields; the bundled layers are always included."""
        return cls(**overrides)

    @classmethod
    def from_yaml(cls, path: str | os.PathLike[str], **overrides: Any) -> BenchmarkConfig:
        """Read a configuration, whose keys are those of the constructor; `InvalidConfigFile` lists all problems."""
        return cls(**{**read_fields(Path(path)), **overrides})

    def for_data_set(self, trace_set: TraceSet) -> Self:
        """This configuration above the layers in the ``fib-bench.yaml`` of a data set.

        `InvalidConfig` if a name in one of them matches nothing, `InvalidConfigFile` if that file is not valid.
        """
        found = self.with_fields(data_set_layers=_data_set_layers(trace_set.root))
        check_names(found, trace_set)
        return found

    def resolve_eval_config(self, definition: Definition) -> ResolvedEvalConfig:
        """The settings for one definition; the highest layer that sets a field wins."""
        resolved = ResolvedEvalConfig()
        for layers in (bundled_layers(), self.data_set_layers or Layers(), self):
            for layer in layers.of(definition):
                resolved = resolved.overridden_by(layer)
        return (resolved.shortened() if self.quick else resolved).overridden_by(self.overrides)


def check_names(config: BenchmarkConfig, trace_set: TraceSet) -> None:
    """Reject layers and a baseline that match nothing in a data set, by `InvalidConfig`."""
    sources = {"the configuration": config, DATA_SET_FILE: config.data_set_layers or Layers()}
    problems = [
        Problem(source, f"$.{place}.{name}", text)
        for source, layers in sources.items()
        for place, name, text in _unknown(layers, trace_set)
    ]
    if config.baseline is not None and config.baseline not in trace_set.solution_names():
        error = UnknownName("solution", config.baseline, trace_set.solution_names())
        problems.append(Problem("the configuration", "$.baseline", str(error)))
    if problems:
        raise InvalidConfig(tuple(problems))


def _unknown(layers: Layers, trace_set: TraceSet) -> Iterator[tuple[str, str, str]]:
    """Names in layers that match nothing in a data set, with the message; op_types with bundled layers are known."""
    for name in layers.definition_config:
        if name not in trace_set.definitions:
            yield "definition_config", name, str(UnknownName("definition", name, tuple(trace_set.definitions)))
    if layers.op_type_config:
        known = tuple(sorted({*_op_types(trace_set), *bundled_layers().op_type_config}))
        for name in layers.op_type_config:
            if name not in known:
                yield "op_type_config", name, str(UnknownName("op_type", name, known))


def _op_types(trace_set: TraceSet) -> Iterable[str]:
    for name in trace_set.definitions:
        try:
            yield trace_set.definitions[name].op_type
        except InvalidRecord:  # the plan reports it
            continue


@functools.cache
def bundled_layers() -> Layers:
    """The lowest layers, from the file ``defaults.yaml`` of this package."""
    return Layers(**_read(Path(__file__).with_name("defaults.yaml"), Layers))


def _data_set_layers(root: Path | None) -> Layers | None:
    try:
        return None if root is None else Layers(**_read(root / DATA_SET_FILE, Layers))
    except FileNotFoundError:
        return None


def read_fields(path: Path) -> dict[str, Any]:
    """The fields of a `BenchmarkConfig` that a file gives."""
    return _read(path, BenchmarkConfig)


def _read(path: Path, kind: type[Layers]) -> dict[str, Any]:
    """The fields of a class that a file gives; evaluation settings among those of a `BenchmarkConfig`."""
    file = SettingsFile.load(path)
    settings = attrs.fields_dict(ResolvedEvalConfig).keys() if kind is BenchmarkConfig else set()
    own = attrs.fields_dict(kind).keys() - _LAYERS - {"overrides", "data_set_layers"}
    given = file.names()
    for name in given:
        if name not in (known := settings | own | _LAYERS):
            file.note(str(UnknownName("setting", name, tuple(sorted(known)))), name)
    found: dict[str, Any] = {name: _layer(file, name) for name in given if name == "defaults"}
    for place in ("op_type_config", "definition_config"):
        if place in given:
            found[place] = {name: _layer(file, place, name) for name in file.names(place)}
    made = _part(file, own).read(BenchmarkConfig)
    found |= {name: getattr(made, name) for name in given if name in own}
    found |= _layer(_part(file, settings)).given
    file.check()
    return found


def _part(file: SettingsFile, names: Collection[str]) -> SettingsFile:
    """The file as if it had only these names; problems are those of the file."""
    return attrs.evolve(file, content={name: file.value(name) for name in file.names() if name in names})


def _layer(file: SettingsFile, *keys: str) -> EvalConfig:
    made = file.read(ResolvedEvalConfig, *keys)
    known = attrs.fields_dict(ResolvedEvalConfig)
    return EvalConfig(**{name: getattr(made, name) for name in file.names(*keys) if name in known})
