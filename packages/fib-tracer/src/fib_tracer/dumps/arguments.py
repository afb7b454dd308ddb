"""The arguments of a recorded call: names from the function's signature, values from tensors and from JSON.

Source: what FlashInfer 0.6.4 and 0.7.2 write. Positional arguments are ``arg_0`` and so on, keywords
``kwarg_name``. In 0.6.4 a list or tuple is text, cut off after 1,000 characters, and tensors in it are lost; in 0.7.2
its items are recorded one by one, and tensors among them are named by their ``tensor_key``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import attrs
import torch

_CUT_OFF = 1000
"""The length at which 0.6.4 cuts texts off."""
_POSITIONAL = re.compile(r"arg_(\d{1,4})")
_KEYWORD = "kwarg_"
_KINDS: Mapping[str, type] = MappingProxyType({"list": list, "tuple": tuple, "dict": dict})
_BRACKETS: Mapping[str, str] = MappingProxyType({"(": ")", "[": "]", "{": "}"})


@attrs.frozen
class Unrecorded:
    """Stands for an argument whose value the dump does not hold."""

    kind: str
    """The name of its type."""
    text: str
    """What was written of it."""


@attrs.frozen
class Parameters:
    """A function's parameters, as far as calls need them."""

    by_place: tuple[str, ...]
    variadic: str | None = None
    """What takes further positional arguments."""


def parse_parameters(signature: str) -> Parameters:
    """The parameters of a signature's text: annotations and defaults, which need be no Python, are passed over.

    Raises:
        ValueError: It is no signature.
    """
    inside = signature.strip()
    if not inside.startswith("("):
        raise ValueError(f"{signature[:60]!r} is no signature")
    names: list[str] = []
    for part in _split(inside[1:]):
        name = re.split(r"[:=]", part, maxsplit=1)[0].strip()
        if name.startswith("*"):
            return Parameters(tuple(names), None if name == "*" or name.startswith("**") else name[1:].strip())
        if name.isidentifier():
            names.append(name)
        elif name not in ("/", ""):
            raise ValueError(f"{name[:60]!r} is no parameter")
    return Parameters(tuple(names))


def _split(text: str) -> Iterator[str]:
    """The parts between commas up to the bracket that closes all; brackets and strings within are whole."""
    open_brackets: list[str] = []
    quote, start = "", 0
    for place, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote and text[place - 1] != "\\" else quote
        elif letter in "'\"":
            quote = letter
        elif letter in _BRACKETS:
            open_brackets.append(_BRACKETS[letter])
        elif open_brackets and letter == open_brackets[-1]:
            open_brackets.pop()
        elif not open_brackets and letter in ",)":
            yield text[start:place]
            start = place + 1
            if letter == ")":
                return
    raise ValueError("the signature breaks off")


def arguments_of(
    parameters: Parameters, recorded: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]
) -> dict[str, Any]:
    """A call's arguments by parameter.

    Args:
        parameters: Of the function.
        recorded: What is no tensor itself, by key.
        tensors: By key; of one within a list or mapping the key is longer.

    Raises:
        ValueError: An argument has no parameter, or one is missing before another.
    """
    places: dict[int, Any] = {}
    keywords: dict[str, Any] = {}
    nested = set(_tensor_keys(recorded))
    whole = {key: tensor for key, tensor in tensors.items() if key not in nested}
    for key, value in {**whole, **{key: value_of(plain, tensors) for key, plain in recorded.items()}}.items():
        if match := _POSITIONAL.fullmatch(key):
            places[int(match[1])] = value
        elif key.startswith(_KEYWORD):
            keywords[key.removeprefix(_KEYWORD)] = value
        else:
            raise ValueError(f"{key!r} is no argument")
    if sorted(places) != list(range(len(places))):
        raise ValueError(f"positional arguments {sorted(places)} have gaps")
    return {**_placed(parameters, [places[place] for place in range(len(places))]), **keywords}


def _placed(parameters: Parameters, values: list[Any]) -> dict[str, Any]:
    count = len(parameters.by_place)
    named = dict(zip(parameters.by_place, values, strict=False))
    if len(values) <= count:
        return named
    if parameters.variadic is None:
        raise ValueError(f"{len(values)} positional arguments for {count} parameters")
    return {**named, parameters.variadic: tuple(values[count:])}


def value_of(recorded: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """What a JSON value of the dump stands for; `Unrecorded` where it does not say."""
    if not isinstance(recorded, dict):
        return recorded
    if isinstance(key := recorded.get("tensor_key"), str):
        return tensors[key] if key in tensors else _unrecorded(recorded)
    kind = str(recorded.get("type"))
    if isinstance(recorded.get("items"), list) and kind in _KINDS and not recorded.get("truncated"):
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
    return _KINDS[kind](value_of(item, tensors) for item in items)


def _literal(kind: str, recorded: Mapping[str, Any]) -> Any:
    """A list or mapping of numbers and strings from its text."""
    text = recorded.get("value")
    if kind not in _KINDS or not isinstance(text, str) or len(text) >= _CUT_OFF:
        return _unrecorded(recorded)
    try:
        value = ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return _unrecorded(recorded)
    return value if isinstance(value, _KINDS[kind]) else _unrecorded(recorded)


def _unrecorded(recorded: Mapping[str, Any]) -> Unrecorded:
    return Unrecorded(str(recorded.get("type")), str(recorded.get("repr", recorded.get("value", "")))[:_CUT_OFF])


def _tensor_keys(recorded: Any) -> Iterator[str]:
    """The keys of tensors that lie within lists and mappings."""
    if isinstance(recorded, dict):
        if isinstance(key := recorded.get("tensor_key"), str):
            yield key
        for item in recorded.values():
            yield from _tensor_keys(item)
    elif isinstance(recorded, list):
        for item in recorded:
            yield from _tensor_keys(item)
