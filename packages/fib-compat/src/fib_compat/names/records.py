"""Pydantic's methods and arguments of documented classes, added to the classes of the FIB packages.

Validation is as strict as everywhere in FIB: no value is converted.
"""

from __future__ import annotations

import functools
import json
import math
import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from enum import Enum
from types import MappingProxyType
from typing import Any

import attrs
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
    SpeedupMetrics,
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
CLASSES: Mapping[str, str] = MappingProxyType(
    {
        "fib_schema": " ".join([*(record.__name__ for record in RECORDS), "SpeedupMetrics", "TraceSetSummary"]),
        "fib_apply": "ApplyConfig ApplyKey",
        "fib_bench": "BenchmarkConfig EvalConfig ResolvedEvalConfig",
        "fib_compile": "RunnableMetadata",
        "fib_tracer": "TracingConfig",
    }
)
"""Classes that get the methods, by package."""
_ADDED_FIELDS = frozenset(
    {
        (Definition, "extra"),
        (TensorSpec, "optional"),
        (BuildSpec, "compile_options"),
        (Solution, "extra"),
        (Performance, "extra"),
        (Evaluation, "extra"),
    }
)
"""Fields that the documented classes lack; dumped unless they have their default."""
_added: set[str] = set()
_is_structuring: ContextVar[bool] = ContextVar("_is_structuring", default=False)
"""Whether `structure` calls a constructor, whose refusal is final."""


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
    """Source of the methods; not a base class."""

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
            InvalidField: Settings are invalid; states the first problem (a ValueError).
        """
        return _validate(cls, obj)

    @classmethod
    def model_validate_json(cls, json_data: str | bytes) -> Any:
        """Construct an object from JSON; see `model_validate`."""
        return _validate(cls, decode(json_data, cls.__name__, source="<memory>"))

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
        is_added = (type(value), field.name) in _ADDED_FIELDS
        if field.name != "unknown_fields" and not (is_added and item == _default(field)):
            fields[field.name] = item
    fields |= fields.pop("overrides").given if "overrides" in fields else {}
    return {**fields, **getattr(value, "unknown_fields", {})}


def _default(field: attrs.Attribute[Any]) -> Any:
    default: Any = field.default
    return default.factory() if isinstance(default, attrs.Factory) else default  # type: ignore[arg-type]


def _for_json(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    return to_plain(value) if isinstance(value, float) and not math.isfinite(value) else value


def _validate(cls: type, obj: Any) -> Any:
    if isinstance(obj, cls):
        return obj
    if cls in RECORDS:
        return structure(to_plain(obj), cls)
    if not isinstance(obj, Mapping):
        raise InvalidField(cls.__name__, f"expected a mapping of fields, got {obj!r}")
    known = attrs.fields_dict(cls)
    if not known.keys().isdisjoint({"given", "overrides"}):
        from fib_bench import ResolvedEvalConfig

        known = {**known, **attrs.fields_dict(ResolvedEvalConfig)}
    for name in obj:
        if name not in known:
            raise InvalidField(cls.__name__, f"has no field {name!r} (it has {', '.join(known)})")
    return cls(**{name: _field(name, value) for name, value in obj.items()})


def _field(name: str, value: Any) -> Any:
    """The value of a field of settings or of a summary; plain objects become what the field holds."""
    if value is None:
        return None
    if name in ("defaults", "overrides", "op_type_config", "definition_config", "dtypes"):
        from fib_bench import EvalConfig, Tolerance

        kind: type = Tolerance if name == "dtypes" else EvalConfig
        if name in ("defaults", "overrides"):
            return _validate(kind, value)
        return {key: _validate(kind, item) for key, item in value.items()}
    if name == "rankings":
        return tuple((author, _validate(SpeedupMetrics, score)) for author, score in value)
    if name == "unranked":
        return tuple(value)
    return _validate(Definition, value) if name == "definition" and isinstance(value, Mapping) else value


# -- arguments of records ------------------------------------------------------------------------------


def _accept_other_arguments(cls: type) -> None:
    """Let the constructor of a record ignore unknown keywords, and make records of plain mappings.

    It is tried first as it is, so that arguments which are right cost nothing more.
    """
    original: Callable[..., None] = vars(cls)["__init__"]
    names = [field.name for field in attrs.fields(cls) if field.init]
    positional = [field.name for field in attrs.fields(cls) if field.init and not field.kw_only]

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            original(self, *args, **kwargs)
        except (TypeError, ValueError) as error:
            if len(args) > len(positional) or _is_structuring.get():
                raise
            given = {**dict(zip(positional, args, strict=False)), **kwargs}
            known = {name: value for name, value in given.items() if name in names}
            if len(known) == len(given) and not any(map(_is_plain, known.values())):
                raise
            token = _is_structuring.set(True)
            try:
                made: Any = structure(to_plain(known), cls)
            except (TypeError, ValueError):
                if len(known) == len(given):
                    raise error from None  # that of the class, as without fib-compat
                raise
            finally:
                _is_structuring.reset(token)
            for field in attrs.fields(cls):
                object.__setattr__(self, field.name, getattr(made, field.name))

    cls.__init__ = init  # type: ignore[misc] # the class of the process


def _is_plain(value: object) -> bool:
    """Whether a value is made of plain mappings or strings, which may stand for records or enumerations."""
    return any(map(_is_plain, value)) if isinstance(value, (list, tuple)) else isinstance(value, (dict, str))
