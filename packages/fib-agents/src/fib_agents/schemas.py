"""JSON Schemas of tools, from annotations and docstrings."""

from __future__ import annotations

import collections.abc
import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from fib_schema import Definition, Solution, Workload

from .workspace import Code, Workspace

CODE_SCHEMA: Mapping[str, Any] = {
    "anyOf": [
        {"type": "string", "description": "the name of a solution of the data set"},
        {
            "type": "object",
            "additionalProperties": {"type": "string"},
            "minProperties": 1,
            "description": 'files by name, such as {"kernel.py": "..."}; suffixes .py, .cu, .cpp, .cuh, .h',
        },
        {
            "type": "object",
            "required": ["spec", "sources"],
            "description": "a record of a solution, to state the build options that are inferred otherwise",
        },
    ]
}
_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean"}
_SECTION = re.compile(r"^(Args|Returns|Raises|Shapes|Source|Yields):\s*$")
_ARGUMENT = re.compile(r"^    (\w+): (.*)$")


def function_to_schema(function: Callable[..., Any]) -> dict[str, Any]:
    """The schema of a function: name, description and parameters.

    Parameters of the type `Workspace` are left out, because the program that runs the tools supplies them.

    Args:
        function: It has annotations, and a docstring in Google's style.

    Raises:
        TypeError: A parameter has no annotation, or one that JSON cannot express.
    """
    description, arguments = _parse_docstring(inspect.getdoc(function) or "")
    hints = typing.get_type_hints(function)
    properties, required = {}, []
    for name, parameter in inspect.signature(function).parameters.items():
        if name not in hints:
            raise TypeError(f"{function.__name__}: parameter {name!r} has no annotation")
        if hints[name] is Workspace:
            continue
        schema = _schema_of(hints[name], f"{function.__name__}: parameter {name!r}")
        properties[name] = schema | ({"description": arguments[name]} if name in arguments else {})
        if parameter.default is inspect.Parameter.empty:
            required.append(name)
        elif parameter.default is not None:
            default = parameter.default
            properties[name]["default"] = list(default) if isinstance(default, tuple) else default
    return {
        "name": function.__name__,
        "description": description,
        "parameters": {"type": "object", "properties": properties, "required": required, "additionalProperties": False},
    }


def _schema_of(hint: Any, where: str) -> dict[str, Any]:
    if hint == Code:
        return {key: list(value) for key, value in CODE_SCHEMA.items()}
    if hint in _TYPES:
        return {"type": _TYPES[hint]}
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        others = [one for one in arguments if one is not type(None)]
        if len(others) == 1:
            return _schema_of(others[0], where)
        return {"anyOf": [_schema_of(one, where) for one in others]}
    if origin is typing.Literal:
        return {"type": "string", "enum": list(arguments)}
    if origin in (collections.abc.Sequence, list, tuple):
        return {"type": "array", "items": _schema_of(arguments[0], where)}
    if origin in (collections.abc.Mapping, dict):
        return {"type": "object", "additionalProperties": _schema_of(arguments[1], where)}
    if hint is Any:
        return {}
    if hint in (Definition, Solution, Workload):
        return {"type": "object", "description": f"a record of the class {hint.__name__}"}
    raise TypeError(f"{where}: JSON Schema cannot express {hint!r}")


def _parse_docstring(text: str) -> tuple[str, dict[str, str]]:
    """The description before the sections, and the descriptions of the arguments."""
    lines = text.splitlines()
    first = next((index for index, line in enumerate(lines) if _SECTION.match(line)), len(lines))
    description = re.sub(r"\s+", " ", " ".join(lines[:first])).strip()
    arguments: dict[str, str] = {}
    section, current = "", ""
    for line in lines[first:]:
        if match := _SECTION.match(line):
            section = match[1]
        elif section == "Args" and (match := _ARGUMENT.match(line)):
            current = match[1]
            arguments[current] = match[2]
        elif section == "Args" and current and line.strip():
            arguments[current] += f" {line.strip()}"
    return description, arguments
