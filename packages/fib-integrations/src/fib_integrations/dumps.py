"""Reads calls that FlashInfer has dumped, with the adapters' own knowledge; FlashInfer need not be there.

This is a call reader of fib-tracer, which is the extra ``tracing``; nothing else here imports it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter
from types import SimpleNamespace
from typing import Any

import attrs
import torch
from fib_tracer.recorded_calls import NotCovered, ReadCall, RecordedCall

from .adapter import Adapter, Call, Plan
from .adapters import all_adapters
from .routes import problem

_LIBRARY = "flashinfer"
_LEFT_OUT = (None, False, ())
"""What a parameter that no adapter reads may be: the defaults of those that FlashInfer has."""


@attrs.frozen
class _Place:
    """A function that a reader knows."""

    adapter: Adapter
    target: Call | Plan


class FlashInferReader:
    """Tells what dumped calls compute; remembers what wrappers were made and planned with.

    Args:
        adapters: Whose knowledge is used.
    """

    def __init__(self, adapters: Sequence[Adapter]) -> None:
        self._places = {
            _short(target.path): _Place(adapter, target)
            for adapter in adapters
            for target in adapter.targets
            if isinstance(target, (Call, Plan)) and target.path.startswith(f"{_LIBRARY}.")
        }
        self._wrappers: dict[str | None, SimpleNamespace] = {}
        self._plans: dict[str | None, Any] = {}

    def knows(self, module: str, function: str) -> bool:
        """Whether calls of a function are its business."""
        is_ours = module.partition(".")[0] == _LIBRARY
        return is_ours and (self._place(function) is not None or self._is_making(function))

    def read(self, call: RecordedCall) -> ReadCall | None:
        """What a call computes; None for one that makes or plans a wrapper.

        Raises:
            NotCovered: No definition describes it.
        """
        if self._is_making(call.function):
            self._wrappers[call.instance] = _made(call.arguments)
            self._plans.pop(call.instance, None)
            return None
        place = self._place(call.function)
        if place is None:
            raise NotCovered(call.function, "no adapter knows it")
        if isinstance(place.target, Plan):
            self._plans[call.instance] = self._planned(call, place.target)
            return None
        return self._computed(call, place.adapter, place.target)

    def _place(self, function: str) -> _Place | None:
        """Of a function; a subclass of a wrapper is known by the end of its name."""
        if "." not in function:
            return self._places.get(function)
        owner, _, method = function.rpartition(".")
        return next((p for name, p in self._places.items() if _matches(name, owner, method)), None)

    def _is_making(self, function: str) -> bool:
        owner, _, method = function.rpartition(".")
        return method == "__init__" and any(_matches(name, owner, name.rpartition(".")[2]) for name in self._places)

    def _planned(self, call: RecordedCall, target: Plan) -> Any:
        wrapper = self._wrappers.get(call.instance)
        if wrapper is None:
            return "how its wrapper was made was not recorded"
        try:
            return _read(target.read, (wrapper,), call.arguments, target.ignored)
        except NotRead as error:
            return str(error)

    def _computed(self, call: RecordedCall, adapter: Adapter, target: Call) -> ReadCall:
        leading: tuple[Any, ...] = ()
        if target.reads_plan:
            leading = (self._plans.get(call.instance, "its plan was not recorded"),)
            if isinstance(leading[0], str):
                raise NotCovered(call.function, leading[0])
        try:
            found = _read(target.read, leading, call.arguments, target.ignored)
        except NotRead as error:
            raise NotCovered(call.function, str(error)) from error
        if isinstance(found, str):
            raise NotCovered(call.function, found)
        described = target.describe(found[0])
        if reason := problem(adapter, described, None):
            raise NotCovered(call.function, reason)
        return ReadCall(described.name, dict(zip(described.inputs, found[1], strict=False)))


class NotRead(Exception):
    """An adapter cannot read a call as it was recorded."""


def _read(
    read: Callable[..., Any], leading: tuple[Any, ...], arguments: Mapping[str, Any], ignored: frozenset[str]
) -> Any:
    """What an adapter's reader makes of arguments by name.

    Raises:
        NotRead: Something is missing, or is there that no reader looks at.
    """
    parameters = list(inspect.signature(read).parameters.values())[len(leading) :]
    given = {p.name: arguments[p.name] for p in parameters if p.name in arguments}
    for parameter in parameters:
        if parameter.name not in given and parameter.default is Parameter.empty:
            raise NotRead(f"its {parameter.name!r} was not recorded")
    for name, value in arguments.items():
        if name not in given and name not in ignored and not _is_left_out(value):
            raise NotRead(f"{name} is given")
    for name, value in given.items():
        if _is_lost(value):
            raise NotRead(f"its {name!r} was recorded as text alone")
    try:
        return read(*leading, **given)
    except Exception as error:
        raise NotRead(f"its arguments cannot be read: {type(error).__name__}: {error}") from error


def _is_left_out(value: Any) -> bool:
    return any(value is default or value == default for default in _LEFT_OUT if not isinstance(value, torch.Tensor))


def _is_lost(value: Any) -> bool:
    """Whether a dump does not hold a value: it has words for it, or for a part of it."""
    if isinstance(value, (tuple, list)):
        return any(_is_lost(item) for item in value)
    return not isinstance(value, (torch.Tensor, torch.dtype, bool, int, float, str, type(None)))


def _made(arguments: Mapping[str, Any]) -> SimpleNamespace:
    """A wrapper as far as adapters look at it."""
    return SimpleNamespace(
        _kv_layout=arguments.get("kv_layout", "NHD"),
        _use_cuda_graph=bool(arguments.get("use_cuda_graph")),
        _jit_module=arguments.get("jit_args"),
    )


def _short(path: str) -> str:
    """A function's name, of a method with the class."""
    *_, owner, name = path.split(".")
    return f"{owner}.{name}" if owner[:1].isupper() else name


def _matches(name: str, owner: str, method: str) -> bool:
    known, _, known_method = name.rpartition(".")
    return bool(known) and known_method == method and owner.endswith(known)


def call_reader() -> FlashInferReader:
    """A reader with all adapters, those of others included."""
    return FlashInferReader(tuple(all_adapters().values()))
