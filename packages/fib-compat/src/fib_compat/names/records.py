"""Pydantic's methods and arguments of documented classes, added to the classes of the FIB packages.

Validation is as strict as everywhere in FIB: no value is converted.
"""

from __future__ import annotations

import functools
import json
import math
import sys
from collections.abc import Callable, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any

import attrs
from cattrs import Converter
from cattrs.errors import ForbiddenExtraKeysError
from fib_schema import (
    AxisConst,
    AxisVar,
    BuildSpec,
    Correctness,
    Definition,
    Environment,
    Evaluation,
    InvalidField,
    Performance,
    RandomInput,
    SafetensorsInput,
    ScalarInput,
    Solution,
    SourceFile,
    TensorSpec,
    Trace,
    Workload,
    to_plain,
)
from fib_schema.codec import decode, structure

_TAGGED = (AxisConst, AxisVar, RandomInput, ScalarInput, SafetensorsInput)
RECORDS: tuple[type, ...] = (
    *_TAGGED,
    *(TensorSpec, Definition, SourceFile, BuildSpec, Solution, Workload),
    *(Correctness, Performance, Environment, Evaluation, Trace),
)
"""The classes of `flashinfer_bench.data` that accept other arguments too."""
CLASSES: Mapping[str, str] = MappingProxyType({
    "fib_schema": " ".join([*(record.__name__ for record in RECORDS), "SpeedupMetrics", "TraceSetSummary"]),
    "fib_apply": "ApplyConfig ApplyKey",
    "fib_bench": "BenchmarkConfig EvalConfig ResolvedEvalConfig",
    "fib_compile": "RunnableMetadata",
    "fib_tracer": "TracingConfig",
})  # fmt: skip
"""Classes that get the methods, by package."""
_ADDED_FIELDS = frozenset({"compile_options", "extra", "optional"})
"""Fields that the documented classes lack, except `Correctness`; dumped unless they have their default."""
_added: set[str] = set()


def add_to_loaded_packages() -> None:
    """Add the methods to the classes of each package that has been imported."""
    for package in CLASSES.keys() - _added:
        if package in sys.modules:
            _added.add(package)
            for name in CLASSES[package].split():
                cls = getattr(sys.modules[package], name)
                for method in ("dump", "dump_json", "validate", "validate_json", "copy"):
                    setattr(cls, f"model_{method}", vars(Model)[f"model_{method}"])
                if cls in RECORDS:
                    _accept_other_arguments(cls)


class Model:
    """The methods; of classes of other packages their source, not a base class."""

    def model_dump(self, *, mode: str = "python", exclude_none: bool = False) -> dict[str, Any]:
        """The fields as plain objects."""
        if mode not in ("python", "json"):
            raise ValueError(f"mode must be 'python' or 'json', got {mode!r}")

        def plain(value: Any) -> Any:
            if attrs.has(type(value)):
                return {n: plain(item) for n, item in _fields(value).items() if item is not None or not exclude_none}
            if isinstance(value, Mapping):
                return {name: plain(item) for name, item in value.items()}
            if isinstance(value, (tuple, list)):
                return [plain(item) for item in value]
            return _for_json(value) if mode == "json" else value

        dumped: dict[str, Any] = plain(self)
        return dumped

    def model_dump_json(self, *, indent: int | None = None, exclude_none: bool = False) -> str:
        """The fields as JSON."""
        plain = Model.model_dump(self, mode="json", exclude_none=exclude_none)
        return json.dumps(plain, indent=indent, separators=None if indent else (",", ":"), ensure_ascii=False)

    @classmethod
    def model_validate(cls, obj: Any) -> Any:
        """Construct an object from a mapping of fields, whose values may be plain or objects.

        Raises:
            InvalidRecord: A record is invalid; lists all problems (a ValueError).
            InvalidField: Another object is invalid; states the first problem (a ValueError).
        """
        if isinstance(obj, cls):
            return obj
        try:
            return _converter().structure(obj, cls)
        except (TypeError, KeyError, AttributeError, ForbiddenExtraKeysError) as error:
            raise InvalidField(cls.__name__, f"cannot be made of these fields: {error}") from error

    @classmethod
    def model_validate_json(cls, json_data: str | bytes) -> Any:
        """Construct an object from JSON; see `model_validate`."""
        return vars(Model)["model_validate"].__func__(cls, decode(json_data, cls.__name__, source="<memory>"))

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Any:
        """Copy with changed fields, which are validated; `deep` has no effect, because objects are immutable."""
        del deep
        record: Any = self
        if hasattr(record, "given"):
            return type(record)(**{**record.given, **(update or {})})
        return attrs.evolve(record, **(update or {}))


def _fields(value: Any) -> dict[str, Any]:
    """The fields of an attrs object to dump, with its tag if it has one; of settings those that are given."""
    if hasattr(value, "given"):
        return dict(value.given)
    fields: dict[str, Any] = {"type": value.type} if isinstance(value, _TAGGED) else {}
    for field in attrs.fields(type(value)):
        item = getattr(value, field.name)
        is_added = field.name in _ADDED_FIELDS and type(value) in RECORDS and type(value) is not Correctness
        if field.name != "unknown_fields" and not (is_added and item == field.default):
            fields[field.name] = item
    fields |= fields.pop("overrides").given if "overrides" in fields else {}
    return {**fields, **getattr(value, "unknown_fields", {})}


def _for_json(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    return to_plain(value) if isinstance(value, float) and not math.isfinite(value) else value


@functools.cache
def _converter() -> Converter:
    """The converter of plain objects, which converts no number and no string."""
    converter = Converter(detailed_validation=False, forbid_extra_keys=True)
    for kind in (bool, int, float, str):
        converter.register_structure_hook(kind, _exactly)
    converter.register_structure_hook_func(lambda cls: cls in RECORDS, lambda obj, cls: structure(to_plain(obj), cls))
    converter.register_structure_hook_func(_is_settings, lambda obj, cls: cls(**obj))
    return converter


def _is_settings(cls: Any) -> bool:
    """Whether a class has settings of benchmarks: its constructor takes plain mappings."""
    return attrs.has(cls) and not attrs.fields_dict(cls).keys().isdisjoint({"given", "overrides"})


def _exactly(value: Any, kind: type) -> Any:
    if issubclass(kind, Enum):
        return kind(value)
    if type(value) is kind or (kind is float and type(value) is int):
        return value
    raise TypeError(f"expected {kind.__name__}, got {value!r}")


# -- arguments of records ------------------------------------------------------------------------------


def _accept_other_arguments(cls: type) -> None:
    """Let the constructor of a record ignore unknown keywords, and make records of plain mappings."""
    original: Callable[..., None] = vars(cls)["__init__"]
    fields = [field for field in attrs.fields(cls) if field.init]
    names = {field.name for field in fields}
    positional = [field.name for field in fields if not field.kw_only]

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        known = {name: value for name, value in kwargs.items() if name in names}
        try:
            original(self, *args, **known)
        except (TypeError, ValueError) as error:
            given = dict(zip(positional, args, strict=False)) | known
            if not any(map(_has_mapping, given.values())):
                raise
            try:
                made: Any = structure(to_plain(given), cls)
            except (TypeError, ValueError):
                raise error from None  # that of the class, as without fib-compat
            for field in fields:
                object.__setattr__(self, field.name, getattr(made, field.name))

    cls.__init__ = init  # type: ignore[misc] # the class of the process


def _has_mapping(value: object) -> bool:
    """Whether a value is or has a plain mapping, which may stand for a record; those of records are of another type."""
    return any(map(_has_mapping, value)) if isinstance(value, list | tuple) else type(value) is dict
