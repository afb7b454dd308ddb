"""Methods in the manner of pydantic models, for classes that were such models.

Values are checked as strictly as everywhere in FIB: nothing is converted on the way in.
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
"""The classes of `flashinfer_bench.data` that are given the methods."""
_BOOKKEEPING = frozenset({"unknown_fields", "source_keys"})
_ADDED = frozenset(
    {
        (Definition, "extra"),
        (TensorSpec, "optional"),
        (BuildSpec, "compile_options"),
        (Solution, "extra"),
        (Performance, "extra"),
        (Evaluation, "extra"),
    }
)
"""Fields beyond those of the documented classes: dumped where they hold something."""


def add_model_methods(kind: type) -> None:
    """Give a class of attrs the methods of `Model`."""
    for name, method in vars(Model).items():
        if name.startswith("model_"):
            setattr(kind, name, method)


class Model:
    """Where the methods are taken from; nothing inherits from it."""

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
            mode: ``python`` keeps members of enumerations and infinities; ``json`` makes strings of them.
            include: Of the outermost fields, only these.
            exclude: None of these.
            exclude_none: Whether fields that are None are left out, at any depth.
            exclude_defaults: Whether fields that have their default are left out, at any depth.
        """
        if mode not in ("python", "json"):
            raise ValueError(f"mode must be 'python' or 'json', got {mode!r}")

        def plain(value: Any) -> Any:
            if attrs.has(type(value)):
                shown = _fields(value, exclude_defaults=exclude_defaults).items()
                return {name: plain(item) for name, item in shown if item is not None or not exclude_none}
            if isinstance(value, Mapping):
                return {name: plain(item) for name, item in value.items()}
            if isinstance(value, (tuple, list)):
                return [plain(item) for item in value]
            return _for_json(value) if mode == "json" else value

        dumped: dict[str, Any] = plain(self)
        return {n: v for n, v in dumped.items() if (include is None or n in include) and n not in exclude}

    def model_dump_json(self, *, indent: int | None = None, **options: Any) -> str:
        """The fields as JSON; takes what `model_dump` takes."""
        plain = Model.model_dump(self, mode="json", **options)
        separators = (",", ":") if indent is None else None
        return json.dumps(plain, indent=indent, separators=separators, ensure_ascii=False)

    @classmethod
    def model_validate(cls, obj: Any) -> Any:
        """An object of a mapping of fields, which may hold objects too.

        Raises:
            InvalidRecord: It is no such record; says everything that is wrong (a ValueError).
            InvalidField: Likewise of settings, where the first problem is told (a ValueError).
        """
        return _validated(cls, obj)

    @classmethod
    def model_validate_json(cls, json_data: str | bytes) -> Any:
        """An object of JSON; see `model_validate`."""
        return _validated(cls, decode(json_data, cls.__name__, source="<memory>"))

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Any:
        """A copy with some fields changed, which are checked; `deep` means nothing, for objects here cannot change."""
        del deep
        record: Any = self
        return attrs.evolve(record, **(update or {}))


def _fields(value: Any, *, exclude_defaults: bool) -> dict[str, Any]:
    """What is dumped of an object of attrs, with its tag if it has one."""
    fields: dict[str, Any] = {"type": value.type} if isinstance(value, _TAGGED) else {}
    for field in attrs.fields(type(value)):
        item = getattr(value, field.name)
        is_hidden = exclude_defaults or (type(value), field.name) in _ADDED
        if field.name not in _BOOKKEEPING and not (is_hidden and item == _default(field)):
            fields[field.name] = item
    return {**fields, **getattr(value, "unknown_fields", {})}


def _default(field: attrs.Attribute[Any]) -> Any:
    default: Any = field.default
    return default.factory() if isinstance(default, attrs.Factory) else default  # type: ignore[arg-type]


def _for_json(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    return to_plain(value) if isinstance(value, float) and not math.isfinite(value) else value


def _validated(kind: type, obj: Any) -> Any:
    if isinstance(obj, kind):
        return obj
    if kind in RECORDS:
        return structure(to_plain(obj), kind)
    if not isinstance(obj, Mapping):
        raise InvalidField(kind.__name__, f"expected a mapping of fields, got {obj!r}")
    known = attrs.fields_dict(kind)
    for name in obj:
        if name not in known:
            raise InvalidField(kind.__name__, f"has no field {name!r} (it has {', '.join(known)})")
    return kind(**{name: _made(name, value) for name, value in obj.items()})


# -- settings in settings ------------------------------------------------------------------------------


def _made(name: str, value: Any) -> Any:
    """The value of a field; where it holds settings and was given plain objects, of these."""
    make = _NESTED.get(name)
    return value if make is None or value is None else make(value)


def _layer(value: Any) -> Any:
    from fib_bench import EvalConfig

    return _validated(EvalConfig, value)


def _layers(value: Any) -> dict[str, Any]:
    return {name: _layer(layer) for name, layer in value.items()}


def _tolerances(value: Any) -> dict[str, Any]:
    from fib_bench import Tolerance

    return {name: _validated(Tolerance, tolerance) for name, tolerance in value.items()}


def _definition(value: Any) -> Any:
    return _validated(Definition, value)


_NESTED: Mapping[str, Callable[[Any], Any]] = MappingProxyType(
    {
        "defaults": _layer,
        "op_type_config": _layers,
        "definition_config": _layers,
        "dtypes": _tolerances,
        "definition": _definition,
    }
)
