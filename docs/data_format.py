"""Reference of the data format: fields of records and of settings from their classes."""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from types import UnionType
from typing import Any

import attrs
from fib_bench.config.model import BenchmarkConfig, ResolvedEvalConfig
from fib_schema import Definition, Solution, Trace, Workload
from fib_schema._record import Record
from fib_schema.codec import tag_of
from sphinx.pycode import ModuleAnalyzer

EXAMPLES = Path(__file__).parent / "examples" / "data-format"
RECORD_KINDS: Mapping[str, type[Record]] = {
    "definition": Definition,
    "solution": Solution,
    "workload": Workload,
    "trace": Trace,
}
FILES = {
    "definition": "definitions/*/*.json",
    "solution": "solutions/*/*/*/*.json",
    "workload": "workloads/*/*.jsonl",
    "trace": "traces/*/*/*.jsonl",
}
"""The files of the example by kind; a line below ``workloads/`` is a trace without solution and evaluation."""
_WORDS = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
_HIDDEN = {"data_set_layers", "overrides"}


def record_reference(kind: str) -> str:
    """Markdown: an example of a record, and a table of fields for its class and each class below it."""
    top, *below = record_classes(RECORD_KINDS[kind])
    parts = [_summary(top), "", f"Example, `{example_file(kind).relative_to(EXAMPLES)}`:", ""]
    parts += ["```json", json.dumps(example(kind), indent=2), "```", ""]
    parts += [*_table(top), ""]
    for cls in below:
        parts += [f"### {cls.__name__} in a {kind}", "", _summary(cls), "", *_table(cls), ""]
    return "\n".join(parts)


def record_classes(cls: type[Record]) -> list[type[Record]]:
    """A record class, and those of its fields and of theirs by name."""
    found: dict[str, type[Record]] = {}
    pending = [cls]
    while pending:
        one = pending.pop()
        found[one.__name__] = one
        for kind in typing.get_type_hints(one).values():
            pending += [part for part in _parts(kind) if attrs.has(part) and part.__name__ not in found]
    return [cls, *(found[name] for name in sorted(found) if name != cls.__name__)]


def _parts(kind: Any) -> Iterator[Any]:
    yield kind
    for part in typing.get_args(kind):
        yield from _parts(part)


def _summary(cls: type) -> str:
    return inspect.cleandoc(cls.__doc__ or "").partition("\n\n")[0].replace("\n", " ")


def example_file(kind: str) -> Path:
    """The file of the example data set that has a record of a kind."""
    (file,) = EXAMPLES.glob(FILES[kind])
    return file


def example(kind: str) -> Any:
    """The record of a kind in the example data set."""
    record = json.loads(example_file(kind).read_text())
    return record["workload"] if kind == "workload" else record


def settings_reference() -> str:
    """Markdown: a table of the settings of an evaluation, and one of those of a run."""
    evaluation = {field.name for field in attrs.fields(ResolvedEvalConfig)}
    run = [field.name for field in attrs.fields(BenchmarkConfig) if field.name not in evaluation | _HIDDEN]
    tables = [("In all layers", ResolvedEvalConfig, sorted(evaluation, key=_place)), ("Of a run", BenchmarkConfig, run)]
    return "\n\n".join(f"### {title}\n\n" + "\n".join(_settings(cls, names)) for title, cls, names in tables)


def _place(name: str) -> int:
    return [field.name for field in attrs.fields(ResolvedEvalConfig)].index(name)


def _table(cls: type[Record]) -> Iterator[str]:
    documented, kinds = _field_documents(cls), typing.get_type_hints(cls)
    yield "| field | type | default | meaning |"
    yield "| --- | --- | --- | --- |"
    if tag := tag_of(cls):
        yield f"| `type` | `{json.dumps(tag)}` | required | Kind of this object. |"
    for field in attrs.fields(cls):
        if field.name != "unknown_fields":
            default: Any = field.default
            shown = "required" if default is attrs.NOTHING else f"`{json.dumps(default)}`"
            yield f"| `{field.name}` | {_type(kinds[field.name])} | {shown} | {_code(documented[field.name])} |"


def _type(kind: Any) -> str:
    """The type of a field in words."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(kind, UnionType):
        return " or ".join(_type(part) for part in inner)
    if origin is tuple:
        return f"array of {_type(inner[0])}"
    if origin is not None:
        return "object" if inner[1] is Any else f"object of {_type(inner[1])}"
    if issubclass(kind, StrEnum):
        return ", ".join(f"`{json.dumps(value)}`" for value in kind)
    return _WORDS.get(kind, kind.__name__)


def _settings(cls: type, names: list[str]) -> Iterator[str]:
    documented = _field_documents(cls)
    yield "| key | default | meaning |"
    yield "| --- | --- | --- |"
    for name in names:
        yield f"| `{name}` | {_default(getattr(cls(), name))} | {_code(documented[name])} |"


def _default(value: Any) -> str:
    if isinstance(value, Mapping):
        value = {key: attrs.asdict(item) if attrs.has(type(item)) else item for key, item in value.items()}
    if attrs.has(type(value)):
        value = {}
    return f"`{json.dumps(list(value) if isinstance(value, tuple) else value)}`"


def _field_documents(cls: type) -> dict[str, str]:
    """The docstrings of the fields of a class and of its base classes."""
    documented: dict[str, str] = {}
    for base in reversed([base for base in cls.__mro__ if attrs.has(base)]):
        found = ModuleAnalyzer.for_module(base.__module__).find_attr_docs()
        documented |= {
            name: " ".join(lines).strip() for (owner, name), lines in found.items() if owner == base.__name__
        }
    return documented


def _code(text: str) -> str:
    """A docstring as Markdown in a cell: double backticks become single ones."""
    return text.replace("``", "`").replace("|", "\\|")
