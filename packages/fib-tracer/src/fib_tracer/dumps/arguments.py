"""Arguments of a recorded call: names from the function's signature, values from tensors and JSON.

Source: what FlashInfer 0.6.4 and 0.7.2 write. Positional arguments are ``arg_0`` and so on, keywords ``kwarg_name``. In
0.6.4 a list or tuple is text, cut off after 1,000 characters, and tensors in it are lost. In 0.7.2 its items are
recorded one by one, and tensors among them are named by their ``tensor_key``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import attrs
import torch

_MAX_TEXT = 1000
"""The length at which 0.6.4 cuts texts off."""
_POSITIONAL = re.compile(r"arg_(\d{1,4})")
_KEYWORD = "kwarg_"
_CONTAINERS: Mapping[str, type] = MappingProxyType({"list": list, "tuple": tuple, "dict": dict})
_BRACKETS: Mapping[str, str] = MappingProxyType({"(": ")", "[": "]", "{": "}"})


@attrs.frozen
class Unrecorded:
    """The value of an argument that the dump does not contain."""

    kind: str
    """The name of its type."""
    text: str
    """Its text in the dump."""


@attrs.frozen
class Parameters:
    """A function's positional parameters."""

    positional: tuple[str, ...]
    variadic: str | None = None
    """The parameter that takes further positional arguments."""


def parse_parameters(signature: str) -> Parameters:
    """The parameters of a signature's text. Annotations and defaults, which need not be Python, are ignored.

    Raises:
        ValueError: It is not a signature.
    """
    inside = signature.strip()
    if not inside.startswith("("):
        raise ValueError(f"{signature[:60]!r} is not a signature")
    names: list[str] = []
    for part in _split(inside[1:]):
        name = re.split(r"[:=]", part, maxsplit=1)[0].strip()
        if name.startswith("*"):
            return Parameters(tuple(names), None if name == "*" or name.startswith("**") else name[1:].strip())
        if name.isidentifier():
            names.append(name)
        elif name not in ("/", ""):
            raise ValueError(f"{name[:60]!r} is not a parameter")
    return Parameters(tuple(names))


def _split(text: str) -> Iterator[str]:
    """The parts between commas, outside of brackets and strings, up to the closing bracket."""
    open_brackets: list[str] = []
    quote, start = "", 0
    for position, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote and text[position - 1] != "\\" else quote
        elif letter in "'\"":
            quote = letter
        elif letter in _BRACKETS:
            open_brackets.append(_BRACKETS[letter])
        elif open_brackets and letter == open_brackets[-1]:
            open_brackets.pop()
        elif not open_brackets and letter in ",)":
            yield text[start:position]
            start = position + 1
            if letter == ")":
                return
    raise ValueError("the signature has no closing bracket")


def arguments_of(
    parameters: Parameters, recorded: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]
) -> dict[str, Any]:
    """A call's arguments by parameter.

    Args:
        parameters: Of the function.
        recorded: Arguments that are not tensors, by key.
        tensors: By key; tensors inside a list or mapping have longer keys.

    Raises:
        ValueError: An argument has no parameter, or a positional argument is missing before another.
    """
    positional: dict[int, Any] = {}
    keywords: dict[str, Any] = {}
    nested = set(_tensor_keys(recorded))
    whole = {key: tensor for key, tensor in tensors.items() if key not in nested}
    for key, value in {**whole, **{key: value_of(plain, tensors) for key, plain in recorded.items()}}.items():
        if match := _POSITIONAL.fullmatch(key):
            positional[int(match[1])] = value
        elif key.startswith(_KEYWORD):
            keywords[key.removeprefix(_KEYWORD)] = value
        else:
            raise ValueError(f"{key!r} is not an argument")
    if sorted(positional) != list(range(len(positional))):
        raise ValueError(f"positional arguments {sorted(positional)} have gaps")
    values = [positional[position] for position in range(len(positional))]
    count = len(parameters.positional)
    named = dict(zip(parameters.positional, values, strict=False))
    if len(values) > count:
        if parameters.variadic is None:
            raise ValueError(f"{len(values)} positional arguments for {count} parameters")
        named[parameters.variadic] = tuple(values[count:])
    return {**named, **keywords}


def value_of(recorded: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """The value of a JSON value of the dump; `Unrecorded` if the dump does not contain it."""
    if not isinstance(recorded, dict):
        return recorded
    if isinstance(key := recorded.get("tensor_key"), str):
        return tensors[key] if key in tensors else _unrecorded(recorded)
    kind = str(recorded.get("type"))
    if isinstance(recorded.get("items"), list) and kind in _CONTAINERS and not recorded.get("truncated"):
        return _container(kind, recorded["items"], tensors)
    if kind == "torch.dtype":
        dtype = getattr(torch, str(recorded.get("value")).removeprefix("torch."), None)
        return dtype if isinstance(dtype, torch.dtype) else _unrecorded(recorded)
    if kind == "enum" and "value" in recorded:
        return recorded["value"]
    return _literal(kind, recorded)


def _container(kind: str, items: list[Any], tensors: Mapping[str, torch.Tensor]) -> Any:
    if kind == "dict":
        return {value_of(item["key"], tensors): value_of(item["value"], tensors) for item in items}
    return _CONTAINERS[kind](value_of(item, tensors) for item in items)


def _literal(kind: str, recorded: Mapping[str, Any]) -> Any:
    """A list or mapping of numbers and strings from its text."""
    text = recorded.get("value")
    if kind not in _CONTAINERS or not isinstance(text, str) or len(text) >= _MAX_TEXT:
        return _unrecorded(recorded)
    try:
        value = ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return _unrecorded(recorded)
    return value if isinstance(value, _CONTAINERS[kind]) else _unrecorded(recorded)


def _unrecorded(recorded: Mapping[str, Any]) -> Unrecorded:
    return Unrecorded(str(recorded.get("type")), str(recorded.get("repr", recorded.get("value", "")))[:_MAX_TEXT])


def _tensor_keys(recorded: Any) -> Iterator[str]:
    """The keys of tensors inside lists and mappings."""
    if isinstance(recorded, dict):
        if isinstance(key := recorded.get("tensor_key"), str):
            yield key
        for item in recorded.values():
            yield from _tensor_keys(item)
    elif isinstance(recorded, list):
        for item in recorded:
            yield from _tensor_keys(item)
