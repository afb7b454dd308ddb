"""Pydantic's methods for classes that were pydantic models in flashinfer-bench.

Validation is as strict as everywhere in FIB: no value is converted.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping
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
    TensorSpec,
    Definition,
    SourceFile,
    BuildSpec,
    Solution,
    Workload,
    Correctness,
    Performance,
    Environment,
    Evaluation,
    Trace,
)
"""The classes of `flashinfer_bench.data` that get the methods."""
_INTERNAL_FIELDS = frozenset({"unknown_fields"})
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


def add_model_methods(cls: type) -> None:
    """Add the methods of `Model` to an attrs class."""
    for name, method in vars(Model).items():
        if name.startswith("model_"):
            setattr(cls, name, method)


class Model:
    """Source of the methods; not a base class."""

    def model_dump(
        self,
        *,
        mode: str = "python",
        include: Collection[str] | None = None,
        exclude: Collection[str] = (),
        exclude_none: bool = False,
        exclude_defaults: bool = False,
    ) -> dict[str, Any]:
        """The fields as plain objects.

        Args:
            mode: ``python`` keeps enumeration members and infinities; ``json`` converts them to strings.
            include: Top-level fields to dump; None means all.
            exclude: Top-level fields to omit.
            exclude_none: Whether to omit fields that are None, at any depth.
            exclude_defaults: Whether to omit fields that have their default, at any depth.
        """
        if mode not in ("python", "json"):
            raise ValueError(f"mode must be 'python' or 'json', got {mode!r}")

        def plain(value: Any) -> Any:
            if attrs.has(type(value)):
                fields = _fields(value, exclude_defaults=exclude_defaults).items()
                return {name: plain(item) for name, item in fields if item is not None or not exclude_none}
            if isinstance(value, Mapping):
                return {name: plain(item) for name, item in value.items()}
            if isinstance(value, (tuple, list)):
                return [plain(item) for item in value]
            return _for_json(value) if mode == "json" else value

        dumped: dict[str, Any] = plain(self)
        return {n: v for n, v in dumped.items() if (include is None or n in include) and n not in exclude}

    def model_dump_json(self, *, indent: int | None = None, **options: Any) -> str:
        """The fields as JSON; the options are those of `model_dump`."""
        plain = Model.model_dump(self, mode="json", **options)
        separators = (",", ":") if indent is None else None
        return json.dumps(plain, indent=indent, separators=separators, ensure_ascii=False)

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
        fields = getattr(record, "given", None)
        return (
            attrs.evolve(record, **(update or {})) if fields is None else type(record)(**{**fields, **(update or {})})
        )


def _fields(value: Any, *, exclude_defaults: bool) -> dict[str, Any]:
    """The fields of an attrs object to dump, with its tag if it has one; of settings those that are given."""
    if hasattr(value, "given"):
        return dict(value.given)
    fields: dict[str, Any] = {"type": value.type} if isinstance(value, _TAGGED) else {}
    for field in attrs.fields(type(value)):
        item = getattr(value, field.name)
        omits_default = exclude_defaults or (type(value), field.name) in _ADDED_FIELDS
        if field.name not in _INTERNAL_FIELDS and not (omits_default and item == _default(field)):
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
    return cls(**{name: _structure_field(name, value) for name, value in obj.items()})


# -- nested settings ------------------------------------------------------------------------------------


def _structure_field(name: str, value: Any) -> Any:
    """The value of a field; plain objects become settings where the field holds settings."""
    structure_value = _NESTED.get(name)
    return value if structure_value is None or value is None else structure_value(value)


def _eval_config(value: Any) -> Any:
    from fib_bench import EvalConfig

    return _validate(EvalConfig, value)


def _eval_configs(value: Any) -> dict[str, Any]:
    return {name: _eval_config(config) for name, config in value.items()}


def _tolerances(value: Any) -> dict[str, Any]:
    from fib_bench import Tolerance

    return {name: _validate(Tolerance, tolerance) for name, tolerance in value.items()}


def _rankings(value: Any) -> tuple[tuple[str, SpeedupMetrics], ...]:
    return tuple((author, _validate(SpeedupMetrics, score)) for author, score in value)


def _definition(value: Any) -> Any:
    return _validate(Definition, value)


_NESTED: Mapping[str, Callable[[Any], Any]] = MappingProxyType(
    {
        "defaults": _eval_config,
        "overrides": _eval_config,
        "op_type_config": _eval_configs,
        "definition_config": _eval_configs,
        "dtypes": _tolerances,
        "definition": _definition,
        "rankings": _rankings,
        "unranked": tuple,
    }
)
