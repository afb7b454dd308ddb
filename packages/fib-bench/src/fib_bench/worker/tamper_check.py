"""Tamper check: finds functions that a solution replaced, and state that it left behind, in its process.

The originals are recorded before a solution is loaded. The findings are untrusted all the same, because a solution
can replace this check too; the judge's clock and the outputs do not depend on it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from functools import cache
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

_NAMES = (
    "time.perf_counter", "time.perf_counter_ns", "time.monotonic", "time.monotonic_ns", "time.time", "time.time_ns",
    "time.process_time", "time.thread_time", "time.sleep",
    "statistics.median", "statistics.mean", "statistics.fmean", "math.isclose",
    "gc.collect", "gc.disable", "gc.enable", "os.write", "socket.socket.send", "socket.socket.sendall",
    "socket.socket.recv", "msgspec.msgpack.encode", "msgspec.msgpack.Decoder",
    "torch.allclose", "torch.equal", "torch.isclose", "torch.testing.assert_close", "torch.Tensor",
    "torch.Tensor.copy_", "torch.Tensor.detach", "torch.Tensor.allclose", "torch.Tensor.equal", "torch.Tensor.shape",
    "torch.Tensor.dtype", "torch.Tensor.is_neg", "torch.Tensor.data_ptr",
    "torch.cuda.synchronize", "torch.cuda.current_stream", "torch.cuda.Event", "torch.cuda.Event.record",
    "torch.cuda.Event.elapsed_time", "torch.cuda.Event.synchronize", "torch.cuda.Event.query", "torch.cuda.Stream",
    "torch.cuda.Stream.synchronize", "torch.cuda.Stream.wait_stream", "torch.cuda.CUDAGraph",
    "torch.cuda.CUDAGraph.replay", "torch.cuda.CUDAGraph.capture_begin", "torch.cuda.CUDAGraph.capture_end",
    "torch.cuda._sleep", "torch.cuda.set_sync_debug_mode",
)  # fmt: skip
"""Functions that harnesses measure and compare with."""
_OWN = (
    "fib_bench.timing",
    "fib_bench.worker",
    "fib_bench.transport.arenas",
    "fib_bench.transport.messages",
    "fib_bench.transport.protocol",
)
_MISSING = object()
_CacheWrapper: type = type(cache(lambda: None))


class Watch:
    """Records functions, hooks and settings, and reports later changes.

    It looks at some 600 functions after every request of the judge, so what it compares is laid out for that.
    """

    def __init__(self) -> None:
        self._named = [(name, tuple(name.split("."))) for name in _NAMES]
        self._originals = [_resolve(path) for _, path in self._named]
        self._values = [
            (f"{where}.{name}", vars(namespace), name, value)
            for where, namespace in _own_namespaces()
            for name, value in vars(namespace).items()
            if isinstance(value, FunctionType | classmethod | staticmethod | property | type | _CacheWrapper)
        ]
        self._functions = [
            (name, value, value.__code__, value.__defaults__, copy(value.__kwdefaults__))
            for name, _, _, value in self._values
            if isinstance(value, FunctionType)
        ]

    def findings(self, *objects: object) -> list[str]:
        """Replaced functions and active modes, as sentences; empty if nothing changed.

        Args:
            objects: Instances whose attributes may not hide what their classes have.
        """
        replaced = [
            name
            for (name, path), value in zip(self._named, self._originals, strict=True)
            if _resolve(path) is not value
        ]
        replaced += [name for name, namespace, key, value in self._values if namespace.get(key, _MISSING) is not value]
        replaced += [
            name
            for name, function, code, defaults, named in self._functions
            if function.__code__ is not code
            or function.__defaults__ is not defaults
            or function.__kwdefaults__ != named  # a dict, which can be changed in place
        ]
        replaced += [f"{type(item).__name__}.{name}" for item in objects for name in _hidden(item)]
        found = [f"replaced {', '.join(replaced[:10])}"] if replaced else []
        return found + [f"left active {mode}" for mode in _modes()]


def _own_namespaces() -> Iterator[tuple[str, ModuleType | type]]:
    for name, module in sorted(sys.modules.items()):
        if name.startswith(_OWN) and isinstance(module, ModuleType):
            yield name, module
            for value in list(vars(module).values()):
                if isinstance(value, type) and value.__module__ == name:
                    yield f"{name}.{value.__name__}", value


def _resolve(path: Sequence[str]) -> Any:
    """The value under a path of attributes, whose first part is a module."""
    value: Any = sys.modules.get(path[0], _MISSING)
    for part in path[1:]:
        value = getattr(value, part, _MISSING)
    return value


def _hidden(item: object) -> list[str]:
    own: Mapping[str, object] = getattr(item, "__dict__", {})
    return [name for name in own if hasattr(type(item), name)]


def _function_modes() -> list[object]:
    modes: list[object] = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    return modes


def _modes() -> list[str]:
    """Modes of torch that see every operation, which is a way to do work later; a default device is none."""
    if not torch._C._len_torch_function_stack() and not torch._C._len_torch_dispatch_stack():  # noqa: SLF001
        return []
    modes = [mode for mode in _function_modes() if type(mode) is not DeviceContext]
    dispatch = torch._C._len_torch_dispatch_stack()  # noqa: SLF001
    return [type(mode).__qualname__ for mode in modes] + ["a TorchDispatchMode"] * dispatch
