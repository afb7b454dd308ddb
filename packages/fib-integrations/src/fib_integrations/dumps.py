"""Reader for FlashInfer's call dumps: converts recorded calls with the adapters. FlashInfer need not be installed.

This is a plugin of fib-tracer (extra ``tracing``); nothing else in this package imports it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter
from types import SimpleNamespace
from typing import Any

import torch
from fib_tracer.dump_calls import NotCovered, ReadCall, RecordedCall

from .adapter import Adapter, Call, Plan, definition_mismatch
from .adapters import all_adapters

_LIBRARY = "flashinfer"
_DEFAULTS = (None, False, ())
"""The values that a parameter unknown to the adapter may have: FlashInfer's defaults."""


class RecordedWrapper(SimpleNamespace):
    """The attributes of a wrapper that adapters read. A plan refers to it weakly, as to FlashInfer's own."""


class FlashInferReader:
    """Converts dumped calls; keeps the constructor arguments and the plan of each wrapper."""

    def __init__(self, adapters: Sequence[Adapter]) -> None:
        self._functions = {
            _short(target.path): (adapter, target)
            for adapter in adapters
            for target in adapter.targets
            if target.path.startswith(f"{_LIBRARY}.")
        }
        self._wrappers: dict[str | None, RecordedWrapper] = {}
        self._plans: dict[str | None, Any] = {}

    def knows(self, module: str, function: str) -> bool:
        """Whether this reader handles calls of a function."""
        is_ours = module.partition(".")[0] == _LIBRARY
        return is_ours and (self._find(function) is not None or self._is_constructor(function))

    def read(self, call: RecordedCall) -> ReadCall | None:
        """The definition and inputs of a call; None for the construction or plan of a wrapper.

        Raises:
            NotCovered: No definition describes it.
        """
        if self._is_constructor(call.function):
            self._wrappers[call.instance] = _wrapper(call.arguments)
            self._plans.pop(call.instance, None)
            return None
        known = self._find(call.function)
        if known is None:
            raise NotCovered(call.function, "no adapter converts it")
        adapter, target = known
        if isinstance(target, Plan):
            self._plans[call.instance] = self._read_plan(call, target)
            return None
        return self._read_call(call, adapter, target)

    def _find(self, function: str) -> tuple[Adapter, Call | Plan] | None:
        """Find a function by name; the name of a wrapper's subclass must end like the wrapper's."""
        if "." not in function:
            return self._functions.get(function)
        owner, _, method = function.rpartition(".")
        return next((p for name, p in self._functions.items() if _matches(name, owner, method)), None)

    def _is_constructor(self, function: str) -> bool:
        owner, _, method = function.rpartition(".")
        return method == "__init__" and any(_matches(name, owner, name.rpartition(".")[2]) for name in self._functions)

    def _read_plan(self, call: RecordedCall, target: Plan) -> Any:
        wrapper = self._wrappers.get(call.instance)
        if wrapper is None:
            return "the construction of its wrapper was not recorded"
        try:
            return _convert(target.convert, (wrapper,), call.arguments, target.ignored)
        except _CannotConvert as error:
            return str(error)

    def _read_call(self, call: RecordedCall, adapter: Adapter, target: Call) -> ReadCall:
        leading: tuple[Any, ...] = ()
        if target.uses_plan:
            leading = (self._plans.get(call.instance, "its plan was not recorded"),)
            if isinstance(leading[0], str):
                raise NotCovered(call.function, leading[0])
        try:
            found = _convert(target.convert, leading, call.arguments, target.ignored)
        except _CannotConvert as error:
            raise NotCovered(call.function, str(error)) from error
        if isinstance(found, str):
            raise NotCovered(call.function, found)
        definition = target.describe(found[0])
        if reason := definition_mismatch(adapter, definition, None):
            raise NotCovered(call.function, reason)
        return ReadCall(definition.name, dict(zip(definition.inputs, found[1], strict=False)))


class _CannotConvert(Exception):
    """A call cannot be converted as it was recorded."""


def _convert(
    convert: Callable[..., Any], leading: tuple[Any, ...], arguments: Mapping[str, Any], ignored: frozenset[str]
) -> Any:
    """The result of an adapter's `convert`; `_CannotConvert` if an argument is missing, or unknown to the adapter."""
    parameters = list(inspect.signature(convert).parameters.values())[len(leading) :]
    known = {p.name: arguments[p.name] for p in parameters if p.name in arguments}
    for parameter in parameters:
        if parameter.name not in known and parameter.default is Parameter.empty:
            raise _CannotConvert(f"its {parameter.name!r} was not recorded")
    for name, value in arguments.items():
        if name not in known and name not in ignored and not _is_default(value):
            raise _CannotConvert(f"{name} is given")
    for name, value in known.items():
        if _is_lost(value):
            raise _CannotConvert(f"its {name!r} was recorded as text, without its value")
    try:
        return convert(*leading, **known)
    except Exception as error:
        raise _CannotConvert(f"its conversion raised {type(error).__name__}: {error}") from error


def _is_default(value: Any) -> bool:
    return any(value is default or value == default for default in _DEFAULTS if not isinstance(value, torch.Tensor))


def _is_lost(value: Any) -> bool:
    """Whether a dump has only a description of a value, or of a part of it."""
    if isinstance(value, (tuple, list)):
        return any(_is_lost(item) for item in value)
    return not isinstance(value, (torch.Tensor, torch.dtype, bool, int, float, str, type(None)))


def _wrapper(arguments: Mapping[str, Any]) -> RecordedWrapper:
    return RecordedWrapper(
        _kv_layout=arguments.get("kv_layout", "NHD"),
        _use_cuda_graph=bool(arguments.get("use_cuda_graph")),
        _jit_module=arguments.get("jit_args"),
    )


def _short(path: str) -> str:
    """The name of a function, or of a class and a method."""
    *_, owner, name = path.split(".")
    return f"{owner}.{name}" if owner[:1].isupper() else name


def _matches(name: str, owner: str, method: str) -> bool:
    known, _, known_method = name.rpartition(".")
    return bool(known) and known_method == method and owner.endswith(known)


def call_reader() -> FlashInferReader:
    """A reader with all adapters, those of other packages included."""
    return FlashInferReader(tuple(all_adapters().values()))
