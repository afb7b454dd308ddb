"""JSON Schemas of records, generated from their classes: editors and other languages check files with them.

Every record that `parse_json` accepts is valid. The reverse holds as far as JSON Schema can say it; `NOT_EXPRESSED`
lists the rest. Unknown keys are allowed, because records keep them.
"""

from __future__ import annotations

import ast
import inspect
import json
import typing
from collections.abc import Mapping
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType, UnionType
from typing import Any

import attrs

from ._record import NO_FIELDS, FrozenDict, Record
from .codec import TAGS
from .definition import AxisConst, Definition
from .files import atomic_write
from .solution import BuildSpec, Solution, SourceFile
from .trace import NEEDS_CORRECTNESS, Evaluation, EvaluationStatus, Trace
from .workload import SafetensorsInput, Workload

Schema = dict[str, Any]

DIALECT = "https://json-schema.org/draft/2020-12/schema"
RECORD_KINDS: Mapping[str, type[Record]] = MappingProxyType({
    "definition": Definition, "solution": Solution, "workload": Workload, "trace": Trace,
})  # fmt: skip
"""The records with a schema of their own. A line below ``workloads/`` is a trace without solution and evaluation."""

NOT_EXPRESSED = (
    "references between fields: axes of shapes, inputs and outputs of one name, entry files that are not among the "
    "sources, sources of one path, a source that is the folder of another",
    "the syntax of references and constraints, and identifiers with characters beyond ASCII",
    "names of more than 200 bytes of UTF-8 that have at most 200 characters, and halves of surrogate pairs",
    "integers written as 4.0, numbers beyond the range of a double, and integers of more than 4,300 digits",
    "keys that occur twice, and nesting of more than 100 levels",
)
"""Rules of `parse_json` that a schema cannot express."""

_END = r"(?![\s\S])"  # `$` would allow a newline behind it in some languages
_COMPONENT = rf"(?!\.{{1,2}}(?:/|{_END}))(?![A-Za-z]:)[^/\\\x00-\x1f\x7f]{{1,200}}"
_PATH = rf"{_COMPONENT}(?:/{_COMPONENT})*{_END}"
_NAME: Schema = {"pattern": f"^{_COMPONENT}{_END}"}
_IDENTIFIERS: Schema = {"propertyNames": {"pattern": rf"^(?![0-9])[^\x00-/:-@\[-^`{{-\x7f]+{_END}"}}
_ENTRY_POINT = rf"^(?:(?!::)[\s\S])+::(?:(?!::)[\s\S])+{_END}"
_CONSTRAINTS: Mapping[tuple[type[Record], str], Schema] = MappingProxyType({
    (AxisConst, "value"): {"minimum": 0},
    (Definition, "name"): _NAME,
    (Definition, "op_type"): _NAME,
    (Definition, "axes"): _IDENTIFIERS,
    (Definition, "inputs"): _IDENTIFIERS,
    (Definition, "outputs"): _IDENTIFIERS,
    (SourceFile, "path"): {"pattern": f"^{_PATH}"},
    (BuildSpec, "target_hardware"): {"minItems": 1},
    (BuildSpec, "entry_point"): {"pattern": _ENTRY_POINT},
    (Solution, "name"): _NAME,
    (Solution, "definition"): _NAME,
    (Solution, "author"): _NAME,
    (Solution, "sources"): {"minItems": 1},
    (SafetensorsInput, "path"): {"pattern": rf"^(?:\./)?{_PATH}"},
    (Workload, "axes"): {"additionalProperties": {"type": "integer", "minimum": 0}},
    (Workload, "uuid"): _NAME,
    (Trace, "definition"): _NAME,
    (Trace, "solution"): _NAME,
})  # fmt: skip
"""Demands of the validators of fields besides their types; a test compares both with random records."""

_NON_FINITE = ["NaN", "Infinity", "-Infinity"]
_FLOAT: Schema = {"anyOf": [{"type": "number", "minimum": 0}, {"enum": _NON_FINITE[:2]}]}
_SIMPLE: Mapping[Any, Schema] = MappingProxyType({
    Any: {}, str: {"type": "string"}, int: {"type": "integer"}, bool: {"type": "boolean"}, float: _FLOAT,
})  # fmt: skip


def json_schema(cls: type[Record]) -> Schema:
    """The JSON Schema (2020-12) of a record class, with its nested classes in ``$defs``.

    Args:
        cls: `Definition`, `Solution`, `Workload`, `Trace`, or a class of their fields.
    """
    schemas: dict[str, Schema] = {}
    top = _object(cls, schemas)
    schema = {"$schema": DIALECT, "title": cls.__name__, **top}
    return schema | ({"$defs": dict(sorted(schemas.items()))} if schemas else {})


def format_schema(cls: type[Record]) -> str:
    """The JSON Schema of a record class as text."""
    return json.dumps(json_schema(cls), indent=2) + "\n"


def write_schemas(folder: Path) -> list[Path]:
    """Write the schema of each kind to ``KIND.schema.json`` in a folder, which is made if it is missing.

    Raises:
        OSError: A file cannot be written.
    """
    files = [folder / f"{kind}.schema.json" for kind in RECORD_KINDS]
    for file, cls in zip(files, RECORD_KINDS.values(), strict=True):
        atomic_write(file, format_schema(cls).encode())
    return files


def _object(cls: type[Record], schemas: dict[str, Schema]) -> Schema:
    """The schema of a class; those of its nested classes are added to `schemas`."""
    kinds, texts = typing.get_type_hints(cls), _field_texts(cls)
    fields = [field for field in attrs.fields(cls) if field.name not in {"unknown_fields"}]
    properties: Schema = {}
    required = [field.name for field in fields if field.default is attrs.NOTHING]
    if tag := _tag(cls):
        properties["type"] = {"const": tag}
        required.insert(0, "type")
    for field in fields:
        text: Schema = {"description": texts[field.name]} if field.name in texts else {}
        constraint = _CONSTRAINTS.get((cls, field.name), {})
        properties[field.name] = _value(kinds[field.name], schemas) | constraint | _default(field) | text
    summary = {"description": inspect.cleandoc(cls.__doc__ or "").partition("\n\n")[0].replace("\n", " ")}
    return {**summary, "type": "object", "properties": properties, "required": required, **_CONDITIONS.get(cls, {})}


def _default(field: attrs.Attribute[Any]) -> Schema:
    default: Any = field.default
    if default is attrs.NOTHING:
        return {}
    return {"default": list(default) if default == () else dict(default) if default is NO_FIELDS else default}


def _value(kind: Any, schemas: dict[str, Schema]) -> Schema:
    """The schema of a value of a type; the same cases as in `_decoding`."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind in _SIMPLE:
        return dict(_SIMPLE[kind])
    if origin in (typing.Union, UnionType):
        return _union(arguments, schemas)
    if origin is FrozenDict:
        items = {} if arguments[1] is Any else {"additionalProperties": _value(arguments[1], schemas)}
        return {"type": "object", **items}
    if origin is tuple:
        return {"type": "array", "items": _value(arguments[0], schemas)}
    if issubclass(kind, StrEnum):
        return {"enum": [str(member) for member in kind]}
    if kind.__name__ not in schemas:
        schemas[kind.__name__] = {}
        schemas[kind.__name__] = _object(kind, schemas)
    return {"$ref": f"#/$defs/{kind.__name__}"}


def _union(kinds: tuple[Any, ...], schemas: dict[str, Schema]) -> Schema:
    """A type or null, several numbers, or several tagged records."""
    others = [kind for kind in kinds if kind is not type(None)]
    if float in others:
        return {"anyOf": [{"type": ["number", "boolean"]}, {"enum": _NON_FINITE}]}
    if len(others) > 1:
        return {"oneOf": [_value(kind, schemas) for kind in others]}
    schema = _value(others[0], schemas)
    if "type" in schema:
        return {**schema, "type": [schema["type"], "null"]}
    if "enum" in schema:
        return {"enum": [*schema["enum"], None]}
    return {"anyOf": [schema, {"type": "null"}]}


def _tag(cls: Any) -> str | None:
    return TAGS.get(cls)


def _field_texts(cls: type[Record]) -> dict[str, str]:
    """The docstrings of fields, which Python does not keep; empty where there are no sources."""
    try:
        tree = ast.parse(inspect.getsource(cls))
    except (OSError, SyntaxError):
        return {}
    assert isinstance(tree.body[0], ast.ClassDef)
    body = tree.body[0].body
    return {
        field.target.id: inspect.cleandoc(text.value.value).replace("\n", " ")
        for field, text in pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


def _if_status(*statuses: EvaluationStatus, given: tuple[str, ...], absent: tuple[str, ...]) -> Schema:
    """Parts that an evaluation of some statuses has and lacks."""
    kinds = {name: {"type": "object"} for name in given} | {name: {"type": "null"} for name in absent}
    condition = {"required": ["status"], "properties": {"status": {"enum": [str(status) for status in statuses]}}}
    return {"if": condition, "then": {"required": list(given), "properties": kinds}}


_CONDITIONS: Mapping[type[Record], Schema] = MappingProxyType({
    Evaluation: {
        "allOf": [
            _if_status(EvaluationStatus.PASSED, given=("correctness", "performance"), absent=()),
            _if_status(EvaluationStatus.INCORRECT_NUMERICAL, given=("correctness",), absent=("performance",)),
            _if_status(
                *(status for status in EvaluationStatus if status not in NEEDS_CORRECTNESS),
                given=(),
                absent=("correctness", "performance"),
            ),
        ]
    },
    Trace: {
        "if": {"required": ["solution"], "properties": {"solution": {"type": "string"}}},
        "then": {"required": ["evaluation"], "properties": {"evaluation": {"type": "object"}}},
        "else": {"properties": {"evaluation": {"type": "null"}}},
    },
})  # fmt: skip
"""Rules that concern several fields of a record."""
