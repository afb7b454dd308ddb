"""Settings of a benchmark run: which pairs to run, where, and the layers of their evaluation settings.

Files of settings are YAML. A data set may bring `DATA_SET_FILE` with the layers that its owner recommends.
This module imports no torch, so that `fib-bench --help` is fast.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, Self

import attrs
from fib_schema import Definition, InvalidRecord, Problem, TraceSet, UnknownName
from fib_schema.settings import SettingsFile

from ..errors import InvalidConfig
from .model import EvalConfig, Layers, ResolvedEvalConfig, as_tuple, checked, flag, names, number, one_of, text, whole

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
    """The bound on one build, and on each step of an evaluation; at most 60 while other judges of the device wait."""
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
