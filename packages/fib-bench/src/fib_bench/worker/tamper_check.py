"""Tamper check: names functions that a solution has replaced in its process, and modes that it has left active.

It gives the reason for a rejection where a solution attacks a harness in the usual ways, and guards latencies on the
CPU, which the worker reads itself. It protects nothing else: a solution can replace this check too, and the judge's
clock and the verified outputs do not depend on it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from functools import cache
from types import FunctionType, MappingProxyType, ModuleType
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
_KINDS = (FunctionType, classmethod, staticmethod, property, type, type(cache(lambda: None)), MappingProxyType)


class Watch:
    """Records some 600 functions before a solution is loaded, and reports changes after each request."""

    def __init__(self) -> None:
        self._named = [(name, path, _resolve(path)) for name in _NAMES for path in [name.split(".")]]
        self._own = [
            (f"{where}.{name}", vars(namespace), name, value, getattr(value, "__code__", None))
            for where, namespace in _own_namespaces()
            for name, value in vars(namespace).items()
            if isinstance(value, _KINDS)
        ]

    def findings(self) -> list[str]:
        """Replaced functions and active modes, as sentences; empty if nothing changed."""
        replaced = [name for name, path, value in self._named if _resolve(path) is not value]
        replaced += [
            name
            for name, namespace, key, value, code in self._own
            if namespace.get(key, _MISSING) is not value or getattr(value, "__code__", None) is not code
        ]
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


def _modes() -> list[str]:
    """Modes of torch that see every operation, which is a way to do work later; a default device is none."""
    active: list[object] = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    modes = [type(mode).__qualname__ for mode in active if type(mode) is not DeviceContext]
    return modes + ["a TorchDispatchMode"] * torch._C._len_torch_dispatch_stack()  # noqa: SLF001
