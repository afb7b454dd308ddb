"""Configuration files in YAML. A file has layers of settings: defaults, then those of op_types and of definitions.

All problems of a file are collected into one error.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import yaml
from fib_schema import InvalidField, InvalidRecord, Problem, UnknownName
from fib_schema.regular_files import open_regular

from ..errors import InvalidConfig
from .model import FLOATING, EvalConfig, Layers, Tolerance

if TYPE_CHECKING:
    from fib_schema import TraceSet

DATA_SET_FILE = "fib-bench.yaml"
"""The file at the root of a data set with the layers that its owner recommends."""


@functools.cache
def bundled_layers() -> Layers:
    """The lowest layers, from the file ``defaults.yaml`` of this package."""
    return read_layers(Path(__file__).with_name("defaults.yaml"))


def read_layers(path: Path, trace_set: TraceSet | None = None) -> Layers:
    """Read a file of layers.

    Raises:
        InvalidConfig: The file is not valid.
    """
    return Layers(**read_settings(Layers, path, trace_set))


def read_data_set_layers(trace_set: TraceSet) -> Layers | None:
    """Read the layers of a data set, if it has any.

    Raises:
        InvalidConfig: The file is not valid.
        OSError: It cannot be read, or is not a regular file.
    """
    if trace_set.root is None:
        return None
    path = trace_set.root / DATA_SET_FILE
    try:
        open_regular(path).close()  # a pipe would never end
    except FileNotFoundError:
        return None
    return read_layers(path, trace_set)


def read_settings(
    kind: type, path: Path, trace_set: TraceSet | None = None, *, hidden: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Read the fields of a settings class that a file gives.

    Args:
        kind: An attrs class whose fields may include those of `Layers`.
        path: The file.
        trace_set: The data set, to reject names that match nothing.
        hidden: Fields that a file must not give.

    Raises:
        InvalidConfig: The file is not valid; the error lists all problems.
    """
    reader = _Reader(str(path))
    fields = reader.fields(kind, _load(path), "$", hidden)
    if trace_set is not None:
        layers = Layers(**{name: fields[name] for name in attrs.fields_dict(Layers) if name in fields})
        reader.problems += unknown_names(layers, str(path), trace_set)
    if reader.problems:
        raise InvalidConfig(tuple(reader.problems))
    return fields


@attrs.define
class _Reader:
    """Converts plain data to settings, and collects problems."""

    source: str
    problems: list[Problem] = attrs.field(factory=list)

    def note(self, path: str, message: str) -> None:
        self.problems.append(Problem(self.source, path, message))

    def fields(self, kind: type, data: object, path: str, hidden: tuple[str, ...] = ()) -> dict[str, Any]:
        """The valid fields of a class in the data."""
        known = {a.name: a for a in attrs.fields(kind) if a.name not in hidden}
        found = {}
        for key, value in self.items(data, path):
            if key not in known:
                self.note(f"{path}.{key}", str(UnknownName("setting", key, tuple(known))))
            elif key in _NESTED:
                found[key] = _NESTED[key](self, value, f"{path}.{key}")
            elif value is not None:  # a key without a value is ignored
                self.add_valid(known[key], value, f"{path}.{key}", found)
        return found

    def add_valid(self, attribute: attrs.Attribute[Any], value: object, path: str, found: dict[str, Any]) -> None:
        """Add one field, if its value is valid."""
        if attribute.converter is not None:
            value = attribute.converter(value)  # type: ignore[operator,unused-ignore]
        try:
            if attribute.validator is not None:
                attribute.validator(None, attribute, value)
        except InvalidField as error:
            self.note(path, error.problem)
        else:
            found[attribute.name] = value

    def items(self, data: object, path: str) -> Iterable[tuple[str, Any]]:
        """The items of a mapping; None has none."""
        if data is None:
            return
        if not isinstance(data, Mapping):
            self.note(path, f"must be a mapping, got {data!r}")
            return
        for key, value in data.items():
            if isinstance(key, str):
                yield key, value
            else:
                self.note(path, f"keys must be names, got {key!r}")

    def layer(self, data: object, path: str) -> EvalConfig:
        return EvalConfig(**self.fields(EvalConfig, data, path))

    def layers(self, data: object, path: str) -> dict[str, EvalConfig]:
        return {key: self.layer(value, f"{path}.{key}") for key, value in self.items(data, path)}

    def tolerances(self, data: object, path: str) -> dict[str, Tolerance]:
        found = {}
        for key, value in self.items(data, path):
            if key not in FLOATING:
                self.note(f"{path}.{key}", str(UnknownName("floating dtype", key, FLOATING)))
                continue
            noted = len(self.problems)
            given = self.fields(Tolerance, value, f"{path}.{key}")
            missing = attrs.fields_dict(Tolerance).keys() - given.keys()
            if not missing:
                found[key] = Tolerance(**given)
            elif noted == len(self.problems):
                self.note(f"{path}.{key}", f"must give atol and rtol; {' and '.join(sorted(missing))} is missing")
        return found


_NESTED: Mapping[str, Callable[[_Reader, object, str], Any]] = {
    "defaults": _Reader.layer,
    "op_type_config": _Reader.layers,
    "definition_config": _Reader.layers,
    "dtypes": _Reader.tolerances,
}


def unknown_names(layers: Layers, source: str, trace_set: TraceSet) -> Iterable[Problem]:
    """Names in layers that match nothing in a data set; op_types with bundled layers are known."""
    for name in layers.definition_config:
        if name not in trace_set.definitions:
            error = UnknownName("definition", name, tuple(trace_set.definitions))
            yield Problem(source, f"$.definition_config.{name}", str(error))
    if layers.op_type_config:
        known = tuple(sorted({*_op_types(trace_set), *bundled_layers().op_type_config}))
        for name in layers.op_type_config:
            if name not in known:
                yield Problem(source, f"$.op_type_config.{name}", str(UnknownName("op_type", name, known)))


def _op_types(trace_set: TraceSet) -> Iterable[str]:
    for name in trace_set.definitions:
        try:
            yield trace_set.definitions[name].op_type
        except InvalidRecord:  # the plan reports it
            continue


class _Loader(yaml.SafeLoader):
    """YAML loader that reads 1e-3 as a number and rejects duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen and key.value != "<<":
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is given twice", key.start_mark)
            seen.add(key.value if isinstance(key, yaml.ScalarNode) else id(key))
        return super().construct_mapping(node, deep)


# YAML 1.1, which PyYAML reads, requires a point and a sign: https://github.com/yaml/pyyaml/issues/173
_EXPONENT = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$")
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+.0123456789"))


def _load(path: Path) -> object:
    """Parse a file.

    Raises:
        InvalidConfig: It is not valid YAML.
        OSError: It cannot be read.
    """
    try:
        return yaml.load(path.read_bytes(), _Loader)  # a SafeLoader: plain data only
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "
        raise InvalidConfig((Problem(str(path), "$", f"{place}{error.problem}"),)) from error
    except RecursionError as error:
        raise InvalidConfig((Problem(str(path), "$", "is nested too deep"),)) from error
    except (yaml.YAMLError, ValueError) as error:  # a number or a date may be impossible
        raise InvalidConfig((Problem(str(path), "$", str(error)),)) from error
