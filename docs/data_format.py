"""Reference of the data format: fields of records from JSON Schemas, and fields of settings from their classes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
from fib_bench.config.benchmark import BenchmarkConfig
from fib_bench.config.model import ResolvedEvalConfig
from fib_schema.json_schema import RECORD_KINDS, json_schema
from sphinx.pycode import ModuleAnalyzer

EXAMPLES = Path(__file__).parent / "examples" / "data-format"
FILES = {
    "definition": "definitions/*/*.json",
    "solution": "solutions/*/*/*/*.json",
    "workload": "workloads/*/*.jsonl",
    "trace": "traces/*/*/*.jsonl",
}
"""The files of the example by kind; a line below ``workloads/`` is a trace without solution and evaluation."""
_HIDDEN = {"data_set_layers", "overrides"}


def record_reference(kind: str) -> str:
    """Markdown: an example of a record, and a table of fields for its class and each class below it."""
    schema = json_schema(RECORD_KINDS[kind])
    parts = [schema["description"], "", f"Example, `{example_file(kind).relative_to(EXAMPLES)}`:", ""]
    parts += ["```json", json.dumps(example(kind), indent=2), "```", ""]
    parts += [*_table(schema), ""]
    for name, below in schema.get("$defs", {}).items():
        parts += [f"### {name} in a {kind}", "", below["description"], "", *_table(below), ""]
    return "\n".join(parts)


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


def _table(schema: Mapping[str, Any]) -> Iterator[str]:
    yield "| field | type | default | meaning |"
    yield "| --- | --- | --- | --- |"
    for name, field in schema["properties"].items():
        default = "required" if name in schema["required"] else f"`{json.dumps(field.get('default'))}`"
        meaning = field.get("description", "Kind of this object.")
        yield f"| `{name}` | {_type(field)} | {default} | {_code(meaning)} |"


def _type(field: Mapping[str, Any]) -> str:
    """The type of a field in words."""
    if "$ref" in field:
        return str(field["$ref"]).rpartition("/")[2]
    if "const" in field:
        return f"`{json.dumps(field['const'])}`"
    if "enum" in field:
        return ", ".join(f"`{json.dumps(value)}`" for value in field["enum"])
    for key in ("oneOf", "anyOf"):
        if key in field:
            return " or ".join(dict.fromkeys(_type(part) for part in field[key]))
    kinds = field.get("type", "any value")
    names = [kinds] if isinstance(kinds, str) else list(kinds)
    items = field.get("items") or field.get("additionalProperties")
    of = f" of {_type(items)}" if items else ""
    return " or ".join(name + (of if name in ("array", "object") else "") for name in names)


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
